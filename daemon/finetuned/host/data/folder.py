"""Which files of a folder hold rows, and which are left out; of one that `datasets` saved those that it names."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from finetuned.host.data.container import DATA_SUFFIXES, LOOK_BYTES, TEXT_SUFFIXES, bare_suffix, packing_not_read
from finetuned.host.data.split import meaning
from finetuned.host.paths import Unusable

_MOST_FILES = 20_000
_ABOUT_DATA = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "readme", "readme.md", "readme.txt")


@dataclass
class LeftOut:
    """Files that are not read: the first of them by name, and how many."""

    first: list[Path] = field(default_factory=list)
    count: int = 0

    def add(self, path: Path) -> None:
        self.count += 1
        if len(self.first) < 5:
            self.first.append(path)


@dataclass(frozen=True)
class FolderFile:
    path: Path
    split: str | None = None
    """Where the folder itself says so, rather than a name."""


@dataclass(frozen=True)
class FolderFiles:
    files: tuple[FolderFile, ...]
    """In the order of their names; of a saved folder in its own."""
    left_out: LeftOut


def files_in(top: Path) -> FolderFiles:
    """Raises Unusable for a folder without rows, or with some that cannot be read, and OSError."""
    saved = _saved_sets(top)
    if saved is None:
        return _data_files(top)
    named = {file.path for file in saved}
    left_out = LeftOut()
    for path in _walk(top):
        if path not in named:
            left_out.add(path)
    return FolderFiles(saved, left_out)


def require_utf8(path: Path) -> None:
    """Raise Unusable for a name that no text can hold: every place and message would have to misspell it."""
    if (shown := spelled(path)) != str(path):
        raise Unusable(f"the name of {shown} is not UTF-8", "rename it; convmv -f latin1 -t utf8 --notest mends many")


def spelled(path: Path) -> str:
    """A path as text, with a � for each byte that is not UTF-8."""
    return os.fsencode(path).decode(errors="replace")


def _data_files(top: Path) -> FolderFiles:
    tables: list[Path] = []
    texts: list[Path] = []
    left_out = LeftOut()
    for path in _walk(top):
        suffix = bare_suffix(path)
        if suffix in DATA_SUFFIXES:
            tables.append(path)
        elif suffix in TEXT_SUFFIXES:
            texts.append(path)
        elif found := packing_not_read(path):
            require_utf8(path)
            raise Unusable(f"{path} is {found[0]}", found[1])
        else:
            left_out.add(path)
        if len(tables) + len(texts) > _MOST_FILES:
            raise Unusable(f"{top} holds more than {_MOST_FILES:,} data files", "name fewer, or join them")
    if not tables and not texts:
        raise Unusable(
            f"{top} holds no data files",
            "expected JSONL, JSON, CSV, TSV, Parquet, Arrow or text, by their suffixes, also with .gz or .zst",
        )
    # Beside tables, texts are what people write about them.
    for path in texts if tables else ():
        left_out.add(path)
    return FolderFiles(tuple(FolderFile(path) for path in sorted(tables or texts)), left_out)


def _walk(top: Path) -> Iterator[Path]:
    """The files of a folder and those below, but for hidden ones and those that are about data by their name.

    Each folder comes once, links followed. Raises OSError for one that cannot be listed.
    """

    def fail(error: OSError) -> None:
        raise error

    seen: set[tuple[int, int]] = set()
    for root, folders, names in os.walk(top, onerror=fail, followlinks=True):
        found = os.stat(root)
        if (found.st_dev, found.st_ino) in seen:
            folders.clear()
            continue
        seen.add((found.st_dev, found.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(root, name)
            if not name.startswith(".") and not _is_about_data(path):
                yield path


def _is_about_data(path: Path) -> bool:
    name = path.name.lower()
    is_license = name.startswith("license") and bare_suffix(path) not in DATA_SUFFIXES
    return name in _ABOUT_DATA or is_license or (path.name == "state.json" and _is_saved(path.parent))


def _is_saved(folder: Path) -> bool:
    """Whether `Dataset.save_to_disk` made it: other files named state.json may be rows."""
    try:
        with open(folder / "state.json", "rb") as file:
            return b'"_data_files"' in file.read(LOOK_BYTES)
    except (FileNotFoundError, IsADirectoryError):
        return False


def _saved_sets(top: Path) -> tuple[FolderFile, ...] | None:
    """The files of a folder that `save_to_disk` made, of one set of rows or of several; None of any other folder."""
    if (top / "dataset_dict.json").is_file():
        names = [str(name) for name in _names_in(top / "dataset_dict.json", "splits")]
        return tuple(FolderFile(path, meaning(name)) for name in names for path in _saved(top / name))
    if _is_saved(top):
        return tuple(FolderFile(path) for path in _saved(top))
    return None


def _saved(top: Path) -> list[Path]:
    """The Arrow files of a folder that `Dataset.save_to_disk` made, in their order."""
    found = []
    for entry in _names_in(top / "state.json", "_data_files"):
        name = entry["filename"] if isinstance(entry, dict) else entry
        if not isinstance(name, str) or Path(name).name != name:
            raise Unusable(f"{top}/state.json names {name!r}, which is no file beside it")
        found.append(top / name)
    if not found:
        raise Unusable(f"{top} holds no rows: its state.json names no files")
    return found


def _names_in(path: Path, key: str) -> list[object]:
    try:
        names = json.loads(path.read_bytes())[key]
        if not isinstance(names, list):
            raise TypeError(f"{key} is no list")
    except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
        raise Unusable(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    return names
