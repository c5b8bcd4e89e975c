"""Taking what was dropped: from incoming/ into a job of its own, exactly once, whatever it is.

The claim is one rename. Before it stands queued/JOB with claim.json; a crash in between leaves that without the drop,
and the next daemon's first scan removes it.
"""

import errno
import logging
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from finetuned.core.job import Claim, Phase
from finetuned.host.drops import READY, Look, Verdict, find_job_file, for_people, is_temporary, judge, look_at
from finetuned.host.files import (
    Untrustworthy,
    read_stranger,
    rename_durably,
    sync_directory,
    sync_stranger,
    write_whole,
)
from finetuned.host.jobdir import JobDir, write_record
from finetuned.host.settings import Settings
from finetuned.host.spool import Spool

_log = logging.getLogger(__name__)

_CLAIMS_A_SCAN = 50
"""A claim costs about 30 ms of fsync: after these, running jobs are looked after before the scan goes on."""
_RETRY_SECONDS = 30.0
_WALK_SHARE = 20.0
"""A folder is walked again after this many times what the last walk took."""


def boottime() -> float:
    """Seconds since the machine was started: no clock change moves them, and sleep counts."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass
class _Seen:
    look: Look
    since: float
    verdict: Verdict | None = None
    not_before: float = 0.0


class Arrivals:
    """Scans incoming/. What it remembers only says for how long a drop has rested: losing it costs time, no job."""

    def __init__(
        self,
        spool: Spool,
        settings: Settings,
        arrived_by_rename: Callable[[str], bool] = lambda _name: False,
        clock: Callable[[], float] = boottime,
        now: Callable[[], datetime] = utc_now,
    ):
        """`arrived_by_rename(name)`: this entry of incoming/ appeared at once, so that there is nothing to wait for."""
        self._spool, self._settings = spool, settings
        self._arrived_by_rename, self._clock, self._now = arrived_by_rename, clock, now
        self._seen: dict[str, _Seen] = {}
        self._needs_repair = True
        self.has_more = False
        """The last scan stopped early: scan again soon."""

    def claim(self) -> list[JobDir]:
        """One scan: the jobs made of what is complete, or can never be a job (those have a Claim.refusal).

        Trouble with one drop is logged and tried again later. Raises OSError only when incoming/ cannot be listed.
        """
        if self._needs_repair:
            repair_claims(self._spool)
            self._needs_repair = False
        names = [name for name in sorted(os.listdir(self._spool.incoming)) if not is_temporary(name)]
        self._seen = {name: self._seen[name] for name in names if name in self._seen}
        self.has_more = False
        claimed: list[JobDir] = []
        for name in names:
            if len(claimed) == _CLAIMS_A_SCAN:
                self.has_more = True
                break
            try:
                job = self._claim_if_ripe(name)
            except FileNotFoundError:
                continue  # Taken back by its owner between two looks.
            except OSError as error:
                self._needs_repair = True
                if name in self._seen:
                    self._seen[name].not_before = self._clock() + _RETRY_SECONDS
                _log.warning("%r in %s cannot be claimed yet: %s", name, self._spool.incoming, error)
                continue
            if job is not None:
                claimed.append(job)
        return claimed

    def _claim_if_ripe(self, name: str) -> JobDir | None:
        path = self._spool.incoming / name
        seen = self._seen.get(name)
        if seen is not None and self._clock() < seen.not_before:
            return None
        seen = self._look_again(name, seen)
        if seen is None or not self._is_ripe(path, seen):
            return None
        verdict = seen.verdict or judge(path)
        job = self._claim(path, seen.look, verdict)
        del self._seen[name]
        return job

    def _is_ripe(self, path: Path, seen: _Seen) -> bool:
        """Whether it has rested for long enough, or is known to be complete. Raises FileNotFoundError."""
        rested = self._clock() - seen.since
        if seen.look.is_folder:
            return rested >= self._settings.folder_settle_seconds or _has_ready(path)
        if self._arrived_by_rename(path.name):
            return True
        if rested < self._settings.file_settle_seconds:
            return False
        seen.verdict = seen.verdict or judge(path)
        return not seen.verdict.seems_unfinished or rested >= self._settings.arriving_seconds

    def _look_again(self, name: str, seen: _Seen | None) -> _Seen | None:
        began = self._clock()
        look = look_at(self._spool.incoming / name)
        if look is None:
            return None
        if seen is None or seen.look != look:
            seen = self._seen[name] = _Seen(look, since=began)
        seen.not_before = began + _WALK_SHARE * (self._clock() - began) if look.is_folder else 0.0
        return seen

    def _claim(self, path: Path, look: Look, verdict: Verdict) -> JobDir:
        now = self._now()
        name = for_people(path.name)
        job = JobDir(self._spool.path / Phase.QUEUED / self._spool.new_id(verdict.suffix or _stem(name, look), now))
        try:
            job.path.mkdir()
            os.chmod(job.path, 0o2750)
            claim = Claim(job=job.job, name=name, uid=look.uid, claimed=now, refusal=verdict.refusal)
            write_record(job.claim_file, claim)
            sync_directory(job.path.parent)
            _take(path, job)
        except OSError:
            remove_empty_claim(job)
            raise
        return job


def repair_claims(spool: Spool) -> None:
    """Finish or undo the claims that a crash fell into."""
    for job in spool.jobs(Phase.QUEUED):
        if os.path.lexists(job.dropped):
            continue
        if in_place(job).exists():
            _link_in_place(job)
        else:
            remove_empty_claim(job)


def remove_empty_claim(job: JobDir) -> None:
    """Remove a claim whose drop was never moved in; does nothing to anything else."""
    try:
        names = os.listdir(job.path)
        is_empty = all(name == "claim.json" or name.startswith(".claim.json.") for name in names)
        if not is_empty or os.path.lexists(in_place(job)):
            return
        for name in names:
            os.unlink(job.path / name)
        os.rmdir(job.path)
        sync_directory(job.path.parent)
    except FileNotFoundError:
        return


def in_place(job: JobDir) -> Path:
    """Where a dropped folder stands that only its owner could move out of incoming/. `job.dropped` is a link to it."""
    return job.spool / "incoming" / f".{job.job}"


def dropped_folder(job: JobDir) -> Path | None:
    """The folder that was dropped, from which relative paths in its job file start; None for a bare file."""
    return job.dropped if _is_our_folder(job) else None


def job_file(job: JobDir) -> Path:
    """The job file as a person dropped it. Raises Untrustworthy when a folder holds none, or several, and OSError."""
    folder = dropped_folder(job)
    if folder is None:
        return job.dropped
    found = find_job_file(folder)
    if found is None:
        raise Untrustworthy("is a folder without exactly one job file")
    return found


def copy_spec(job: JobDir) -> None:
    """Write spec.yaml from what was dropped. Raises Untrustworthy for what must not be read, and OSError."""
    write_whole(job.spec_file, read_stranger(job_file(job)))


def spec_changed(job: JobDir) -> bool:
    """What was dropped differs from spec.yaml; False also when the drop cannot be read any more."""
    try:
        return read_stranger(job_file(job)) != job.spec_file.read_bytes()
    except (OSError, Untrustworthy):
        return False


def _is_our_folder(job: JobDir) -> bool:
    """A folder that was moved in, or our own link to one that could not be; never a link that somebody dropped."""
    try:
        mode = os.lstat(job.dropped).st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISLNK(mode):
        return os.readlink(job.dropped) == _link_text(job) and in_place(job).is_dir()
    return stat.S_ISDIR(mode)


def _take(path: Path, job: JobDir) -> None:
    """The rename that is the claim, of what `cp` perhaps left in memory alone: the receipt says that it is safe."""
    sync_stranger(path)
    try:
        rename_durably(path, job.dropped)
    except OSError as error:
        # A directory's parent is written into it, which only its owner may do.
        if error.errno not in (errno.EACCES, errno.EPERM) or not path.is_dir() or path.is_symlink():
            raise
        rename_durably(path, in_place(job))
        _link_in_place(job)


def _link_in_place(job: JobDir) -> None:
    os.symlink(_link_text(job), job.dropped)
    sync_directory(job.path)


def _link_text(job: JobDir) -> str:
    """The same from every phase, because all of them are equally deep."""
    return f"../../incoming/.{job.job}"


def _has_ready(path: Path) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path / READY).st_mode)
    except OSError:
        return False


def _stem(name: str, look: Look) -> str:
    return name if look.is_folder else os.path.splitext(name)[0]
