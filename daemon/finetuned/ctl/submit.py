"""`submit` and `resubmit`: check, pin, pack, drop, and tell under which id the daemon took it."""

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from finetuned.core.job import Outcome, Phase, Result
from finetuned.core.problems import InvalidSpec
from finetuned.core.record import Record
from finetuned.core.spec import parse_spec
from finetuned.ctl.access import owner_of
from finetuned.ctl.arguments import AsJson, JobName, JobText, Settings, Wait
from finetuned.ctl.check import Report, SpecArgument, examine, named_paths
from finetuned.ctl.draft import Draft, make_draft, read_draft
from finetuned.ctl.drop import drop_file, drop_folder
from finetuned.ctl.exits import ExitCode, Sorry
from finetuned.ctl.jobs import find_job, is_daemon_running, locate, open_spool
from finetuned.ctl.render import problem_lines
from finetuned.ctl.wait import tell_end, wait_for_end
from finetuned.ctl.words import print_json, say
from finetuned.host.claim import dropped_folder
from finetuned.host.drops import for_people
from finetuned.host.jobdir import JobDir, Unreadable, read_record
from finetuned.host.receipts import Receipt
from finetuned.host.spool import Spool

# A renamed file is claimed at the next turn, about 2 s away, or after it has rested for another 2 s.
_CLAIM_SECONDS = 15.0
_LOOK_SECONDS = 0.1

Force = Annotated[bool, typer.Option("--force", help="Submit although there are problems.")]


class Submitted(Record):
    """`finetunectl submit --json`."""

    job: str | None
    """None: dropped and not claimed yet."""
    dropped: str
    """Path in incoming/."""
    daemon_running: bool | None
    outcome: Outcome | None = None
    """With --wait."""
    result: Result | None = None


