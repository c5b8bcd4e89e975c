"""A real systemd for tests of units: `systemd --user` in namespaces of its own, never the one that runs the machine.

It needs root (for a mount of cgroup2 that nobody else sees) and the systemd package; `why_not()` says what is missing.
"""

import os
import shutil
import subprocess
from pathlib import Path

from until import until

_MANAGER = Path("/usr/lib/systemd/systemd")

# The manager must not find itself in the root of a hierarchy: it would take every process of the machine along.
_ENTER = """
set -eu
mount --make-rprivate /
mount -t cgroup2 cgroup2 /sys/fs/cgroup
group=/sys/fs/cgroup/finetuned-tests-$$
mkdir "$group"
trap 'echo 1 >"$group/cgroup.kill"' TERM
sh -c 'echo $$ >"$1/cgroup.procs"; shift; exec unshare --cgroup --mount -- "$@"' sh "$group" \\
    sh -c 'umount /sys/fs/cgroup
           mount -t cgroup2 cgroup2 /sys/fs/cgroup
           mount -t tmpfs tmpfs /run
           mkdir -p /run/systemd/system
           exec "$@"' sh "$@" &
wait $! || true
echo 1 >"$group/cgroup.kill"
until find "$group" -depth -type d -exec rmdir {} + 2>/dev/null; do sleep 0.02; done
"""
_TARGETS = ("basic", "default", "shutdown")


def why_not() -> str:
    """What keeps this machine from having one; empty when nothing does."""
    if os.geteuid() != 0:
        return "a systemd of its own needs root"
    for program in ("systemctl", "unshare"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    return "" if _MANAGER.exists() else f"{_MANAGER} is not installed"


class UserSystemd:
    """A manager with the units in `home/units` and nothing else."""

    def __init__(self, home: Path, units: dict[str, str]):
        self._home = home
        folder = home / "units"
        folder.mkdir(parents=True)
        for target in _TARGETS:
            units = {**units, f"{target}.target": "[Unit]\nDefaultDependencies=no\n"}
        for name, text in units.items():
            (folder / name).write_text(text)
        (home / "run").mkdir(mode=0o700)
        strange = ("DBUS_SESSION_BUS_ADDRESS", "NOTIFY_SOCKET", "INVOCATION_ID", "JOURNAL_STREAM")
        self.environment = {name: value for name, value in os.environ.items() if name not in strange} | {
            "XDG_RUNTIME_DIR": str(home / "run"),
            "XDG_CONFIG_HOME": str(home / "config"),
            "SYSTEMD_UNIT_PATH": str(folder),
            "SYSTEMD_OFFLINE": "0",
        }
        with open(self.log_file, "wb") as log:
            self._process = subprocess.Popen(
                ["unshare", "--mount", "--", "sh", "-c", _ENTER, "sh", str(_MANAGER), "--user", "--log-target=console"],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            until(lambda: self._process.poll() is not None or self._answers())
            assert self._process.poll() is None, f"systemd --user ended at once:\n{self.log_file.read_text()}"
        except AssertionError:
            self.close()
            raise

    @property
    def log_file(self) -> Path:
        return self._home / "manager.log"

    def systemctl(self, *words: str) -> str:
        command = ["systemctl", "--user", *words]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=True).stdout

    def close(self) -> None:
        """Kill the manager and everything that it started."""
        self._process.terminate()
        self._process.wait(timeout=30)

    def _answers(self) -> bool:
        command = ["systemctl", "--user", "is-active", "--quiet", "default.target"]
        return subprocess.run(command, env=self.environment, capture_output=True, check=False).returncode == 0
