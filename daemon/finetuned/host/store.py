"""The shared local store: base models and prepared rows, each folder named by what is in it and sealed when whole.

A folder is built under a name that begins with a dot, sealed by a manifest, and renamed; it never changes after that.
"""

import hashlib
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from finetuned.core.plan import ModelFile
from finetuned.core.record import Record
from finetuned.host.files import rename_durably, sync_directory, sync_file
from finetuned.host.jobdir import Unreadable, read_record, write_record

_MANIFEST = "manifest.json"
_CHUNK_BYTES = 4 << 20


class Manifest(Record):
    """manifest.json: every other file of a sealed folder; written last."""

    format: Literal[1] = 1
    files: tuple[ModelFile, ...]


@dataclass(frozen=True)
class Store:
    """SPOOL/store."""

    path: Path

    @property
    def models(self) -> Path:
        return self.path / "models"

    @property
    def data(self) -> Path:
        return self.path / "data"

    @property
    def prepared(self) -> Path:
        return self.path / "prepared"

    def create(self) -> None:
        for folder in (self.models, self.data, self.prepared):
            folder.mkdir(mode=0o750, parents=True, exist_ok=True)

    def prepared_dir(self, name: str) -> Path:
        return self.prepared / name

    def has_prepared(self, name: str) -> bool:
        """Whether the prepared rows of that name stand there, every file of the right size."""
        return read_seal(self.prepared_dir(name)) is not None


def read_seal(folder: Path) -> Manifest | None:
    """The manifest of a whole folder: every file it names is there with the right size. None for anything else."""
    try:
        manifest = read_record(folder / _MANIFEST, Manifest)
        if manifest is None:
            return None
        sizes_are_right = all((folder / file.path).stat().st_size == file.size_bytes for file in manifest.files)
    except (OSError, Unreadable):
        return None
    return manifest if sizes_are_right else None


def seal(partial: Path, final: Path, files: tuple[ModelFile, ...]) -> None:
    """Make `files` of `partial` durable, write the manifest, and rename the folder to `final`.

    A folder that stands at `final` already is kept when it is whole and replaced when it is not.
    """
    for file in files:
        sync_file(partial / file.path)
    write_record(partial / _MANIFEST, Manifest(files=files))
    sync_directory(partial)
    if read_seal(final) is not None:
        shutil.rmtree(partial)
        return
    if final.exists():
        shutil.rmtree(final)
    rename_durably(partial, final)


def hash_files(folder: Path, names: Iterable[str], on_bytes: Callable[[int], None] = lambda _: None) -> list[ModelFile]:
    """Size and sha256 of files in `folder`, in the order of `names`; `on_bytes` is told of every few MB read."""
    found = []
    for name in names:
        digest = hashlib.sha256()
        with open(folder / name, "rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                on_bytes(len(chunk))
            size_bytes = file.tell()
        found.append(ModelFile(path=name, size_bytes=size_bytes, sha256=digest.hexdigest()))
    return found
