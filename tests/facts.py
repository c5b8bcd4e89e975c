"""Facts that state only what matters to a test."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from finetuned.core.events import Attempt, Ending, FailedForGood, FailedRetry, Finished, Started, Stopped
from finetuned.core.job import Exit, Outcome, Phase, Result
from finetuned.core.lifecycle import Alive, JobFacts, LaunchFacts, SpecState, StageFacts

NOON = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def an_attempt(
    number: int = 1, *, step: int = 0, saved: int = 0, raised: bool = False, ending: Ending | None = None
) -> Attempt:
    started = Started(time=NOON, launch=number, attempt=number, pid=1, boot_id="boot")
    return Attempt(started=started, step=step, checkpointed_step=saved, raised_checkpoint=raised, ending=ending)


def finished(early_end: str = "") -> Finished:
    return Finished(time=NOON, step=10, early_end=early_end)


def stopped() -> Stopped:
    return Stopped(time=NOON, why="asked to stop (SIGTERM)")


def failed_retry(error: str = "boom", *, step: int = 0, cause: str = "", after_minutes: float = 0) -> FailedRetry:
    return FailedRetry.model_validate(
        {"time": NOON + timedelta(minutes=after_minutes), "error": error, "step": step, "cause": cause}
    )


def failed_for_good(error: str = "no such column") -> FailedForGood:
    return FailedForGood(time=NOON, error=error, hint="name it")


def an_exit(launch: int = 1, **how: object) -> Exit:
    return Exit.model_validate({"launch": launch, "ended": NOON} | how)


def a_stage(
    *past: tuple[Attempt | None, Exit | None], alive: Alive = Alive.NO, dead_seconds: float = 1e9
) -> StageFacts:
    launches = tuple(
        LaunchFacts(number=number, devices=("cpu:0",), attempt=attempt, exit=exit_)
        for number, (attempt, exit_) in enumerate(past, start=1)
    )
    return StageFacts(alive=alive, launches=launches, dead_seconds=dead_seconds)


def a_queued_job(**changes: object) -> JobFacts:
    """Claimed, spec copied, prepared and planned: ready to train."""
    facts = JobFacts(job="job-a", phase=Phase.QUEUED, spec=SpecState.CURRENT, is_prepared=True, is_planned=True)
    return replace(facts, **changes)  # type: ignore[arg-type]


def an_active_job(train: StageFacts | None = None, **changes: object) -> JobFacts:
    facts = a_queued_job(phase=Phase.ACTIVE, train=train or a_stage((an_attempt(), None), alive=Alive.YES))
    return replace(facts, **changes)  # type: ignore[arg-type]


def a_result(outcome: Outcome = Outcome.SUCCEEDED) -> Result:
    return Result(outcome=outcome, reason="because", attempts=1, last_launch=1, ended=NOON)
