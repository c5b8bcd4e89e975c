"""Into `incoming/`: a file that appears whole under a name of its own, or a folder with the files it needs."""

import ctypes
import errno
import glob
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from finetuned.ctl.access import pattern_matches
from finetuned.ctl.edit import rewrite_paths
from finetuned.ctl.exits import ExitCode, Sorry
from finetuned.ctl.words import size
from finetuned.host.drops import JOB_FILES, READY, is_temporary

_AT_FDCWD, _RENAME_NOREPLACE = -100, 1
_libc = ctypes.CDLL(None, use_errno=True)


def drop_file(incoming: Path, name: str, text: str) -> Path:
    """Drop `text` as `name`, or as name-2, name-3, … while that one is still waiting there."""
    temporary = incoming / f".submit-{secrets.token_hex(8)}.tmp"
    try:
        _write(temporary, encoded(text))
        return _appear(temporary, incoming, name)
    finally:
        temporary.unlink(missing_ok=True)


def drop_folder(incoming: Path, name: str, text: str, packed: list[Path]) -> tuple[Path, str]:
    """Drop a folder with job.yaml and copies of `packed`, which `text` names; its path and the job file's text.

    READY is written last. Raises Sorry when the copies would not fit.
    """
    _require_room(incoming, packed)
    stem, suffix = os.path.splitext(name)
    temporary = incoming / f".submit-{secrets.token_hex(8)}.tmp"
    try:
        _make_folder(temporary)
        inside = _copy_all(packed, temporary)
        spec = rewrite_paths(text, lambda _field, path: inside.get(Path(path.removeprefix("file:")), path))
        _write(temporary / ("job.json" if suffix == ".json" else "job.yaml"), encoded(spec))
        _write(temporary / READY, b"")
        return _appear(temporary, incoming, f"{stem}-job" if is_temporary(stem) else stem), spec
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def encoded(text: str) -> bytes:
    """Raises Sorry for a path whose bytes are no UTF-8: a text file cannot hold it."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        what = "this job names a path that is not UTF-8, which a job file cannot hold"
        raise Sorry(ExitCode.REFUSED, what, "rename the file") from error


def _appear(temporary: Path, incoming: Path, name: str) -> Path:
    for candidate in _names(name):
        if _rename_to_new(temporary, incoming / candidate):
            return incoming / candidate
    raise Sorry(ExitCode.REFUSED, f"{incoming} is full of {name}", "give this one another name: --name")


def _names(name: str) -> Iterator[str]:
    yield name
    stem, suffix = os.path.splitext(name)
    for number in range(2, 1000):
        yield f"{stem}-{number}{suffix}"


def _rename_to_new(source: Path, target: Path) -> bool:
    """Rename, unless something has that name: another job that waits there must not vanish under this one."""
    if _libc.renameat2(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), _RENAME_NOREPLACE) == 0:
        return True
    number = ctypes.get_errno()
    if number == errno.EEXIST:
        return False
    if number not in (errno.EINVAL, errno.ENOSYS):
        raise OSError(number, os.strerror(number), str(target))
    # This file system knows no such rename; the moment between the look and the rename is all that is lost.
    if os.path.lexists(target):
        return False
    os.rename(source, target)
    return True


def _write(path: Path, content: bytes) -> None:
    """Readable by the group, which the door hands down to the service, whatever this person's umask is."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
    with open(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o640)
        file.write(content)
        file.flush()
        os.fsync(descriptor)


def _make_folder(path: Path) -> None:
    """With the group of the folder above it, open to that group."""
    path.mkdir()
    path.chmod((path.stat().st_mode & 0o2000) | 0o750)


def _copy_all(packed: list[Path], into: Path) -> dict[Path, str]:
    """Path as the job names it → the copy's path inside `into`."""
    inside: dict[Path, str] = {}
    for source in packed:
        matches = pattern_matches(source)
        base = _before_pattern(source) if matches else source
        name = _free_name(re.sub(r"[^\w.-]", "_", base.name).lstrip(".") or "file", into)
        if matches:
            _copy_matches(matches, base, into / name)
        elif source.is_dir():
            _copy_folder(source, into / name)
        else:
            _copy(source, into / name)
        inside[source] = f"./{name}/{source.relative_to(base)}" if matches else f"./{name}"
    return inside


def _before_pattern(pattern: Path) -> Path:
    """The folder that every match of a pattern lies in."""
    return next(parent for parent in pattern.parents if not glob.has_magic(str(parent)))


def _copy_matches(matches: list[Path], base: Path, target: Path) -> None:
    _make_folder(target)
    for match in matches:
        for folder in reversed(match.relative_to(base).parents[:-1]):
            if not (target / folder).exists():
                _make_folder(target / folder)
        copy = target / match.relative_to(base)
        if match.is_dir():
            _copy_folder(match, copy)
        else:
            _copy(match, copy)


def _free_name(name: str, into: Path) -> str:
    taken = {*JOB_FILES, READY, *os.listdir(into)}
    return next(candidate for candidate in _names(name) if candidate not in taken)


def _copy_folder(source: Path, target: Path) -> None:
    _make_folder(target)
    for entry in sorted(source.iterdir()):
        if entry.is_dir():
            _copy_folder(entry, target / entry.name)
        elif entry.is_file():
            _copy(entry, target / entry.name)


def _copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
    target.chmod(0o640)


def _require_room(incoming: Path, packed: list[Path]) -> None:
    needed = sum(_size_of(path) for path in packed)
    free = shutil.disk_usage(incoming).free
    if needed > free:
        what = f"copying what the service's user cannot read takes {size(needed)}; {incoming} has {size(free)} free"
        raise Sorry(
            ExitCode.REFUSED, what, "move the files to /srv/finetuned/data, or let the service's user read them"
        )


def _size_of(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else pattern_matches(path) or (path,)
    return sum(file.stat().st_size for file in files if file.is_file())
