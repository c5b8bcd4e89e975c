"""What a guest is given so that installing needs no registry: wheels, the site of the tests' own worker, a Python.

Everything stands read-only under /supply in the guest; the Python where it stands on this machine.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

import tiny
from finetuned import __version__
from system.guest.image import CACHE, ROOT

SUPPLY = "/supply"
PYTHONS = {"bookworm": (3, 11), "trixie": (3, 13)}
"""What each release of Debian brings."""
_SUPPLY_MIB = 4096
NEWER = f"{__version__}.post1"
"""The release that upgrades are tried with: this one under another name."""


@dataclass(frozen=True)
class Supply:
    """Folders of this machine; `python` is None where the guest's own Python runs the worker's site."""

    bundles: Path
    wheels: Path
    site: Path
    models: Path
    python: Path | None

    @property
    def folders(self) -> dict[str, Path]:
        """Where each stands in a guest."""
        found = {f"{SUPPLY}/{name}": getattr(self, name) for name in ("bundles", "wheels", "site", "models")}
        # An interpreter may look for its library where it was built to stand.
        return found | ({str(self.python): self.python} if self.python else {})

    @property
    def interpreter(self) -> str | None:
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        return f"{self.python}/bin/python{version}" if self.python else None


def supply(suite: str, folder: Path) -> Supply:
    """All that a guest of `suite` needs, made in `folder` unless it is there or in the cache."""
    if not folder.exists():
        _build_bundles(folder / "bundles")
        _build_models(folder / "models")
    return Supply(
        bundles=folder / "bundles",
        wheels=_wheels(),
        site=Path(sysconfig.get_path("purelib")),
        models=folder / "models",
        python=None if PYTHONS[suite] == sys.version_info[:2] else _own_python(),
    )


def bundle_name(version: str) -> str:
    return f"finetuned-{version}.tar.gz"


def _build_bundles(folder: Path) -> None:
    """What deploy/build makes of this checkout, as it is and as the next release."""
    folder.mkdir(parents=True)
    for version in (__version__, NEWER):
        with tempfile.TemporaryDirectory(dir=folder.parent) as copy:
            checkout = _copy_of_checkout(Path(copy) / "checkout", version)
            built = subprocess.run(
                [sys.executable, checkout / "deploy/build", "bundle"], capture_output=True, text=True
            )
            assert built.returncode == 0, built.stdout + built.stderr
            shutil.copy(checkout / "dist" / bundle_name(version), folder)


def _copy_of_checkout(copy: Path, version: str) -> Path:
    for part in ("daemon/finetuned", "units", "deploy", "cloud-init"):
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in ("pyproject.toml", "daemon/finetuned/__init__.py"):
        text = (copy / name).read_text()
        assert f'version = "{__version__}"' in text or f'__version__ = "{__version__}"' in text, name
        (copy / name).write_text(text.replace(f'"{__version__}"', f'"{version}"', 1))
    return copy


def _own_python() -> Path:
    """The interpreter that the tests' environment was made with."""
    prefix = Path(sys.base_prefix)
    assert prefix != Path("/usr"), "a guest cannot borrow a Python that is spread over /usr"
    return prefix


def _wheels() -> Path:
    """Wheels of what the daemon needs, systemd-python built for this Python among them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = sorted(project["dependencies"] + project["optional-dependencies"]["systemd"])
    constraints = ROOT / "deploy/constraints.txt"
    key = hashlib.sha256("\n".join([sys.version, *wanted, constraints.read_text()]).encode()).hexdigest()[:12]
    wheels = CACHE / f"wheels-{key}"
    if not wheels.exists():
        for older in CACHE.glob("wheels-*"):
            shutil.rmtree(older)
        building = CACHE / f"wheels.building-{os.getpid()}"
        pip = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            f"--wheel-dir={building}",
            f"--constraint={constraints}",
        ]
        subprocess.run([*pip, *wanted], check=True, stderr=subprocess.DEVNULL)
        building.rename(wheels)
    return wheels


def _build_models(folder: Path) -> None:
    """A tiny random Llama, and rows to tune it with."""
    (folder / "tiny").mkdir(parents=True)
    tiny.build_model(folder / "tiny", attention_dropout=0.1)
    (folder / "tiny/model.safetensors").chmod(0o644)  # It is saved for its owner alone.
    tiny.write_jsonl(folder / "chat.jsonl", tiny.chat_rows(40))


def make_supply_disk(given: Supply, disk: Path) -> None:
    """All of it as one file system, for a guest that can see no folder of this machine."""
    stage = disk.with_suffix(".stage")
    script = 'for each; do mkdir -p "$stage/${each%%=*}"; mount --bind "${each#*=}" "$stage/${each%%=*}"; done'
    script += f'; mke2fs -q -t ext4 -m 0 -L supply -d "$stage" "$disk" {_SUPPLY_MIB}M'
    folders = [f"{there.removeprefix(SUPPLY)}={here}" for there, here in given.folders.items()]
    alone = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script, "sh"]
    subprocess.run([*alone, *folders], check=True, env=dict(os.environ) | {"stage": str(stage), "disk": str(disk)})
