"""What `doctor` looks at in the spool: doors, daemon, disk, what waits outside, unreadable jobs."""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from finetuned.core.durations import in_words
from finetuned.ctl.facts import Check
from finetuned.ctl.jobs import is_daemon_running
from finetuned.ctl.sight import look_at_job
from finetuned.ctl.words import size
from finetuned.host.spool import Spool

_LOW_DISK_BYTES, _NO_DISK_BYTES = 20 << 30, 1 << 30
_LONG_ARRIVING_SECONDS = 300


def check_spool(path: Path) -> Iterator[Check]:
    if not (path / "incoming").is_dir():
        hint = "start one with: finetuned run; or name another with --spool or FINETUNED_SPOOL"
        yield Check(name="spool", state="fail", what=f"there is no spool at {path}", hint=hint)
        return
    yield _doors(path)
    yield _daemon(path)
    yield _disk(path)
    yield from _arrivals(path)
    yield _jobs(path)


def _doors(path: Path) -> Check:
    closed = [door for door in ("incoming", "requests") if not os.access(path / door, os.W_OK | os.X_OK)]
    if not closed:
        return Check(name="spool", state="ok", what=f"{path}, open to you")
    group = _group_of(path)
    return Check(
        name="spool",
        state="fail",
        what=f"{path}: you may not write into {' and '.join(closed)}",
        hint=f"join the group and log in again: sudo usermod -aG {group} $USER",
    )


def _group_of(path: Path) -> str:
    try:
        return (path / "incoming").group()
    except KeyError:
        return str((path / "incoming").stat().st_gid)


def _daemon(path: Path) -> Check:
    running = is_daemon_running(path)
    if running:
        return Check(name="daemon", state="ok", what="running")
    if running is None:
        return Check(name="daemon", state="warn", what="you may not look whether it runs")
    hint = f"finetuned run --spool {path}"
    return Check(name="daemon", state="fail", what="no daemon is running on this spool", hint=hint)


def _disk(path: Path) -> Check:
    usage = shutil.disk_usage(path)
    what = f"{size(usage.free)} of {size(usage.total)} free"
    hint = "finetunectl prune shows what can go"
    if usage.free < _NO_DISK_BYTES:
        return Check(name="disk", state="fail", what=what, hint=hint)
    if usage.free < _LOW_DISK_BYTES:
        return Check(name="disk", state="warn", what=what, hint=hint)
    return Check(name="disk", state="ok", what=what)


def _arrivals(path: Path) -> Iterator[Check]:
    """What lies in incoming/ and is not claimed although a daemon runs."""
    try:
        waiting = [entry for entry in os.scandir(path / "incoming") if not entry.name.startswith(".")]
        old = [entry.name for entry in waiting if time.time() - _changed(entry) > _LONG_ARRIVING_SECONDS]
    except PermissionError:
        return
    if old and is_daemon_running(path):
        what = f"{len(old)} waiting in incoming/ for more than {in_words(_LONG_ARRIVING_SECONDS)}, e.g. {old[0]}"
        yield Check(name="incoming", state="warn", what=what, hint="the daemon's log says why each is not claimed")


def _changed(entry: "os.DirEntry[str]") -> float:
    try:
        return entry.stat(follow_symlinks=False).st_ctime
    except FileNotFoundError:
        return time.time()


def _jobs(path: Path) -> Check:
    try:
        jobs = Spool(path).jobs()
        unreadable = [job for job in jobs if not job.phase.is_terminal and look_at_job(job).unreadable]
    except PermissionError as error:
        hint = f"join the group and log in again: sudo usermod -aG {_group_of(path)} $USER"
        return Check(name="jobs", state="fail", what=f"you may not read {error.filename}", hint=hint)
    if unreadable:
        what = f"{len(unreadable)} of {len(jobs)} cannot be read: {', '.join(job.job for job in unreadable[:3])}"
        hint = f"finetunectl status {unreadable[0].job} says which file; mend it, or move the folder out of the spool"
        return Check(name="jobs", state="fail", what=what, hint=hint)
    return Check(name="jobs", state="ok", what=f"{len(jobs)}, all readable")
