"""What lies in incoming/: whether it has changed since the last look, and whether it is, or can become, a job.

Names and contents are strangers': names are never put into a path of ours, contents are read without following links.
"""

import contextlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from finetuned.core.problems import InvalidSpec, Problem
from finetuned.core.spec import parse_spec
from finetuned.host.files import Untrustworthy, read_stranger

JOB_FILES = ("job.yaml", "job.yml", "job.json")
READY = "READY"
"""Written last into a folder by who wants it taken at once."""

_SUFFIXES = (".yaml", ".yml", ".json")
_TEMPORARY = (".tmp", ".part", ".partial", ".filepart", ".swp", "~")


def is_temporary(name: str) -> bool:
    """Named like something that an upload or an editor will rename when it is done."""
    return name.startswith(".") or name.lower().endswith(_TEMPORARY)


def for_people(name: str) -> str:
    """A name from a directory listing as text that can be written to a file: undecodable bytes become U+FFFD."""
    return os.fsencode(name).decode(errors="replace")


@dataclass(frozen=True)
class Look:
    """How a dropped thing looked. Equal looks: nothing about it has changed in between."""

    is_folder: bool
    uid: int
    inode: int
    size_bytes: int
    newest_ctime_ns: int
    """Of a folder: the newest in its whole tree."""
    entries: int


def look_at(path: Path) -> Look | None:
    """None when it is gone. Walks the whole tree of a folder, as far as it may be read."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    if not stat.S_ISDIR(found.st_mode):
        return Look(False, found.st_uid, found.st_ino, found.st_size, found.st_ctime_ns, 1)
    newest, entries, size_bytes = found.st_ctime_ns, 1, 0
    folders = [os.fspath(path)]
    while folders:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as inside:
            for entry in inside:
                details = entry.stat(follow_symlinks=False)
                newest = max(newest, details.st_ctime_ns)
                entries, size_bytes = entries + 1, size_bytes + details.st_size
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
    return Look(True, found.st_uid, found.st_ino, size_bytes, newest, entries)


@dataclass(frozen=True)
class Verdict:
    refusal: Problem | None = None
    """Why this can never be a job; None for what is claimed as one, whatever its spec says."""
    seems_unfinished: bool = False
    """More of it may be on its way, unless it is known to be complete."""
    suffix: str | None = None
    """The name that its job file asks for."""


def judge(path: Path) -> Verdict:
    """What to make of a dropped thing that has come to rest. Raises FileNotFoundError when it is gone."""
    name = for_people(path.name)
    mode = os.lstat(path).st_mode
    if stat.S_ISDIR(mode):
        return _judge_folder(path, name)
    if stat.S_ISREG(mode) and not path.name.lower().endswith(_SUFFIXES):
        what = "is not named like a job file"
        return Verdict(Problem(place=name, what=what, hint="name it NAME.yaml or NAME.json"), seems_unfinished=True)
    return _judge_file(path, name)


def find_job_file(folder: Path) -> Path | None:
    """The job file of a dropped folder; None when it holds none, or several. Raises OSError."""
    found = [folder / name for name in sorted(os.listdir(folder)) if name in JOB_FILES]
    return found[0] if len(found) == 1 else None


def _judge_folder(path: Path, name: str) -> Verdict:
    try:
        present = [entry for entry in sorted(os.listdir(path)) if entry in JOB_FILES]
    except PermissionError:
        hint = "chmod -R g+rX the folder, or drop a copy of it"
        return Verdict(Problem(place=name, what="cannot be read by the service's user", hint=hint))
    if not present:
        what = "is a folder without a job.yaml"
        return Verdict(Problem(place=name, what=what, hint="put the job file into it as job.yaml, and drop it again"))
    if len(present) > 1:
        what = f"holds several job files: {', '.join(present)}"
        return Verdict(Problem(place=name, what=what, hint="keep one of them"))
    return _judge_file(path / present[0], f"{name}/{present[0]}")


def _judge_file(path: Path, name: str) -> Verdict:
    try:
        content = read_stranger(path)
    except Untrustworthy as error:
        return Verdict(Problem(place=name, what=str(error), hint=error.hint))
    if not content:
        hint = "copy it again; if it should not be empty, its disk may have been full"
        return Verdict(Problem(place=name, what="is empty", hint=hint), seems_unfinished=True)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        what = f"is not text in UTF-8 (byte {error.start:,} is 0x{content[error.start]:02x})"
        return Verdict(Problem(place=name, what=what, hint="save it as UTF-8 text"), seems_unfinished=True)
    if "\0" in text:
        what = f"is not a text file (byte {content.index(0):,} is zero)"
        return Verdict(Problem(place=name, what=what, hint="drop a YAML or JSON file"), seems_unfinished=True)
    try:
        return Verdict(suffix=parse_spec(text, name).spec.suffix)
    except InvalidSpec:
        return Verdict(seems_unfinished=True)
