"""A server in a folder: its root, and stubs of apt-get, systemctl, pip and others that note what they are asked."""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from server_stubs import read_state, write_state

ROOT = Path(__file__).parents[1]

_STUBS = (
    *("apt-get", "dpkg-query", "systemctl", "systemd-sysusers", "systemd-tmpfiles", "journalctl"),
    *("usermod", "id", "nvidia-smi", "gcc", "pkg-config", "python3"),
)

_STUB = f"""#!{os.path.realpath(sys.executable)} -IS
import sys
sys.path.insert(0, {str(ROOT / "tests")!r})
from server_stubs import stub
sys.exit(stub(sys.argv))
"""

_ALL_PACKAGES = dict.fromkeys(("dbus", "libsystemd-dev"), "1") | {"polkitd": "122-3"}


class Server:
    """The machine that deploy/install is run on. What it is can be changed at any time with `says`."""

    def __init__(self) -> None:
        # Not pytest's folder, where only its owner may look: the daemon's user has to reach the interpreter.
        self.folder = Path(tempfile.mkdtemp(prefix="finetuned-server-"))
        self.folder.chmod(0o755)
        self.root = self.folder / "root"
        for name in ("etc", "run/systemd/system", "proc", "bin"):
            (self.root / name).mkdir(parents=True)
        self.run_by("debian", "12", "Debian GNU/Linux 12 (bookworm)")
        for name in _STUBS:
            path = self.root / "bin" / name
            path.write_text(_STUB)
            path.chmod(0o755)
        self.says(packages=_ALL_PACKAGES, systemd=252, python=[3, 11], groups=["lena"])

    def copy(self) -> "Server":
        """Another one, in the same state, that has been asked nothing."""
        other = Server()
        shutil.rmtree(other.root)
        shutil.copytree(self.root, other.root, symlinks=True)
        other.forget()
        return other

    def run_by(self, distribution: str, version: str, name: str, like: str = "") -> None:
        lines = [f"ID={distribution}", f'VERSION_ID="{version}"', f'PRETTY_NAME="{name}"', f'ID_LIKE="{like}"']
        (self.root / "etc/os-release").write_text("\n".join(lines) + "\n")

    def says(self, **facts: object) -> None:
        write_state(self.root, read_state(self.root) | facts)

    def asked(self, program: str = "") -> list[str]:
        """The command lines of stubs, in their order; of one of them, or of all."""
        try:
            lines = (self.root / "asked").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [line for line in lines if line.split()[0] == program or not program]

    def read(self) -> list[list[str]]:
        """The units and rules that lay there at each `systemctl daemon-reload`."""
        return list(read_state(self.root).get("read", []))

    def forget(self) -> None:
        (self.root / "asked").unlink(missing_ok=True)

    def bundle(self, version: str = "0.1.0", code: str = "") -> Path:
        """An unpacked bundle, whose wheel holds one module with `code`."""
        path = self.folder / f"finetuned-{version}-{len(list(self.folder.iterdir()))}"
        for part in ("units", "deploy", "cloud-init"):
            ignored = shutil.ignore_patterns("__pycache__", "demo-data", ".*")
            shutil.copytree(ROOT / part, path / part, ignore=ignored)
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, path)
        with zipfile.ZipFile(path / f"finetuned-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr("finetuned/__init__.py", f"__version__ = {version!r}\n{code}")
        return path

    def start(self, source: Path, *options: str, env: dict[str, str] | None = None) -> "subprocess.Popen[str]":
        command = [sys.executable, source / "deploy/install", "--root", self.root, "--gate-seconds", "5", *options]
        path = f"{self.root / 'bin'}:/usr/bin:/bin"
        return subprocess.Popen(
            command,
            env={"PATH": path, "STUB_ROOT": str(self.root), **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def install(self, source: Path, *options: str, env: dict[str, str] | None = None) -> "Ended":
        process = self.start(source, *options, env=env)
        said, _ = process.communicate(timeout=600)
        return Ended(process.returncode, said)

    def release(self, link: str = "current") -> str | None:
        """The name of the release that this link of /opt/finetuned names."""
        try:
            return Path(os.readlink(self.root / "opt/finetuned" / link)).name
        except FileNotFoundError:
            return None

    def releases(self) -> list[str]:
        return sorted(path.name for path in (self.root / "opt/finetuned/releases").iterdir())

    def snapshot(self) -> dict[str, str]:
        """Every file and link of the server but the stubs' own, with what it holds."""
        held = {}
        for path in sorted(self.root.rglob("*")):
            name = str(path.relative_to(self.root))
            if name in ("asked", "state.json", "opt/finetuned/.install.lock"):
                continue
            if path.is_symlink():
                held[name] = f"→ {os.readlink(path)}"
            elif path.is_file():
                held[name] = f"{path.stat().st_mtime_ns} {path.stat().st_ino}"
            else:
                held[name] = "a folder"
        return held

    def remove(self) -> None:
        shutil.rmtree(self.folder)


class Ended:
    def __init__(self, status: int, said: str) -> None:
        self.status, self.said = status, said

    def __repr__(self) -> str:
        return f"exit status {self.status}:\n{self.said}"
