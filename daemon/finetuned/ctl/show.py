"""`list` and `status`."""

import math
from typing import Annotated

import typer

from finetuned.core.job import Phase
from finetuned.ctl.arguments import AsJson, JobText
from finetuned.ctl.facts import JobList
from finetuned.ctl.jobs import FILED, LIVE, find_job, is_daemon_running, open_spool
from finetuned.ctl.render import print_list, print_page
from finetuned.ctl.sight import look_at_job, queue_positions
from finetuned.ctl.tell import page, row
from finetuned.ctl.words import print_json
from finetuned.host.spool import Spool


def list_jobs(
    ctx: typer.Context,
    show_all: Annotated[bool, typer.Option("--all", "-a", help="Also filed jobs, newest first.")] = False,
    most: Annotated[int, typer.Option("-n", min=0, help="At most so many filed jobs.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Live jobs in the order of their turn; with --all also filed ones."""
    spool = open_spool(ctx)
    daemon_running = is_daemon_running(spool.path)
    sights = [look_at_job(job) for job in spool.jobs(*LIVE)]
    positions = queue_positions(sights)
    # What runs or ends stands above what waits; what has no turn (held, unreadable) stands last.
    sights.sort(key=lambda sight: (sight.job.phase is Phase.QUEUED, positions.get(sight.job.job, math.inf)))
    if show_all:
        filed = sorted(spool.jobs(*FILED), key=lambda job: job.job, reverse=True)
        sights += [look_at_job(job) for job in filed[:most]]
    rows = tuple(row(sight, positions.get(sight.job.job), daemon_running) for sight in sights)
    jobs = JobList(spool=str(spool.path), daemon_running=daemon_running, jobs=rows)
    print_json(jobs) if as_json else print_list(jobs)


def status(ctx: typer.Context, job: JobText, as_json: AsJson = False) -> None:
    """Everything about one job: what it does or waits for, numbers, attempts, notices, result, where things are."""
    spool = open_spool(ctx)
    sight = look_at_job(find_job(spool, job))
    facts = page(sight, position_of(spool, sight.job.job), is_daemon_running(spool.path))
    print_json(facts) if as_json else print_page(facts)


def position_of(spool: Spool, job: str) -> int | None:
    """Its number in the queue; None when it does not wait for its turn."""
    return queue_positions(look_at_job(each) for each in spool.jobs(Phase.QUEUED)).get(job)
