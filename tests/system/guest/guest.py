"""A guest: a Debian that really boots, driven from outside. What its kinds have in common (nspawn.py, qemu.py)."""

import shlex
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class CommandFailed(Exception):
    """A command in a guest ended with another status than 0; the message holds what it said."""


class Guest(ABC):
    """One machine with a disk of its own; off until it is started, and gone with everything in it once removed."""

    name: str
    patience: float
    """How many times as long as on a quiet machine of today anything may take here."""

    @abstractmethod
    def start(self) -> None:
        """Switch it on and return when its PID 1 takes commands."""

    @abstractmethod
    def reboot(self) -> None:
        """As `systemctl reboot` does it; returns when the next PID 1 takes commands."""

    @abstractmethod
    def cut(self) -> None:
        """Take its power away, this instant."""

    @abstractmethod
    def off(self) -> None:
        """Switch it off as `systemctl poweroff` does."""

    @abstractmethod
    def remove(self) -> None:
        """End it in whatever state it is, and everything that this machine holds for it."""

    @abstractmethod
    def shell(self, script: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run `script` with sh as root in the guest, with `given` on its standard input."""

    def ran(self, *command: str, user: str | None = None, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """How a command, as root or as `user` with all its groups, ended."""
        as_user = ["runuser", "-u", user, "--"] if user else []
        return self.shell(shlex.join([*as_user, *command]), given)

    def run(self, *command: str, user: str | None = None, given: bytes = b"") -> str:
        """What a command wrote on its standard output. Raises CommandFailed."""
        ended = self.ran(*command, user=user, given=given)
        if ended.returncode != 0:
            said = (ended.stdout + ended.stderr).decode(errors="replace").strip()
            raise CommandFailed(f"{self.name}: {shlex.join(command)} ended with {ended.returncode}:\n{said}")
        return ended.stdout.decode().strip()

    def put(self, path: str, content: str | bytes, user: str | None = None) -> None:
        content = content.encode() if isinstance(content, str) else content
        self.run("sh", "-c", f"cat > {shlex.quote(path)}", user=user, given=content)

    def read(self, path: str) -> bytes | None:
        """The content of a file; None when there is none."""
        ended = self.ran("cat", "--", path)
        return ended.stdout if ended.returncode == 0 else None

    def unit(self, unit: str, property: str) -> str:
        return self.run("systemctl", "show", "-P", property, unit)

    def until(self, condition: Callable[[], object], seconds: float, what: str) -> None:
        """Return as soon as `condition()` is true; fail with what the guest's journal says when that takes too long.

        `seconds` are those of a quiet machine. A condition that cannot be looked at, as of a guest that is down, is not
        true.
        """
        deadline = time.monotonic() + seconds * self.patience
        while True:
            try:
                if condition():
                    return
            except CommandFailed:
                pass
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"{self.name}: waited {seconds * self.patience:.0f} s in vain: {what}\n{self.evidence()}"
                )
            time.sleep(0.2)

    def evidence(self) -> str:
        """What a person would look at first."""
        looks = [
            "systemctl is-system-running",
            "systemctl --failed --no-legend",
            "systemctl --no-pager -n 0 status 'finetuned*'",
            "journalctl --no-pager -o short-monotonic -b -u 'finetuned*' -u 'cloud-*' -n 120",
        ]
        said = [f"$ {look}\n" + self.shell(look).stdout.decode(errors="replace") for look in looks]
        return "\n".join(said)

    def wait_for_boot(self) -> None:
        """Until PID 1 has started whatever it starts at boot, cloud-init included."""
        self.until(self._has_a_manager, 60, "systemd as PID 1")
        self.ran("cloud-init", "status", "--wait")

    def _has_a_manager(self) -> bool:
        state = self.ran("systemctl", "is-system-running").stdout.decode().strip()
        return state in ("starting", "running", "degraded")
