"""Other programs: run to their end, and told about in one sentence when they fail."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

_TOLD_LINES = 15

_NOT_FOR_OTHERS = ("PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", "PIP_REQUIRE_VIRTUALENV")
"""What a caller's own Python may have set, and what would lead another one astray."""


class Trouble(Exception):
    """Why the installer stops. The message says what, where, and what to do."""


@dataclass(frozen=True)
class Programs:
    lock: int | None = None
    """Descriptor of the install lock. What this runs inherits it, so the lock outlives a killed installer for as long
    as a pip that it left behind still writes."""

    def run(self, *command: str | Path, env: dict[str, str] | None = None) -> str:
        """What it wrote to stdout. Raises Trouble with its last lines when it cannot be run or fails."""
        ended = self.attempt(*command, env=env)
        if ended.returncode != 0:
            said = (ended.stdout + ended.stderr).rstrip().splitlines()[-_TOLD_LINES:]
            raise Trouble("\n    ".join([f"{_shown(command)} failed (exit status {ended.returncode})", *said]))
        return ended.stdout

    def attempt(
        self, *command: str | Path, env: dict[str, str] | None = None, timeout: float | None = None
    ) -> subprocess.CompletedProcess[str]:
        """How it ended, whatever that was; 127 when it is not here, 124 when it took longer than `timeout` seconds."""
        words = [str(word) for word in command]
        inherited = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_OTHERS}
        try:
            return subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                env={**inherited, "LC_ALL": "C.UTF-8", **(env or {})},
                cwd="/",
                pass_fds=() if self.lock is None else (self.lock,),
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(words, 124, "", f"no answer in {timeout:.0f} s")
        except OSError as error:
            return subprocess.CompletedProcess(words, 127, "", f"{words[0]}: {error.strerror}")


def _shown(command: tuple[str | Path, ...]) -> str:
    line = " ".join(str(word) for word in command)
    return line if len(line) <= 200 else line[:200] + " …"
