"""`prune`: gives back the disk that filed jobs take. Live jobs, and what they name, are never touched."""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from finetuned.core.record import Record
from finetuned.ctl.arguments import AsJson
from finetuned.ctl.exits import ExitCode, Sorry
from finetuned.ctl.jobs import open_spool
from finetuned.ctl.prunable import (
    PRUNED,
    Item,
    checkpoints_of,
    interrupted_jobs,
    lock_of,
    old_jobs,
    store_leftovers,
    unnamed_prepared,
    whole_jobs,
)
from finetuned.ctl.words import print_json, say, size
from finetuned.host.claim import in_place
from finetuned.host.files import take_lock
from finetuned.host.jobdir import JobDir
from finetuned.host.receipts import receipts_of
from finetuned.host.spool import Busy, Spool
from finetuned.host.store import Store

_UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 604800}


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
    """Free disk: checkpoints of old filed jobs, prepared data that no live job names, what killed stages left.

    A failed job without its checkpoints can still be resumed; it begins at step 0.
    """
    spool = open_spool(ctx)
    seconds = _seconds(older_than)
    old = old_jobs(spool, seconds)
    items = [*interrupted_jobs(spool), *(whole_jobs(old) if jobs else checkpoints_of(old))]
    if not checkpoints:
        store = Store(spool.store)
        items += [*unnamed_prepared(spool, store, seconds), *store_leftovers(store)]
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


def _delete(spool: Spool, item: Item) -> bool:
    """False when it is no longer there, or somebody works on it."""
    path = Path(item.path)
    try:
        match item.kind:
            case "job":
                _delete_job(spool, path)
            case "checkpoints":
                with spool.locked(JobDir(path.parent)):
                    going = _set_aside(path)
                shutil.rmtree(going)
            case "prepared":
                shutil.rmtree(_set_aside(path))
            case "leftover":
                _delete_leftover(path)
    except Busy:
        say(f"{path} is in use; left alone")
        return False
    except FileNotFoundError:
        return False
    except PermissionError as error:
        hint = "run it as the service's user: sudo -u finetuned finetunectl prune ..."
        raise Sorry(ExitCode.UNUSABLE, f"{path} cannot be deleted: {error.strerror}", hint) from error
    return True


def _set_aside(path: Path) -> Path:
    """Rename before removing: what is half gone must not look like what it was."""
    if path.name.endswith(PRUNED):
        return path
    going = path.with_name(f".{path.name}{PRUNED}")
    os.rename(path, going)
    return going


def _delete_job(spool: Spool, path: Path) -> None:
    """Its folder goes last: while that stands, the next prune finds what is left. Raises Busy and OSError."""
    if path.name.endswith(PRUNED):
        going, job = path, JobDir(path.with_name(path.name.removeprefix(".").removesuffix(PRUNED)))
    else:
        job = JobDir(path)
        with spool.locked(job):
            going = _set_aside(path)
    for receipt in receipts_of(spool, job.job):
        receipt.unlink(missing_ok=True)
    dropped = in_place(job)
    shutil.rmtree(dropped, ignore_errors=True)
    if dropped.exists():
        # Only its owner could move it out of incoming/, and perhaps only they can empty it.
        say(f"{dropped} is for {_owner(dropped)} to remove: what was dropped as {job.job}")
    shutil.rmtree(going)


def _owner(path: Path) -> str:
    try:
        return path.owner()
    except KeyError:
        return f"uid {path.stat().st_uid}"


def _delete_leftover(path: Path) -> None:
    with _lock_held(lock_of(path)):
        if path.is_dir():
            shutil.rmtree(_set_aside(path))


@contextlib.contextmanager
def _lock_held(lock: Path) -> Iterator[None]:
    """Hold a lock of the store, and remove its file in the end. Raises Busy when somebody else holds it."""
    held = take_lock(lock)
    if held is None:
        raise Busy(str(lock))
    try:
        yield
        lock.unlink(missing_ok=True)
    finally:
        os.close(held)
