"""Guests by qemu without KVM: a kernel, initrd, disk and memory limits of its own, and a power cut that loses what
nobody synced. Everything takes some twenty times as long as on the machine below.
"""

import json
import shlex
import socket
import subprocess
from pathlib import Path

from system.guest.guest import CommandFailed, Guest
from system.guest.image import Image

USER = "debian"
"""Whom cloud-init makes on Debian, with every right by sudo."""


class QemuGuest(Guest):
    """`disks` are further disks, read-only. `key` is the private half of the key that the user data lets in."""

    def __init__(self, image: Image, folder: Path, disks: list[Path], key: Path, memory_mib: int = 2048):
        self.name, self.patience = f"{image.suite}-vm", 12.0
        self._image, self._folder, self._disks, self._key, self._memory_mib = image, folder, disks, key, memory_mib
        self._qemu: subprocess.Popen[bytes] | None = None
        self._port = _free_port()

    def make(self, disk: Path) -> None:
        """A machine with a copy of `disk`, which it writes nothing to."""
        overlay = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", disk, self._disk]
        subprocess.run(overlay, check=True)

    @property
    def log(self) -> Path:
        return self._folder / "console.log"

    def start(self, snapshot: str | None = None) -> None:
        """`snapshot`: go on from there, memory and disk, instead of booting."""
        self._forget_connection()
        # writeback, never unsafe: a killed qemu that ignored flushes has lost what its guest saw as safe on disk.
        drive = f"file={self._disk},if=virtio,cache=writeback"
        options = ["-accel", "tcg,thread=multi,tb-size=1024", "-cpu", "max", "-smp", "2", "-m", str(self._memory_mib)]
        options += ["-display", "none", "-nodefaults", "-serial", f"file:{self.log}", "-device", "virtio-rng-pci"]
        options += ["-qmp", f"unix:{self._folder / 'qmp'},server=on,wait=off"]
        options += ["-kernel", str(self._image.kernel), "-initrd", str(self._image.initrd)]
        options += ["-append", "root=/dev/vda rw console=ttyS0 net.ifnames=0 panic=5", "-drive", drive]
        for disk in self._disks:
            options += ["-drive", f"file={disk},if=virtio,format=raw,readonly=on"]
        options += ["-nic", f"user,model=virtio-net-pci,hostfwd=tcp:127.0.0.1:{self._port}-:22"]
        options += ["-loadvm", snapshot] if snapshot else []
        with (self._folder / "qemu.log").open("ab") as log:
            self._qemu = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64", *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.until(self._takes_commands, 60, "ssh")

    def reboot(self) -> None:
        before = self._boot_id()
        self.ran("systemctl", "reboot")

        def rebooted() -> bool:
            self._forget_connection()
            return self._boot_id() != before

        self.until(rebooted, 60, "the next boot")

    def cut(self) -> None:
        if self._qemu is not None:
            self._qemu.kill()
            self._qemu.wait()
        self._forget_connection()

    def off(self) -> None:
        assert self._qemu is not None
        self.ran("systemctl", "poweroff")
        self._qemu.wait(60 * self.patience)
        self._forget_connection()

    def remove(self) -> None:
        self.cut()
        for path in (self._disk, *self._disks):
            path.unlink(missing_ok=True)

    def save(self, tag: str) -> None:
        """Keep memory and disk as they are now under `tag`."""
        self._monitor(f"savevm {tag}")

    def shell(self, script: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        command = ["ssh", *self._ssh_options(), f"{USER}@127.0.0.1", f"sudo -n sh -c {shlex.quote(script)}"]
        return subprocess.run(command, input=given, capture_output=True)

    def _ssh_options(self) -> list[str]:
        # One connection for all commands: a key exchange alone takes a second here.
        chosen = {
            "IdentityFile": self._key,
            "Port": self._port,
            "StrictHostKeyChecking": "no",
            "UserKnownHostsFile": "/dev/null",
            "LogLevel": "ERROR",
            "ConnectTimeout": 30,
            "ServerAliveInterval": 30,
            "ServerAliveCountMax": 10,
            "BatchMode": "yes",
            "ControlMaster": "auto",
            "ControlPath": self._connection,
            "ControlPersist": 600,
        }
        return [word for name, value in chosen.items() for word in ("-o", f"{name}={value}")]

    @property
    def _disk(self) -> Path:
        return self._folder / "disk.qcow2"

    @property
    def _connection(self) -> Path:
        return self._folder / "ssh"

    def _forget_connection(self) -> None:
        if self._connection.exists():
            leave = ["ssh", "-O", "exit", *self._ssh_options(), f"{USER}@127.0.0.1"]
            subprocess.run(leave, capture_output=True)
        self._connection.unlink(missing_ok=True)

    def _boot_id(self) -> str:
        return self.run("cat", "/proc/sys/kernel/random/boot_id")

    def _takes_commands(self) -> bool:
        assert self._qemu is not None
        if self._qemu.poll() is not None:
            said = (self._folder / "qemu.log").read_text(errors="replace")[-2000:]
            raise AssertionError(f"qemu ended with {self._qemu.returncode}:\n{said}")
        return self.ran("true").returncode == 0

    def _monitor(self, command: str) -> None:
        """One command of qemu's monitor, over QMP."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(600)
            connection.connect(str(self._folder / "qmp"))
            with connection.makefile("rw") as stream:
                stream.readline()
                for execute, arguments in (
                    ("qmp_capabilities", {}),
                    ("human-monitor-command", {"command-line": command}),
                ):
                    stream.write(json.dumps({"execute": execute, "arguments": arguments}) + "\n")
                    stream.flush()
                    while "return" not in (answer := json.loads(stream.readline())):
                        if "error" in answer:
                            raise CommandFailed(f"{self.name}: {command}: {answer['error']}")
                if answer["return"].strip():
                    raise CommandFailed(f"{self.name}: {command}: {answer['return'].strip()}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
