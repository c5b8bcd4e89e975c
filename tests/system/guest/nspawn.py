"""Guests by systemd-nspawn: a Debian tree with systemd as PID 1, on this machine's kernel and network. Seconds to boot.

What it cannot show: a kernel and initrd of its own, memory limits where this machine has cgroup v1, and a power cut
that loses what nobody synced. Nothing of a guest outlives the process that started it: its root is mounted in a mount
namespace of its own, and its processes die with their parent.
"""

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
from pathlib import Path

from system.guest.guest import PATH, Guest
from system.guest.image import Image

_REBOOTED = 133
"""How nspawn without a registered unit ends when its guest asks for a reboot."""
_UNITS = "etc/systemd/system"
_ONLY_HERE = {
    # The network is this machine's, and configured; nobody comes in by ssh, and the root is mounted.
    f"{_UNITS}/systemd-networkd.service": b"",
    f"{_UNITS}/systemd-networkd-wait-online.service": b"",
    f"{_UNITS}/systemd-networkd.socket": b"",
    f"{_UNITS}/ssh.service": b"",
    "etc/fstab": b"",
}
"""Files that hide those of the image; an empty unit is a masked one."""
_ALONE = ["unshare", "--mount", "--propagation", "private", "sh", "-c"]
"""Runs a script whose mounts are nobody else's and end with it."""
_MOUNT_CGROUPS = 'mount -t cgroup2 cgroup2 "$1/cgroups"'
_MOUNT_ROOT = 'mount -t overlay overlay -o "lowerdir=$2,upperdir=$1/upper,workdir=$1/work" "$1/root"'
_numbers = itertools.count()


class NspawnGuest(Guest):
    """`given` are folders of this machine that the guest sees, read-only: there → here."""

    def __init__(self, image: Image, folder: Path, user_data: bytes, given: dict[str, Path]):
        self.name, self.patience = f"{image.suite}-{os.getpid()}-{next(_numbers)}", 4.0
        self._image, self._folder, self._given = image, folder, given
        self._nspawn: subprocess.Popen[bytes] | None = None
        self._cgroup = f"finetuned-guest-{self.name}"
        for each in ("upper", "work", "root", "cgroups"):
            (folder / each).mkdir(parents=True)
        self._write("var/lib/cloud/seed/nocloud/user-data", user_data)
        self._write("var/lib/cloud/seed/nocloud/meta-data", f"instance-id: i-{self.name}\n".encode())
        for name, content in _ONLY_HERE.items():
            self._write(name, content)
        for there in given:
            # Open to every user, and so is what leads there, /root perhaps.
            (folder / "upper" / there.lstrip("/")).mkdir(parents=True)

    @property
    def log(self) -> Path:
        return self._folder / "console.log"

    def start(self) -> None:
        # In a cgroup of its own, or two guests would take the same "payload" for theirs.
        cgroup = f'"$1/cgroups/{self._cgroup}"'
        join = f"{_MOUNT_CGROUPS} && mkdir -p {cgroup} && echo $$ >{cgroup}/cgroup.procs"
        script = f'{join} && umount "$1/cgroups" && {_MOUNT_ROOT} && shift 2 && exec systemd-nspawn "$@"'
        options = ["--quiet", "--boot", "--register=no", "--keep-unit", "--resolv-conf=copy-host", "--console=pipe"]
        options += [f"--machine=guest-{self.name}", f"--directory={self._folder / 'root'}"]
        options += [f"--bind-ro={here}:{there}" for there, here in self._given.items()]
        with self.log.open("ab") as log:
            self._nspawn = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *_ALONE, script, "sh", self._folder, self._image.tree, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(os.environ) | {"SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},
                start_new_session=True,  # Ctrl-C is for the tests, which then remove the guest.
            )
        self.until(self._takes_commands, 15, "PID 1")

    def reboot(self) -> None:
        self.run("systemctl", "reboot")
        assert self._ended() == _REBOOTED, self._last_words()
        self.start()

    def cut(self) -> None:
        leader = self._leader()
        assert leader is not None, self._last_words()
        os.kill(leader, signal.SIGKILL)
        self._ended()

    def off(self) -> None:
        self.run("systemctl", "poweroff")
        assert self._ended() == 0, self._last_words()

    def write_disk(self, disk: Path, size_bytes: int) -> None:
        """The machine's disk as it is now, switched off, for a machine with a kernel of its own."""
        for name in _ONLY_HERE:
            (self._folder / "upper" / name).unlink()
        make = (
            f'mke2fs -q -t ext4 -L root -E lazy_itable_init=1,lazy_journal_init=1 -d "$1/root" "$3" {size_bytes >> 20}M'
        )
        subprocess.run([*_ALONE, f"{_MOUNT_ROOT} && {make}", "sh", self._folder, self._image.tree, disk], check=True)

    def remove(self) -> None:
        if self._nspawn is not None and self._nspawn.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._leader() or self._nspawn.pid, signal.SIGKILL)
            self._ended()
        # In systemd's hierarchy of v1 too, where nspawn mirrors it; the last of its processes are still being buried.
        both = f'"$1/cgroups/{self._cgroup}" /sys/fs/cgroup/systemd/{self._cgroup}'
        remove = (
            f"for each in {both}; do [ ! -d $each ] || find $each -depth -type d -exec rmdir {{}} + || exit 1; done"
        )
        script = f"{_MOUNT_CGROUPS} && for _ in $(seq 50); do ({remove}) && exit; sleep 0.1; done"
        subprocess.run([*_ALONE, script, "sh", self._folder], check=False, capture_output=True)
        shutil.rmtree(self._folder / "upper", ignore_errors=True)
        shutil.rmtree(self._folder / "work", ignore_errors=True)

    def shell(self, script: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        leader = self._leader()
        if leader is None:
            return subprocess.CompletedProcess(script, 255, b"", b"the guest is down\n")
        enter = ["nsenter", f"--target={leader}", "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup"]
        inside = ["env", "-i", f"PATH={PATH}", "HOME=/root", "LANG=C.UTF-8", "container=systemd-nspawn"]
        return subprocess.run(
            [*enter, "--root", "--wdns=/", "--", *inside, "sh", "-c", script], input=given, capture_output=True
        )

    def _takes_commands(self) -> bool:
        assert self._nspawn is not None
        assert self._nspawn.poll() is None, self._last_words()
        return self._leader() is not None and self._has_a_manager()

    def _leader(self) -> int | None:
        """PID 1 of the guest, as this machine counts."""
        if self._nspawn is None or self._nspawn.poll() is not None:
            return None
        children = Path(f"/proc/{self._nspawn.pid}/task/{self._nspawn.pid}/children")
        with contextlib.suppress(OSError):
            for child in children.read_text().split():
                if Path(f"/proc/{child}/comm").read_text().strip() == "systemd":
                    return int(child)
        return None

    def _ended(self) -> int:
        assert self._nspawn is not None
        try:
            return self._nspawn.wait(90 * self.patience)
        except subprocess.TimeoutExpired:
            self._nspawn.kill()
            raise

    def _last_words(self) -> str:
        said = self.log.read_text(errors="replace")[-3000:]
        return f"{self.name} is not as it should be; its console said last:\n{said}"

    def _write(self, name: str, content: bytes) -> None:
        path = self._folder / "upper" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
