"""Files that survive a crash: written whole then renamed, appended and synced, locked, opened without trust."""

import contextlib
import errno
import fcntl
import os
import stat
import struct
from pathlib import Path

MAX_STRANGER_BYTES = 1 << 20


class Untrustworthy(Exception):
    """A file dropped by a stranger that must not be read; the message says why, the hint what to do."""

    def __init__(self, what: str, hint: str = ""):
        self.hint = hint
        super().__init__(what)


def sync_file(path: Path) -> None:
    """Make the contents of a file that somebody else has written durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Make names created, renamed or removed in `path` durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, content: bytes, mode: int = 0o640) -> None:
    """Replace `path` by `content`: readers see all of it or none, also after a power cut.

    Raises OSError; then the old file, if any, stands unchanged and no temporary file is left behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if error.filename is None:  # A full disk refuses a write, which knows no names.
            error.filename = os.fspath(path)
        raise
    sync_directory(path.parent)


def bytes_below(folder: Path) -> int:
    """The size of all files in a folder, some of which may be renamed or removed meanwhile; 0 where there is none."""
    found = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                found += os.stat(os.path.join(parent, name)).st_size
    return found


def rename_durably(source: Path, target: Path) -> None:
    """Rename within one file system and make both directories durable."""
    os.rename(source, target)
    sync_directory(target.parent)
    if source.parent != target.parent:
        sync_directory(source.parent)


def read_stranger(path: Path) -> bytes:
    """The bytes of a small regular file that somebody else dropped; no link is followed, no fifo waited for.

    Raises Untrustworthy for anything else, and FileNotFoundError when it is gone.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError as error:
        raise Untrustworthy(
            "cannot be read by the service's user", "chmod g+r the file, or drop a copy of it"
        ) from error
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Untrustworthy("is a symbolic link; links are not followed", "drop the file itself") from error
        if error.errno == errno.ENXIO:
            raise Untrustworthy("is not a regular file", "drop a YAML or JSON file") from error
        raise
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise Untrustworthy("is not a regular file", "drop a YAML or JSON file")
        if found.st_nlink > 1:
            # Whoever may only write names in a directory can plant a second one of a file that they may not read.
            raise Untrustworthy(f"has {found.st_nlink} names (hard links)", "drop a copy of the file")
        if found.st_size > MAX_STRANGER_BYTES:
            raise _too_large(f"{found.st_size:,}")
        with os.fdopen(os.dup(descriptor), "rb") as file:
            content = file.read(MAX_STRANGER_BYTES + 1)
        if len(content) > MAX_STRANGER_BYTES:
            raise _too_large(f"more than {MAX_STRANGER_BYTES:,}")
        return content
    finally:
        os.close(descriptor)


def sync_stranger(path: Path) -> None:
    """Make durable what somebody else dropped: a file, or a folder with all that is in it.

    What is neither, or cannot be read, is left out; no link is followed, no fifo waited for. Raises OSError of fsync.
    """
    for folder, _, names in os.walk(path):
        for name in names:
            _sync_if_possible(os.path.join(folder, name))
        _sync_if_possible(folder)
    _sync_if_possible(os.fspath(path))


def _sync_if_possible(path: str) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _too_large(found: str) -> Untrustworthy:
    return Untrustworthy(
        f"is {found} bytes; a job file is at most {MAX_STRANGER_BYTES:,} bytes",
        "data belongs in files that the job names under datasets",
    )


# struct flock of 64-bit Linux: type, whence, start, length, pid.
_FLOCK = struct.Struct("hhqqi4x")


def take_lock(path: Path, byte: int = 0) -> int | None:
    """Take the OFD write lock on one byte of `path`; the descriptor that holds it, or None when another holds it.

    The lock lives as long as any process has the returned descriptor open. It cannot be taken by readers of the file.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0))
    except OSError as error:
        os.close(descriptor)
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return None
        raise
    return descriptor


def is_locked(path: Path, byte: int = 0) -> bool:
    """Whether somebody holds the lock on that byte; asks without taking it, and needs only to read the file.

    A missing file is not locked.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0))
    finally:
        os.close(descriptor)
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)
