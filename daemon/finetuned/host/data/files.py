"""Which files a set of rows is: a file, a folder, or a pattern; of several splits the one that is asked for."""

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from glob import escape, glob, has_magic
from pathlib import Path, PurePath

from finetuned.core.spec import Dataset
from finetuned.host.data.folder import FolderFile, LeftOut, files_in, require_utf8, spelled
from finetuned.host.data.split import Split, read_split, split_of
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

_EXPECTED = "a file of rows"


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
        found, left_out = _found(dataset.path, folder)
    except OSError as error:
        raise _unusable(error, dataset.path) from error
    chosen, notices = _choose(dataset.path, found, split, prefers)
    for file in chosen:
        require_file(file.path, _EXPECTED)
    return SetFiles(tuple(chosen), split, (*notices, *_left_out(dataset.path, left_out)))


def _found(named: str, folder: Path | None) -> tuple[list[SetFile], LeftOut]:
    path = locate(named, folder)
    if has_magic(named) and not os.path.lexists(path):
        return list(_matches(named, path, folder)), LeftOut()
    if stat.S_ISDIR(look_at(path).st_mode):
        inside = files_in(path)
        return list(_inside(named, path, folder, inside.files)), inside.left_out
    require_file(path, _EXPECTED)
    return [SetFile(named, path, split_of(PurePath(path.name)))], LeftOut()


def _matches(named: str, pattern: Path, folder: Path | None) -> Iterator[SetFile]:
    """`pattern` is what is named, as an absolute path for messages; a dropped folder's own name is no pattern."""
    top = None if os.path.isabs(named) or folder is None else folder.resolve()
    still = PurePath(named)
    while has_magic(str(still)):
        still = still.parent
    start = Path(top or "/", still)
    look_at(start)
    matches = [Path(top or "/", match) for match in sorted(glob(named, root_dir=top, recursive=True))]
    found = [path for path in matches if not path.is_dir()]
    if not found:
        raise Unusable(f"no file matches {pattern}", _bracket_hint(pattern) or _nearest_match(pattern, start))
    for path in found:
        require_utf8(path)
        if top is not None:
            require_inside(path, top, str(path))
        yield SetFile(str(path if top is None else path.relative_to(top)), path, _split_in(path, start))


def _bracket_hint(pattern: Path) -> str:
    """Where a folder's own name reads as a pattern: how to write it."""
    real = next((above for above in pattern.parents if os.path.lexists(above)), Path("/"))
    if not has_magic(str(real)):
        return ""
    meant = Path(escape(str(real)), pattern.relative_to(real))
    return f"{real} is a folder whose name reads as a pattern; write {meant}"


def _nearest_match(pattern: Path, start: Path) -> str:
    name = pattern.name.replace("*", "").replace("?", "")
    return nearest_name(start / name) if pattern.parent == start else ""


def _split_in(path: Path, top: Path) -> str | None:
    return split_of(path.relative_to(top))


def _inside(named: str, top: Path, folder: Path | None, files: Iterable[FolderFile]) -> Iterator[SetFile]:
    for file in files:
        require_utf8(file.path)
        shown = os.path.join(named, file.path.relative_to(top))
        if not os.path.isabs(named) and folder is not None:
            require_inside(file.path, folder, shown)
        yield SetFile(shown, file.path, file.split or _split_in(file.path, top))


def _left_out(named: str, left_out: LeftOut) -> tuple[str, ...]:
    if not left_out.count:
        return ()
    names = ", ".join(spelled(path) for path in left_out.first)
    more = left_out.count - len(left_out.first)
    return (f"{named}: left out, being no files of rows: {names}" + (f" and {more:,} more" if more else ""),)


def _unusable(error: OSError, named: str) -> Unusable:
    path = Path(error.filename or named)
    if isinstance(error, PermissionError):
        return Unusable(*not_readable(path))
    return Unusable(f"{path}: {error.strerror}")


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
