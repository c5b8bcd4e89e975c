"""`cancel`, `hold`, `release`, `resume`: empty files in `requests/`, which the daemon moves into their jobs."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path

import typer

from finetuned.core.job import Phase, Wish
from finetuned.ctl.arguments import JobTexts
from finetuned.ctl.exits import ExitCode, Sorry
from finetuned.ctl.jobs import find_job, is_daemon_running, open_spool
from finetuned.ctl.words import say
from finetuned.host.jobdir import JobDir

Objection = tuple[str, str]
"""Why a request makes no sense, and what to do instead."""


def cancel(ctx: typer.Context, jobs: JobTexts) -> None:
    """End jobs. What runs is stopped first; a finished job stays as it is."""
    _ask(ctx, jobs, "cancel", _against_cancel)


def hold(ctx: typer.Context, jobs: JobTexts) -> None:
    """Put jobs on hold: a running one saves a checkpoint and stops, and none starts until it is released."""
    _ask(ctx, jobs, "hold", _against_hold)


def release(ctx: typer.Context, jobs: JobTexts) -> None:
    """Let held jobs go on."""
    _ask(ctx, jobs, "release", _against_release)


def resume(ctx: typer.Context, jobs: JobTexts) -> None:
    """Queue failed or cancelled jobs again; they go on from their newest whole checkpoint."""
    _ask(ctx, jobs, "resume", _against_resume)


def _ask(ctx: typer.Context, texts: list[str], verb: str, against: Callable[[JobDir], Objection | None]) -> None:
    """Write all requests, or none when one of the jobs is unknown or cannot be asked that."""
    spool = open_spool(ctx)
    jobs = list(dict.fromkeys(find_job(spool, text) for text in texts))
    for job in jobs:
        if objection := against(job):
            what, hint = objection
            raise Sorry(ExitCode.REFUSED, f"{job.job} {what}", hint)
    for job in jobs:
        _write_request(spool.requests, f"{job.job}.{verb}")
        typer.echo(job.job)
    if is_daemon_running(spool.path) is False:
        say(f"no daemon is running on {spool.path}; the request waits until one is")


def _write_request(requests: Path, name: str) -> None:
    """Appears under its final name at once, so that the daemon never sees half of it."""
    temporary = requests / f".{name}.{secrets.token_hex(4)}.tmp"
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o660))
    try:
        os.rename(temporary, requests / name)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _has_ended(job: JobDir) -> Objection | None:
    if job.phase is Phase.DONE:
        return "has succeeded already; its artifacts are there", f"finetunectl get {job.job} DEST"
    if job.phase.is_terminal:
        return f"has ended already ({job.phase})", f"finetunectl resume {job.job} queues it again"
    return None


def _against_cancel(job: JobDir) -> Objection | None:
    return _has_ended(job)


def _against_hold(job: JobDir) -> Objection | None:
    if job.phase is Phase.OUTBOX:
        return "has just ended; there is nothing to hold", f"finetunectl status {job.job} shows how"
    if Wish.HOLD in job.wishes():
        return "is on hold already", f"finetunectl release {job.job} lets it go on"
    return _has_ended(job)


def _against_release(job: JobDir) -> Objection | None:
    if ended := _has_ended(job):
        return ended
    if Wish.HOLD not in job.wishes() and not _is_asked(job, "hold"):
        return "is not on hold", f"finetunectl status {job.job} shows what it waits for"
    return None


def _is_asked(job: JobDir, verb: str) -> bool:
    """The request is written and not yet moved into the job."""
    return (job.spool / "requests" / f"{job.job}.{verb}").exists()


def _against_resume(job: JobDir) -> Objection | None:
    if job.phase is Phase.DONE:
        return "has succeeded; there is nothing to resume", f"finetunectl resubmit {job.job} runs it anew"
    if job.phase is Phase.OUTBOX:
        return "has just ended and is being filed", "ask again in a moment"
    if Wish.HOLD in job.wishes() and not job.phase.is_terminal:
        return "is on hold, which resume does not end", f"finetunectl release {job.job}"
    if not job.phase.is_terminal:
        return f"is {job.phase} already; only a failed or cancelled job can be resumed", f"finetunectl status {job.job}"
    return None