def submit(
    ctx: typer.Context,
    spec: SpecArgument,
    settings: Settings = None,
    name: JobName = None,
    wait: Wait = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Check a job file and hand it to the daemon; prints the job's id.

    Relative paths are seen from the job file. What the service's user cannot read is copied along.
    """
    _hand_over(open_spool(ctx), read_draft(spec, settings or [], name), wait=wait, force=force, as_json=as_json)


def resubmit(
    ctx: typer.Context,
    job: JobText,
    settings: Settings = None,
    name: JobName = None,
    wait: Wait = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Submit a job's spec again, as a new job, with changes."""
    spool = open_spool(ctx)
    found = find_job(spool, job)
    draft = _draft_of(found, dropped_folder(found), settings or [], name)
    _hand_over(spool, draft, wait=wait, force=force, as_json=as_json)


def _draft_of(job: JobDir, folder: Path | None, settings: list[str], name: str | None) -> Draft:
    text = job.read_spec_text()
    try:
        claim = job.read_claim()
    except Unreadable as error:
        raise Sorry(ExitCode.UNUSABLE, str(error)) from error
    if text is None or claim is None:
        raise Sorry(ExitCode.REFUSED, f"{job.job} has no spec to submit again", f"finetunectl status {job.job}")
    suffix = ".json" if text.lstrip().startswith("{") else ".yaml"
    own_name = claim.name if folder is None else f"{claim.name}{suffix}"
    return make_draft(job.job, own_name, text, folder or Path("/"), settings, name)


@dataclass(frozen=True)
class _Dropped:
    path: Path
    sha256: str
    """Of the job file; the receipt repeats it."""
    earlier_receipts: frozenset[str]


def _hand_over(spool: Spool, draft: Draft, *, wait: bool, force: bool, as_json: bool) -> None:
    report = examine(draft, owner_of(spool.path))
    _refuse_or_tell(report, force=force)
    packed = [Path(obstacle.path) for obstacle in report.obstacles] + _inside_a_job(spool, draft)
    dropped = _drop(spool, draft, list(dict.fromkeys(packed)))
    job = _await_claim(spool, dropped, patient=wait)
    running = is_daemon_running(spool.path)
    submitted = Submitted(job=job.job if job else None, dropped=str(dropped.path), daemon_running=running)
    if job is None:
        if as_json:
            print_json(submitted)
        raise Sorry(ExitCode.UNUSABLE, *_not_claimed(dropped.path, running))
    if not as_json:
        typer.echo(job.job)
    result = _wait(job) if wait else None
    if as_json:
        outcome = result.outcome if result else None
        print_json(submitted.model_copy(update={"outcome": outcome, "result": result}))
    if result is not None and result.outcome is not Outcome.SUCCEEDED:
        raise typer.Exit(ExitCode.BAD_NEWS)


def _inside_a_job(spool: Spool, draft: Draft) -> list[Path]:
    """What the draft names inside the spool's jobs, as a resubmitted folder does: it may move, or be pruned."""
    try:
        named = named_paths(parse_spec(draft.pinned, draft.source).spec)
    except InvalidSpec:
        return []
    homes = (spool.incoming, *(spool.path / phase for phase in Phase))
    return [path for path in named if any(path.is_relative_to(home) for home in homes)]


def _refuse_or_tell(report: Report, *, force: bool) -> None:
    for notice in report.notices:
        say(f"notice: {notice}")
    if report.problems:
        say(problem_lines(report.source, report.problems))
        if not force:
            say("nothing was submitted; --force submits it as it is")
            raise typer.Exit(ExitCode.BAD_NEWS)


def _drop(spool: Spool, draft: Draft, packed: list[Path]) -> _Dropped:
    earlier = frozenset(path.name for path in _receipts(spool))
    if not packed:
        path = drop_file(spool.incoming, draft.name, draft.pinned)
        text = draft.pinned
    else:
        say("copying along, for the service's user: " + ", ".join(map(str, packed)))
        path, text = drop_folder(spool.incoming, draft.name, draft.pinned, packed)
    return _Dropped(path, hashlib.sha256(text.encode()).hexdigest(), earlier)


def _receipts(spool: Spool) -> Iterator[Path]:
    return spool.receipts.glob("*.json")


def _await_claim(spool: Spool, dropped: _Dropped, *, patient: bool) -> JobDir | None:
    """The job that the drop became; None when no daemon takes it in time (`patient`: as long as one runs)."""
    deadline = time.monotonic() + _CLAIM_SECONDS
    while True:
        if job := _claimed(spool, dropped):
            return job
        running = is_daemon_running(spool.path)
        is_late = time.monotonic() > deadline
        if running is False or (is_late and not (patient and running)):
            # Once more: it may have been claimed between the look at the receipts and the look at the lock.
            return _claimed(spool, dropped)
        time.sleep(_LOOK_SECONDS)


def _claimed(spool: Spool, dropped: _Dropped) -> JobDir | None:
    for path in sorted(_receipts(spool)):
        if path.name in dropped.earlier_receipts or not _is_for(path, dropped):
            continue
        return locate(JobDir(spool.path / "queued" / path.stem))
    return None


def _is_for(receipt: Path, dropped: _Dropped) -> bool:
    try:
        said = read_record(receipt, Receipt)
    except Unreadable:
        return False  # The answer to a request; those lie here too.
    return said is not None and (said.name, said.sha256) == (for_people(dropped.path.name), dropped.sha256)


def _not_claimed(path: Path, running: bool | None) -> tuple[str, str]:
    if running is False:
        return f"no daemon is running; the job waits as {path}", "start one with: finetuned run"
    return f"dropped as {path}, and not claimed yet", "finetunectl doctor looks for the reason"


def _wait(job: JobDir) -> Result:
    try:
        result = wait_for_end(job)
    except KeyboardInterrupt:
        say(f"{job.job} goes on; finetunectl status {job.job}")
        raise
    tell_end(job.job, result)
    if result.outcome is Outcome.SUCCEEDED:
        say(f"finetunectl get {job.job} DEST copies its artifacts")
    return result
