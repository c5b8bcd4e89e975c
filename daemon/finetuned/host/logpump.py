"""A stage's log: capped, with its head and its newest tail kept. A process of its own, so that it outlives a crash."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

HEAD_BYTES = 8 << 20
TAIL_BYTES = 56 << 20
_SECONDS_BETWEEN_PUMPS = 1.0


def redirect_output(log: Path) -> None:
    """From now on, what this process and its children print goes to the end of `log`.

    Call before threads, locks and heavy imports: it forks. The pump ends when the last writer has closed its end; one
    that is killed is replaced, and only the words it held in its hands are lost.
    """
    reading, writing = os.pipe()
    pump = os.fork()
    if pump == 0:
        status = 1
        try:
            os.close(writing)
            _pump(reading, log)
            status = 0
        finally:
            os._exit(status)
    os.dup2(writing, 1)
    os.dup2(writing, 2)
    os.close(writing)
    # This process keeps the reading end: without any reader, the next word printed would be a broken pipe.
    threading.Thread(target=_replace_pump, args=(pump, reading, log), name="log", daemon=True).start()


def _replace_pump(pump: int, reading: int, log: Path) -> None:
    os.waitpid(pump, 0)
    while True:
        command = [sys.executable, "-m", "finetuned.host.logpump", str(log)]
        nowhere = subprocess.DEVNULL
        subprocess.run(command, stdin=reading, stdout=nowhere, stderr=nowhere, cwd="/", check=False)
        time.sleep(_SECONDS_BETWEEN_PUMPS)


def _pump(reading: int, log: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    file = _CappedFile(log, HEAD_BYTES, TAIL_BYTES)
    while chunk := os.read(reading, 1 << 16):
        try:
            file.write(chunk)
        except OSError:
            continue  # A full disk must not block the stage on its own chatter.


class _CappedFile:
    """Grows to head + tail, then drops the older half of the tail and goes on; a line marks the gap."""

    def __init__(self, path: Path, head_bytes: int, tail_bytes: int):
        self._path, self._head, self._tail = path, head_bytes, tail_bytes
        self._descriptor = -1

    def write(self, chunk: bytes) -> None:
        if self._descriptor < 0:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        if os.fstat(self._descriptor).st_size + len(chunk) > self._head + self._tail:
            self._drop_middle()
        os.write(self._descriptor, chunk)

    def _drop_middle(self) -> None:
        temporary = self._path.with_name(f".{self._path.name}.tmp")
        shorter = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o640)
        try:
            self._copy_ends(shorter)
            os.rename(temporary, self._path)
        except OSError:
            os.close(shorter)
            temporary.unlink(missing_ok=True)
            raise
        os.close(self._descriptor)
        self._descriptor = shorter

    def _copy_ends(self, into: int) -> None:
        size = os.fstat(self._descriptor).st_size
        kept_from = size - self._tail // 2
        self._copy(into, 0, self._head)
        os.write(into, f"\n[... {kept_from - self._head:,} bytes left out here ...]\n".encode())
        self._copy(into, kept_from, size)

    def _copy(self, into: int, start: int, end: int) -> None:
        while start < end:
            chunk = os.pread(self._descriptor, min(1 << 20, end - start), start)
            if not chunk:
                return
            start += os.write(into, chunk)


if __name__ == "__main__":
    _pump(sys.stdin.fileno(), Path(sys.argv[1]))
