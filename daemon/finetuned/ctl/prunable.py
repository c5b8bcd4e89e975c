"""What `prune` may delete: everything that no live job needs, with the disk it takes. Looks, and touches nothing."""

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from finetuned.core.record import Record
from finetuned.ctl.jobs import FILED, LIVE
from finetuned.ctl.words import say
from finetuned.host.claim import in_place
from finetuned.host.drops import look_at
from finetuned.host.files import is_locked
from finetuned.host.jobdir import JobDir, Unreadable
from finetuned.host.spool import Spool
from finetuned.host.store import Store

PRUNED = ".pruned"
"""Ends the name of what a prune has set aside and not yet removed."""
_STALE_SECONDS = 86400
"""Nobody builds a folder of the store for a day without writing into it."""


class Item(Record):
    """Something that can go."""

    kind: Literal["checkpoints", "job", "prepared", "leftover"]
    path: str
    size_bytes: int


def old_jobs(spool: Spool, seconds: float) -> list[JobDir]:
    """Jobs that were filed so long ago, and that no request waits for."""
    return [job for job in spool.jobs(*FILED) if _filed_seconds(job) >= seconds and not _is_asked_for(job)]


def whole_jobs(jobs: Iterable[JobDir]) -> Iterator[Item]:
    for job in jobs:
        yield _item("job", job.path, in_place(job))


def checkpoints_of(jobs: Iterable[JobDir]) -> Iterator[Item]:
    for job in jobs:
        for folder in (job.checkpoints, *job.path.glob(f".checkpoints{PRUNED}")):
            if folder.is_dir():
                yield _item("checkpoints", folder)


def interrupted_jobs(spool: Spool) -> Iterator[Item]:
    """What is left of jobs whose removal was interrupted."""
    for phase in FILED:
        for going in sorted((spool.path / phase).glob(f".*{PRUNED}")):
            yield _item("job", going)


def unnamed_prepared(spool: Spool, store: Store, seconds: float) -> list[Item]:
    """Nothing while a live job has yet to say what it uses: prepare may be about to take what stands there."""
    named = set()
    for job in spool.jobs(*LIVE):
        try:
            facts = job.read_facts()
        except Unreadable:
            facts = None
        if facts is None:
            say(f"prepared data stays for now: {job.job} is live, and has not said what it uses")
            return []
        named.add(facts.data.prepared)
    return [
        _item("prepared", folder)
        for folder in _entries(store.prepared)
        if not folder.name.startswith(".") and folder.name not in named and _seconds_since_change(folder) >= seconds
    ]


def store_leftovers(store: Store) -> Iterator[Item]:
    """What killed stages and prunes left: folders that were never finished, and locks that nobody holds."""
    for path in (entry for room in (store.models, store.data, store.prepared) for entry in _entries(room)):
        if path.suffix == PRUNED or (_is_unfinished(path) and _seconds_since_change(path) >= _STALE_SECONDS):
            yield _item("leftover", path)


def _is_unfinished(path: Path) -> bool:
    return path.name.startswith(".") and path.suffix in (".partial", ".lock") and not is_locked(lock_of(path))


def lock_of(leftover: Path) -> Path:
    """The lock that whoever builds it may hold."""
    return leftover.with_suffix(".lock")


def _filed_seconds(job: JobDir) -> float:
    """Since its result was written, by the inode's clock; a job without result is as old as its folder."""
    try:
        changed = job.result_file.stat().st_ctime
    except FileNotFoundError:
        changed = job.path.stat().st_ctime
    return time.time() - changed


def _is_asked_for(job: JobDir) -> bool:
    """A request waits for it, perhaps to resume."""
    return any((job.spool / "requests").glob(f"{job.job}.*"))


def _seconds_since_change(path: Path) -> float:
    """Of the youngest thing in it; 0 when it is gone."""
    look = look_at(path)
    return time.time() - look.newest_ctime_ns / 1e9 if look else 0.0


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _item(kind: Literal["checkpoints", "job", "prepared", "leftover"], path: Path, *more: Path) -> Item:
    return Item(kind=kind, path=str(path), size_bytes=sum(_size_of(each) for each in (path, *more)))


def _size_of(path: Path) -> int:
    """Disk taken, holes and shared blocks aside."""
    total = 0
    for root, _folders, files in os.walk(path):
        for name in files:
            try:
                total += os.lstat(os.path.join(root, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total
