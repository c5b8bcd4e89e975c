"""What is installed: a checkout, an unpacked bundle, or a release that is installed already. And its wheel."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from installer.programs import Programs, Trouble

PARTS = ("units", "deploy", "cloud-init")
"""The folders that a bundle and a release carry as they are."""

FILES = ("pyproject.toml", "README.md", "LICENSE")
"""What the wheel is built from beside the code."""

EPOCH = 315532800
"""1980-01-01, the oldest date that a zip can say: the same sources make the same bytes, whenever they are built."""

_CODE = "daemon/finetuned"
_VERSION = re.compile(r'^version = "([^"]+)"$', re.MULTILINE)
_WHEEL = re.compile(r"finetuned-([^-]+)-py3-none-any\.whl")
_SETUPTOOLS = re.compile(r'^requires = \["setuptools>=(\d+)"\]$', re.MULTILINE)
_SETUPTOOLS_WHEEL = re.compile(r"setuptools-(\d+)\..*\.whl")


@dataclass(frozen=True)
class Source:
    path: Path

    @property
    def is_checkout(self) -> bool:
        return (self.path / _CODE).is_dir()

    @property
    def version(self) -> str:
        if not self.is_checkout:
            return _WHEEL.fullmatch(self.wheel().name)[1]  # type: ignore[index]  # wheel() matched it.
        found = _VERSION.search((self.path / "pyproject.toml").read_text())
        if found is None:
            raise Trouble(f"{self.path}/pyproject.toml names no version")
        return found[1]

    @property
    def constraints(self) -> Path:
        return self.path / "deploy/constraints.txt"

    def digest(self) -> str:
        """The same for a checkout and for the bundle made from it; another as soon as any file of it differs."""
        total = hashlib.sha256()
        for name, content in sorted([*self._code(), *self._others()]):
            total.update(f"{name} {hashlib.sha256(content).hexdigest()}\n".encode())
        return total.hexdigest()

    def copy_parts(self, into: Path) -> None:
        """The folders and files beside the wheel, with modes that do not depend on who copies."""
        for part in PARTS:
            copy_tree(self.path / part, into / part)
        for name in FILES:
            _copy_file(self.path / name, into / name)

    def bring_wheel(self, into: Path, python: Path, programs: Programs, pip_options: tuple[str, ...] = ()) -> Path:
        """The wheel, copied, or from a checkout built by the pip of `python`."""
        if not self.is_checkout:
            return Path(shutil.copy(self.wheel(), into))
        tree = into / ".source"
        copy_tree(self.path / _CODE, tree / _CODE)
        for name in FILES:
            _copy_file(self.path / name, tree / name)
        # Built from a copy: setuptools leaves folders behind, and would pack what an older build left in them.
        pip = ("-m", "pip", "wheel", "--quiet", "--no-input", "--no-deps", *pip_options)
        programs.run(python, *pip, "-w", str(into), str(tree), env={"SOURCE_DATE_EPOCH": str(EPOCH)})
        shutil.rmtree(tree)
        return next(path for path in into.iterdir() if _WHEEL.fullmatch(path.name))

    def require_setuptools(self, wheelhouse: Path) -> None:
        """Raises Trouble when this is a checkout, and its wheel cannot be built from what lies in that folder alone."""
        needed = _SETUPTOOLS.search((self.path / "pyproject.toml").read_text())
        if not self.is_checkout or needed is None:
            return
        found = [_SETUPTOOLS_WHEEL.fullmatch(path.name) for path in wheelhouse.iterdir()]
        if not any(wheel and int(wheel[1]) >= int(needed[1]) for wheel in found):
            raise Trouble(
                f"{self.path} is a checkout, whose wheel is built first, and {wheelhouse} holds no wheel of setuptools "
                f"{needed[1]} or newer.\nhint: where there is a package index: pip download -d {wheelhouse} "
                f"'setuptools>={needed[1]}'; or install from an unpacked finetuned-VERSION.tar.gz, which needs none"
            )

    def wheel(self) -> Path:
        wheels = [path for path in self.path.iterdir() if _WHEEL.fullmatch(path.name)]
        if len(wheels) != 1:
            found = ", ".join(sorted(path.name for path in wheels)) or "none"
            raise Trouble(f"{self.path} should hold one finetuned-VERSION-py3-none-any.whl; found {found}")
        return wheels[0]

    def _code(self) -> Iterator[tuple[str, bytes]]:
        if self.is_checkout:
            root = self.path / _CODE
            for path in files_below(root):
                yield f"finetuned/{path.relative_to(root)}", path.read_bytes()
            return
        with zipfile.ZipFile(self.wheel()) as wheel:
            for name in wheel.namelist():
                if name.startswith("finetuned/"):
                    yield name, wheel.read(name)

    def _others(self) -> Iterator[tuple[str, bytes]]:
        for part in PARTS:
            for path in files_below(self.path / part):
                yield str(path.relative_to(self.path)), path.read_bytes()
        for name in FILES:
            yield name, (self.path / name).read_bytes()


def find_source(installer: Path) -> Source:
    """Where `installer`, the running deploy/install, belongs to."""
    source = Source(installer.resolve().parents[1])
    if not (source.path / "pyproject.toml").is_file():
        raise Trouble(f"{source.path} is no checkout and no unpacked bundle of finetuned: it has no pyproject.toml")
    return source


def files_below(folder: Path) -> Iterator[Path]:
    """Sorted. Left out is what Python and editors leave behind."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name.endswith(("~", ".pyc")) or path.name == "__pycache__":
            continue
        if path.is_dir():
            yield from files_below(path)
        else:
            yield path


def copy_tree(folder: Path, target: Path) -> None:
    for path in files_below(folder):
        _copy_file(path, target / path.relative_to(folder))


def _copy_file(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)
    target.chmod(0o755 if os.access(path, os.X_OK) and path.stat().st_mode & 0o100 else 0o644)
    os.utime(target, (EPOCH, EPOCH))
