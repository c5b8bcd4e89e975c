"""The machine being provisioned: files below a root, commands from PATH. Decides nothing."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path


class ProvisionFailed(Exception):
    """This machine cannot be made ready: why, and what its owner can do."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.hint = hint


class CommandFailed(ProvisionFailed):
    """A program ended with another status than 0; `output` is its tail."""

    def __init__(self, command: Sequence[str], status: int, output: str) -> None:
        last = " / ".join(output.strip().splitlines()[-4:])
        super().__init__(f"{shlex.join(command)} ended with {status}: {last}")
        self.output = output


@dataclass(frozen=True)
class Ended:
    status: int
    output: str


@dataclass(frozen=True)
class System:
    """What /etc/os-release says, in the names this program knows."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}".strip()


@dataclass(frozen=True)
class Machine:
    root: Path = Path("/")
    sleep: Callable[[float], None] = time.sleep
    baking: bool = False
    """An image is being made: nothing that belongs to one instance is done."""
    environment: dict[str, str] = field(
        default_factory=lambda: {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    )

    def path(self, absolute: str) -> Path:
        return self.root / absolute.lstrip("/")

    def read(self, absolute: str) -> str:
        """The text of a file; empty where there is none."""
        try:
            return self.path(absolute).read_text(errors="replace")
        except OSError:
            return ""

    def write(self, absolute: str, text: str, mode: int = 0o644) -> None:
        """A whole file or none, also through a power cut."""
        path = self.path(absolute)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.partial")
        with partial.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.chmod(mode)
        partial.rename(path)

    def ask(self, *command: str, timeout_seconds: float = 120) -> Ended:
        """Runs a program that changes nothing. One that is missing or never ends has status 127 or 124."""
        try:
            ended = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, errors="replace", env=self.environment, timeout=timeout_seconds,
            )  # fmt: skip
        except FileNotFoundError:
            return Ended(127, f"{command[0]}: not found")
        except subprocess.TimeoutExpired:
            return Ended(124, f"{command[0]}: no answer within {timeout_seconds:g} s")
        return Ended(ended.returncode, ended.stdout)

    def answer(self, *command: str) -> str:
        """What a program says on its way to status 0; empty otherwise."""
        ended = self.ask(*command)
        return ended.output.strip() if ended.status == 0 else ""

    def do(self, *command: str) -> str:
        """Runs a program that changes the machine, its output to the journal as it comes. Raises CommandFailed."""
        print(f"+ {shlex.join(command)}", flush=True)
        tail: deque[str] = deque(maxlen=200)
        try:
            with subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, errors="replace", env=self.environment,
            ) as running:  # fmt: skip
                assert running.stdout
                for line in running.stdout:
                    print(f"  {line.rstrip()}", flush=True)
                    tail.append(line)
        except FileNotFoundError:
            raise CommandFailed(command, 127, f"{command[0]}: not found") from None
        if running.returncode != 0:
            raise CommandFailed(command, running.returncode, "".join(tail))
        return "".join(tail)

    def do_patiently(self, *command: str, pauses_seconds: Sequence[float] = (5, 15, 45, 90)) -> str:
        """Like `do`, again after each pause: for what fails now and then (the network, a lock that somebody holds)."""
        for pause in pauses_seconds:
            try:
                return self.do(*command)
            except CommandFailed as failed:
                if failed.output.endswith("not found"):
                    raise
                print(f"{failed}; trying again in {pause:g} s", flush=True)
                self.sleep(pause)
        return self.do(*command)

    @property
    def system(self) -> System:
        lines = dict(line.split("=", 1) for line in self.read("/etc/os-release").splitlines() if "=" in line)
        return System(*(lines.get(key, "").strip("\"'") for key in ("ID", "VERSION_ID")))

    @property
    def kernel(self) -> str:
        return self.answer("uname", "-r")

    @property
    def architecture(self) -> str:
        return self.answer("uname", "-m") or "x86_64"

    def service_exists(self, unit: str) -> bool:
        return self.answer("systemctl", "show", "--property=LoadState", "--value", unit) == "loaded"
