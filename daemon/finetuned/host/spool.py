"""The spool directory: phases as directories of jobs, the doors, the one daemon's lock, and room kept for endings.

What comes in through the doors is claim.py's and requests.py's.
"""

import contextlib
import ctypes
import errno
import os
import re
import stat
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from finetuned.core.job import Phase, Stage
from finetuned.host.files import rename_durably, take_lock
from finetuned.host.jobdir import JobDir, Unreadable

Written = TypeVar("Written")

_DOOR_MODE = 0o3770
"""Set-group-id, and sticky: only the owner of a file, and of the door, may rename or remove it."""
_ROOM_MODE = 0o2750
_NFS_MAGIC = 0x6969
_RESERVE_BYTES = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)
_SAFE_NAME = re.compile(r"[a-z0-9-]{1,200}")
"""All that a job id is made of; nothing else is ever made part of a path."""


class SpoolUnusable(Exception):
    """No daemon can work on this spool; the message says why and what to do."""


class Busy(Exception):
    """A stage of the job holds its lock; the job stays where it is."""


@dataclass(frozen=True)
class Spool:
    path: Path
    """Absolute."""

    @property
    def incoming(self) -> Path:
        return self.path / "incoming"

    @property
    def requests(self) -> Path:
        return self.path / "requests"

    @property
    def receipts(self) -> Path:
        return self.path / "receipts"

    @property
    def store(self) -> Path:
        return self.path / "store"

    def create(self) -> None:
        """Make what is missing, with modes that do not depend on the umask. Raises SpoolUnusable."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            for path, mode in [(self.path, _ROOM_MODE), *self._rooms()]:
                _make_directory(path, mode)
        except FileExistsError as error:
            raise SpoolUnusable(f"{error.filename} is there and is not a directory") from error
        except OSError as error:
            raise SpoolUnusable(f"{error.filename or self.path} cannot be made: {error.strerror}") from error
        self._require_one_local_file_system()
        self._require_own_doors()
        self.keep_reserve()

    def take_daemon_lock(self) -> int:
        """The descriptor of the lock that one daemon a spool holds while it lives. Raises SpoolUnusable."""
        path = self.path / ".daemon.lock"
        lock = take_lock(path)
        if lock is None:
            holder = path.read_text().strip()
            raise SpoolUnusable(
                f"another finetuned daemon{f' (pid {holder})' if holder else ''} works on {self.path}; "
                "stop it, or name another spool with --spool"
            )
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        return lock

    def jobs(self, *phases: Phase) -> list[JobDir]:
        """The jobs in these phases (none named: in all), oldest first; one that moves meanwhile is listed once."""
        found = {path.name: JobDir(path) for phase in phases or Phase for path in _directories(self.path / phase)}
        return [found[job] for job in sorted(found)]

    def get(self, job: str) -> JobDir | None:
        """The job with exactly this id, wherever it stands."""
        if not _SAFE_NAME.fullmatch(job):
            return None
        candidates = (JobDir(self.path / phase / job) for phase in Phase)
        return next((candidate for candidate in candidates if candidate.path.is_dir()), None)

    def find(self, text: str) -> list[JobDir]:
        """The jobs that a person may mean: the one with this id; else those with it in their id; else in their name."""
        if exact := self.get(text):
            return [exact]
        jobs = self.jobs()
        wanted = text.casefold()
        by_id = [job for job in jobs if wanted in job.job]
        return by_id or [job for job in jobs if wanted in _dropped_name(job).casefold()]

    def move(self, job: JobDir, phase: Phase) -> JobDir:
        """Move a job of which no stage runs to another phase; durable on return. Raises Busy or OSError."""
        target = JobDir(self.path / phase / job.job)
        if target.path.exists():
            raise FileExistsError(errno.EEXIST, "a job with this id stands there already", str(target.path))
        with self.locked(job):
            _make_directory(target.path.parent, _ROOM_MODE)  # Somebody may have tidied up.
            rename_durably(job.path, target.path)
        return target

    @contextlib.contextmanager
    def locked(self, job: JobDir) -> Iterator[None]:
        """Hold the locks of all stages, so that none can start. Raises Busy when one runs."""
        held: list[int] = []
        try:
            for stage in Stage:
                lock = take_lock(job.lock_file(stage))
                if lock is None:
                    raise Busy(f"{stage} of {job.job} still runs")
                held.append(lock)
            yield
        finally:
            for lock in held:
                os.close(lock)

    def new_id(self, name: str, now: datetime) -> str:
        """An id that no job here has: it sorts by time, says something of the name, and ends in 32 random bits."""
        while True:
            job = f"{now.astimezone(UTC):%Y%m%d-%H%M%S}-{slug(name)}-{os.urandom(4).hex()}"
            if self.get(job) is None:
                return job

    def with_reserve(self, write: Callable[[], Written]) -> Written:
        """Do a write that must not fail for want of room: when the disk is full, give up the reserve and try again."""
        try:
            return write()
        except OSError as error:
            if error.errno not in _FULL:
                raise
        self._reserve.unlink(missing_ok=True)
        return write()

    def keep_reserve(self) -> bool:
        """Set room aside for endings where there is none yet and plenty is left; whether it is there."""
        if self._reserve.exists():
            return True
        disk = os.statvfs(self.path)
        if disk.f_bavail * disk.f_frsize < 2 * _RESERVE_BYTES:
            return False
        try:
            descriptor = os.open(self._reserve, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, _RESERVE_BYTES)
            finally:
                os.close(descriptor)
        except OSError:
            self._reserve.unlink(missing_ok=True)
            return False
        return True

    @property
    def _reserve(self) -> Path:
        return self.path / ".reserve"

    def _rooms(self) -> list[tuple[Path, int]]:
        doors = [(door, _DOOR_MODE) for door in (self.incoming, self.requests)]
        stores = [self.store, *(self.store / name for name in ("models", "data", "prepared"))]
        return doors + [
            (room, _ROOM_MODE) for room in (self.receipts, *stores, *(self.path / phase for phase in Phase))
        ]

    def _require_one_local_file_system(self) -> None:
        if _file_system_magic(self.path) == _NFS_MAGIC:
            raise SpoolUnusable(
                f"{self.path} is on NFS, where neither locks nor renames are certain; choose a local disk with --spool"
            )
        device = self.path.stat().st_dev
        for path, _mode in self._rooms():
            if path.stat().st_dev != device:
                raise SpoolUnusable(
                    f"{path} is on another file system than {self.path}; "
                    "jobs are moved by renaming, so the whole spool must be on one"
                )

    def _require_own_doors(self) -> None:
        for door in (self.incoming, self.requests):
            owner = door.stat().st_uid
            if os.geteuid() not in (0, owner):
                raise SpoolUnusable(
                    f"{door} belongs to uid {owner} and this daemon runs as uid {os.geteuid()}; "
                    f"only its owner may take what others drop: chown {os.geteuid()} {door}"
                )


def slug(name: str) -> str:
    """What a job id keeps of a dropped name: a-z, 0-9 and single dashes, at most 40 of them."""
    ascii_name = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "-", ascii_name.lower()).strip("-")[:40].strip("-") or "job"


def _make_directory(path: Path, mode: int) -> None:
    """One that is there keeps its mode: it may be its owner's choice."""
    try:
        path.mkdir()
    except FileExistsError:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            raise
        return
    os.chmod(path, mode)


def _directories(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            return [path / entry.name for entry in entries if _is_job_directory(entry)]
    except FileNotFoundError:
        return []


def _is_job_directory(entry: os.DirEntry[str]) -> bool:
    return not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)


def _dropped_name(job: JobDir) -> str:
    try:
        claim = job.read_claim()
    except Unreadable:
        return ""
    return claim.name if claim else ""


def _file_system_magic(path: Path) -> int:
    """What statfs(2) says the file system is; the first word of its answer."""
    answer = ctypes.create_string_buffer(256)
    if ctypes.CDLL(None, use_errno=True).statfs(os.fsencode(path), answer) != 0:
        raise SpoolUnusable(f"{path}: {os.strerror(ctypes.get_errno())}")
    return int.from_bytes(answer.raw[: ctypes.sizeof(ctypes.c_long)], "little")
