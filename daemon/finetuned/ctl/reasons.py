"""Why a queued job does not run: the daemon's own decision, made again from what can be seen here."""

import os
from datetime import UTC, datetime

from finetuned.core.job import Launch, Stage
from finetuned.core.lifecycle import Action, Alive, JobFacts, LaunchFacts, SpecState, StageFacts, Wait, decide
from finetuned.core.retry import Limits
from finetuned.ctl.access import find_obstacle, owner_of
from finetuned.ctl.sight import Sight
from finetuned.host.claim import job_file
from finetuned.host.files import Untrustworthy, read_stranger
from finetuned.host.jobdir import JobDir

_START_SECONDS = 15.0
"""The launcher gives up on a stage that has not shown itself after 10 s."""


def what_is_next(sight: Sight) -> Action:
    """For a queued job. What it names on this machine is not looked at, nor is the plan made that the daemon makes."""
    if sight.facts is not None and sight.plan is None:
        return Wait("prepared; waits to be planned")
    facts = JobFacts(
        job=sight.job.job,
        phase=sight.job.phase,
        refusal=sight.claim.refusal if sight.claim else None,
        spec=SpecState.CURRENT,
        priority=sight.priority,
        is_prepared=sight.facts is not None,
        is_planned=sight.plan is not None,
        prepare=_stage_facts(sight, Stage.PREPARE),
        train=_stage_facts(sight, Stage.TRAIN),
        wishes=sight.wishes,
        result=sight.result,
    )
    return decide(facts, Limits())


def _stage_facts(sight: Sight, stage: Stage) -> StageFacts:
    past = sight.past[stage]
    heard = max((_last_heard(launch, facts) for launch, facts in past), default=None)
    is_starting = stage is Stage.PREPARE and bool(past) and _may_be_starting(*past[-1])
    return StageFacts(
        alive=Alive.YES if sight.is_alive(stage) or is_starting else Alive.NO,
        launches=tuple(facts for _, facts in past),
        dead_seconds=max(0.0, (datetime.now(UTC) - heard).total_seconds()) if heard else 0.0,
    )


def _may_be_starting(launch: Launch, facts: LaunchFacts) -> bool:
    """A stage that was asked for a moment ago holds no lock yet, and that is no trouble."""
    age_seconds = (datetime.now(UTC) - launch.asked).total_seconds()
    return facts.attempt is None and facts.exit is None and age_seconds < _START_SECONDS


def _last_heard(launch: Launch, facts: LaunchFacts) -> datetime:
    times = [launch.asked]
    if facts.attempt is not None:
        times.append(facts.attempt.started.time)
    if facts.attempt is not None and facts.attempt.ending is not None:
        times.append(facts.attempt.ending.time)
    if facts.exit is not None:
        times.append(facts.exit.ended)
    return max(times)


def why_unread(job: JobDir) -> str:
    """What keeps the daemon from reading what was dropped, and what mends it; empty when nothing can be seen."""
    service = owner_of(job.spool)
    try:
        path = job_file(job)
        if obstacle := find_obstacle(path, service):
            return f"{obstacle.what}; {obstacle.mend}"
        if os.geteuid() in (0, service.uid):
            read_stranger(path)
    except Untrustworthy as error:
        return f"what was dropped {error}" + (f"; {error.hint}" if error.hint else "")
    except OSError as error:
        return f"what was dropped cannot be read: {error.strerror or error}"
    return ""
