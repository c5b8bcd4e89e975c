"""`prune`: gives back the disk that filed jobs take. Live jobs, and what they name, are never touched."""

import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import typer

from finetuned.core.record import Record
from finetuned.ctl.arguments import AsJson
from finetuned.ctl.exits import ExitCode, Sorry
from finetuned.ctl.jobs import FILED, LIVE, open_spool
from finetuned.ctl.words import print_json, say, size
from finetuned.host.claim import in_place
from finetuned.host.jobdir import JobDir, Unreadable
from finetuned.host.spool import Busy, Spool
from finetuned.host.store import Store

_UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 604800}


class Item(Record):
    """Something that can go."""

    kind: Literal["checkpoints", "job", "prepared"]
    path: str
    size_bytes: int


class Pruned(Record):
    """`finetunectl prune --json`."""

    deleted: bool
    """False: nothing was touched; this is what --yes would delete."""
    size_bytes: int
    items: tuple[Item, ...]


def prune(
    ctx: typer.Context,
    older_than: Annotated[str, typer.Option(metavar="AGE", help="Of jobs filed so long ago: 12h, 30d, 2w.")] = "30d",
    checkpoints: Annotated[bool, typer.Option("--checkpoints", help="Checkpoints of filed jobs alone.")] = False,
    jobs: Annotated[bool, typer.Option("--jobs", help="Whole filed jobs, artifacts included.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Delete; without it, only show what would go.")] = False,
    as_json: AsJson = False,
) -> None:
    """Free disk: checkpoints of old filed jobs, and prepared data that no live job names.

    A failed job without its checkpoints can still be resumed; it begins at step 0.
    """
    spool = open_spool(ctx)
    seconds = _seconds(older_than)
    old = [job for job in spool.jobs(*FILED) if _filed_seconds(job) >= seconds and not _is_asked_for(job)]
    items = [*_left_over(spool), *(_whole_jobs(old) if jobs else _checkpoints(old))]
    if not checkpoints:
        items += _unnamed_prepared(spool, Store(spool.store), seconds)
    if yes:
        items = [item for item in items if _delete(spool, item)]
    pruned = Pruned(deleted=yes, size_bytes=sum(item.size_bytes for item in items), items=tuple(items))
    if as_json:
        print_json(pruned)
        return
    for item in items:
        typer.echo(f"{item.size_bytes}\t{item.path}")
    if not items:
        say(f"nothing to free that is older than {older_than}")
    elif yes:
        say(f"freed {size(pruned.size_bytes)}")
    else:
        say(f"would free {size(pruned.size_bytes)}; nothing was deleted: repeat with --yes")


def _seconds(age: str) -> float:
    match = re.fullmatch(r"(\d+)\s*([mhdw])", age.strip())
    if match is None:
        raise Sorry(ExitCode.USAGE, f"--older-than {age} is not an age", "write for example 12h, 30d or 2w")
    return int(match[1]) * _UNITS[match[2]]


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


def _left_over(spool: Spool) -> Iterator[Item]:
    """What an interrupted prune had renamed and not yet removed."""
    for phase in FILED:
        for going in sorted((spool.path / phase).glob(".*.pruned")):
            yield Item(kind="job", path=str(going), size_bytes=_size_of(going))


def _checkpoints(jobs: list[JobDir]) -> Iterator[Item]:
    for job in jobs:
        for folder in (job.checkpoints, *job.path.glob(".checkpoints.pruned")):
            if folder.is_dir():
                yield Item(kind="checkpoints", path=str(folder), size_bytes=_size_of(folder))


def _whole_jobs(jobs: list[JobDir]) -> Iterator[Item]:
    for job in jobs:
        yield Item(kind="job", path=str(job.path), size_bytes=_size_of(job.path))


def _unnamed_prepared(spool: Spool, store: Store, seconds: float) -> list[Item]:
    """Nothing while a live job has yet to say what it uses: prepare may be about to take what stands there."""
    if not store.prepared.is_dir():
        return []
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
        Item(kind="prepared", path=str(folder), size_bytes=_size_of(folder))
        for folder in sorted(store.prepared.iterdir())
        if folder.name not in named and time.time() - folder.stat().st_ctime >= seconds
    ]


def _size_of(folder: Path) -> int:
    """Disk taken, holes and shared blocks aside."""
    total = 0
    for root, _folders, files in os.walk(folder):
        for name in files:
            try:
                total += os.lstat(os.path.join(root, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total


def _delete(spool: Spool, item: Item) -> bool:
    """Rename under the job's locks, as whoever moves it does, then remove. False when the job is no longer there."""
    path = Path(item.path)
    going = path.with_name(f".{path.name}.pruned")
    try:
        if item.kind == "prepared":
            os.rename(path, going)
        else:
            with spool.locked(JobDir(path if item.kind == "job" else path.parent)):
                os.rename(path, going)
        shutil.rmtree(going)
        if item.kind == "job":
            # Best effort: what a person dropped as a folder may have stayed in incoming/, and belong to them.
            shutil.rmtree(in_place(JobDir(path)), ignore_errors=True)
    except Busy:
        say(f"{path} is in use; left alone")
        return False
    except FileNotFoundError:
        return False
    except PermissionError as error:
        hint = "run it as the service's user: sudo -u finetuned finetunectl prune ..."
        raise Sorry(ExitCode.UNUSABLE, f"{path} cannot be deleted: {error.strerror}", hint) from error
    return True
