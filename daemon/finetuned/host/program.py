"""Run one program to its end: its words go where ours go, it is stopped with us and never outlasts its time."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from finetuned.host.stage import StopFlag

_LAST_LINES = 20
_POLL_SECONDS = 0.1
_KILL_SECONDS = 10.0
_PIECE_BYTES = 64 << 10


@dataclass(frozen=True)
class Ended:
    """How a program ended."""

    returncode: int | None
    """Negative: the signal that killed it; None: it ran out of time and was killed."""
    last_lines: tuple[str, ...]
    """Of what it printed."""

    @property
    def succeeded(self) -> bool:
        return self.returncode == 0

    @property
    def how(self) -> str:
        """As in "it …"."""
        if self.returncode is None:
            return "ran out of time"
        if self.returncode < 0:
            return f"was killed ({signal.Signals(-self.returncode).name})"
        return f"ended with status {self.returncode}"


def run_program(
    command: Sequence[str],
    *,
    seconds: float,
    stop: StopFlag,
    environment: Mapping[str, str] | None = None,
    moved: Callable[[], None] = lambda: None,
) -> Ended:
    """Run `command` in a session of its own, without input; whatever it starts is killed with it at the end.

    `moved` is called all the while: to wait for a program that has its own limit is no hang.
    Raises StopRequested within moments of `stop` being set, and OSError when it cannot be started.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(os.environ if environment is None else environment),
        start_new_session=True,
    )
    assert process.stdout is not None
    lines: deque[str] = deque(maxlen=_LAST_LINES)
    listener = threading.Thread(target=_listen, args=(process.stdout, lines), name="program", daemon=True)
    listener.start()
    deadline = time.monotonic() + seconds
    try:
        while process.poll() is None and time.monotonic() < deadline:
            stop.raise_if_set()
            moved()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_SECONDS)
        returncode = process.poll()
    finally:
        _leave_nothing_of(process)
        listener.join(_KILL_SECONDS)
    return Ended(returncode, tuple(lines))


def _leave_nothing_of(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):  # Stuck in the kernel: the launcher's cleaning finds it.
        process.wait(_KILL_SECONDS)


def _listen(output: IO[bytes], lines: deque[str]) -> None:
    with output:
        # In pieces: a program that never ends a line must not fill our memory.
        for line in iter(lambda: output.readline(_PIECE_BYTES), b""):
            with contextlib.suppress(OSError):
                os.write(sys.stdout.fileno(), line)
            if text := line.decode(errors="replace").strip():
                lines.append(text.rsplit("\r", 1)[-1][:500])
