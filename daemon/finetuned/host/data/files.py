"""Which files a set of rows is: a file, a folder, or a pattern; of several splits the one that is asked for."""

import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path, PurePath

from finetuned.core.spec import Dataset
from finetuned.host.data.container import DATA_SUFFIXES, TEXT_SUFFIXES, bare_suffix
from finetuned.host.data.split import Split, meaning, read_split, split_of
from finetuned.host.paths import (
    Unusable,
    did_you_mean,
    locate,
    look_at,
    nearest_name,
    not_readable,
    require_file,
    require_inside,
)

_MOST_FILES = 20_000
_EXPECTED = "a file of rows"
_NO_DATA = ("readme", "license", "notice", "changelog", "dataset_info", "dataset_infos", "dataset_dict", "state")


@dataclass(frozen=True)
class SetFile:
    shown: str
    """The path as the job file has it, or would: the file part of every file:line."""
    path: Path
    split: str | None


@dataclass(frozen=True)
class SetFiles:
    files: tuple[SetFile, ...]
    """In the order of their rows; at least one, each a readable regular file."""
    split: Split
    notices: tuple[str, ...] = ()


TRAINING = ("train",)
EVALUATION = ("validation", "test")


def files_of(dataset: Dataset, folder: Path | None, prefers: tuple[str, ...] = TRAINING) -> SetFiles:
    """The files of a set; `folder` is the dropped folder. Raises Unusable.

    Of several splits, where none is asked for, the first of `prefers` that is there.
    """
    split = read_split(dataset.split)
    try:
        found = list(_found(dataset.path, folder))
    except OSError as error:
        raise _unusable(error, dataset.path) from error
    chosen, notices = _choose(dataset.path, found, split, prefers)
    for file in chosen:
        require_file(file.path, _EXPECTED)
    return SetFiles(tuple(chosen), split, notices)


def _found(named: str, folder: Path | None) -> Iterator[SetFile]:
    path = locate(named, folder)
    if has_magic(named) and not os.path.lexists(path):
        yield from _matches(named, path, folder)
    elif stat.S_ISDIR(look_at(path).st_mode):
        yield from _inside(named, path, folder)
    else:
        require_file(path, _EXPECTED)
        yield SetFile(named, path, split_of(PurePath(path.name)))


def _matches(named: str, pattern: Path, folder: Path | None) -> Iterator[SetFile]:
    still = pattern
    while has_magic(str(still)):
        still = still.parent
    look_at(still)
    found = [Path(match) for match in sorted(glob(str(pattern), recursive=True)) if os.path.isfile(match)]
    if not found:
        name = pattern.name.replace("*", "").replace("?", "")
        raise Unusable(f"no file matches {pattern}", nearest_name(still / name) if pattern.parent == still else "")
    for path in found:
        if not os.path.isabs(named) and folder is not None:
            require_inside(path, folder, str(path))
        yield SetFile(str(path if os.path.isabs(named) else _as_named(path, folder)), path, _split_in(path, still))


def _as_named(path: Path, folder: Path | None) -> Path:
    return path.relative_to(folder.resolve()) if folder is not None else path


def _split_in(path: Path, top: Path) -> str | None:
    return split_of(path.relative_to(top))


def _inside(named: str, top: Path, folder: Path | None) -> Iterator[SetFile]:
    """The data files of a folder, in the order of their names; of one that `datasets` saved, in its own order."""
    if (top / "dataset_dict.json").is_file():
        for name in _names_in(top / "dataset_dict.json", "splits"):
            for file in _saved(top / str(name)):
                yield SetFile(_under(named, top, file), file, meaning(str(name)))
        return
    if (top / "state.json").is_file():
        yield from (SetFile(_under(named, top, file), file, None) for file in _saved(top))
        return
    files = list(_data_files(top))
    if not files:
        raise Unusable(
            f"{top} holds no data files",
            "expected JSONL, JSON, CSV, TSV, Parquet, Arrow or text, by their suffixes, also with .gz or .zst",
        )
    for file in files:
        if not os.path.isabs(named) and folder is not None:
            require_inside(file, folder, _under(named, top, file))
        yield SetFile(_under(named, top, file), file, _split_in(file, top))


def _under(named: str, top: Path, file: Path) -> str:
    return os.path.join(named, file.relative_to(top))


def _data_files(top: Path) -> list[Path]:
    tables, texts = [], []
    for root, names in _folders(top):
        for name in sorted(names):
            path = Path(root, name)
            if name.startswith(".") or name.split(".")[0].lower() in _NO_DATA:
                continue
            suffix = bare_suffix(path)
            if suffix in DATA_SUFFIXES:
                tables.append(path)
            elif suffix in TEXT_SUFFIXES:
                texts.append(path)
            if len(tables) + len(texts) > _MOST_FILES:
                raise Unusable(f"{top} holds more than {_MOST_FILES:,} data files", "name fewer, or join them")
    # Beside tables, texts are what people write about them.
    return sorted(tables or texts)


def _folders(top: Path) -> Iterator[tuple[str, list[str]]]:
    """Each folder once, links followed, with the names of its files. Raises OSError for one that cannot be listed."""

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
        yield root, names


def _unusable(error: OSError, named: str) -> Unusable:
    path = Path(error.filename or named)
    if isinstance(error, PermissionError):
        return Unusable(*not_readable(path))
    return Unusable(f"{path}: {error.strerror}")


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


def _choose(
    named: str, found: list[SetFile], split: Split, prefers: tuple[str, ...]
) -> tuple[list[SetFile], tuple[str, ...]]:
    names = list(dict.fromkeys(file.split for file in found if file.split is not None))
    unnamed = [file for file in found if file.split is None]
    if split.name is not None:
        return _of_split(named, found, names, split.name), ()
    if len(found) == 1 or not names or (len(names) == 1 and not unnamed):
        return found, ()
    taken = next((name for name in prefers if name in names), None)
    if taken is None and not (unnamed and prefers == TRAINING):
        raise Unusable(
            f"{named} holds the splits {_listed(names)}, and none is named {prefers[0]}",
            f"say split: {names[0]}",
            "split",
        )
    chosen = [file for file in found if file.split == taken]
    left_out = [file.shown for file in found if file.split != taken]
    them = ", ".join(left_out[:5]) + (f" and {len(left_out) - 5:,} more" if len(left_out) > 5 else "")
    return chosen, (f"{named}: the split {taken or 'train'} is taken; left out: {them}",)


def _of_split(named: str, found: list[SetFile], names: list[str], wanted: str) -> list[SetFile]:
    if chosen := [file for file in found if file.split == wanted]:
        return chosen
    unnamed = [file for file in found if file.split is None]
    # As Hugging Face has it, what names no split is train.
    if wanted == "train" and unnamed:
        return unnamed
    there = names + (["train"] if unnamed else [])
    raise Unusable(f"{named} has no split {wanted}; it has {_listed(there)}", did_you_mean(wanted, there), "split")


def _listed(names: list[str]) -> str:
    return ", ".join(names[:8]) or "none"
