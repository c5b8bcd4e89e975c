"""From what a person types to a spool and a job: the global --spool, JOB arguments and their completion."""

import difflib
from collections.abc import Iterator
from pathlib import Path

import typer

from finetuned.core.job import Phase
from finetuned.ctl.exits import ExitCode, Sorry
from finetuned.ctl.words import printable
from finetuned.host.files import is_locked
from finetuned.host.jobdir import JobDir
from finetuned.host.settings import default_spool
from finetuned.host.spool import Spool

LIVE = (Phase.QUEUED, Phase.ACTIVE, Phase.OUTBOX)
FILED = (Phase.DONE, Phase.FAILED, Phase.CANCELLED)


def chosen_path(ctx: typer.Context) -> Path:
    """What --spool or FINETUNED_SPOOL says, else the default."""
    return (ctx.find_root().params.get("spool") or default_spool()).absolute()


def open_spool(ctx: typer.Context) -> Spool:
    """Raises Sorry when there is none."""
    path = chosen_path(ctx)
    if not (path / "incoming").is_dir():
        hint = "start one with: finetuned run; or name another with --spool or FINETUNED_SPOOL"
        raise Sorry(ExitCode.UNUSABLE, f"there is no spool at {path}", hint)
    return Spool(path)


def is_daemon_running(spool: Path) -> bool | None:
    """None when this user may not look."""
    try:
        return is_locked(spool / ".daemon.lock")
    except PermissionError:
        return None


def find_job(spool: Spool, text: str) -> JobDir:
    """The one job that `text` is a part of, by id or dropped name.

    Raises Sorry naming all that match, or the nearest where none does.
    """
    # Twice, because a job may move to a phase that was looked at a moment before.
    found = (spool.find(text) or spool.find(text)) if text else []
    if len(found) == 1:
        return found[0]
    if found:
        listed = "".join(f"\n    {job.job}  ({job.phase})" for job in found[:10])
        more = f"\n    and {len(found) - 10} more" if len(found) > 10 else ""
        raise Sorry(
            ExitCode.AMBIGUOUS_JOB,
            f"{len(found)} jobs match {printable(text)!r}:{listed}{more}",
            "type more of the id; its last 8 characters are enough",
        )
    near = _nearest(spool, text)
    hint = f"did you mean {' or '.join(near)}?" if near else "finetunectl list --all shows every job"
    raise Sorry(ExitCode.NO_SUCH_JOB, f"no job matches {printable(text)!r} in {spool.path}", hint)


def _nearest(spool: Spool, text: str) -> list[str]:
    """Ids of which some part (slug, last part, all) reads like `text`."""
    parts: dict[str, str] = {}
    for job in sorted(spool.jobs(), key=lambda job: job.job):
        for part in _parts(job.job):
            parts[part] = job.job
    near = difflib.get_close_matches(text.lower(), list(parts), n=3, cutoff=0.6)
    return list(dict.fromkeys(parts[part] for part in near))


def _parts(job: str) -> Iterator[str]:
    yield job
    words = job.split("-")
    if len(words) > 3:
        yield "-".join(words[2:-1])
        yield words[-1]


def locate(job: JobDir) -> JobDir | None:
    """The same job where it stands now; None when it is gone.

    Looks twice, because a job may move to a phase that was looked at a moment before.
    """
    for _look in range(2):
        for phase in (job.phase, *Phase):
            here = JobDir(job.spool / phase / job.job)
            if here.path.is_dir():
                return here
    return None


def complete_job(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Ids for the shell, live jobs first, with their phase as help. Silent whatever is wrong."""
    try:
        jobs = Spool(chosen_path(ctx)).jobs()
    except OSError:
        return []
    newest_first = sorted(jobs, key=lambda job: job.job, reverse=True)
    live_first = sorted(newest_first, key=lambda job: job.phase.is_terminal)
    return [(job.job, str(job.phase)) for job in live_first if job.job.startswith(incomplete)][:200]
