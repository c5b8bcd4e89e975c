"""When a stage that ended without finishing is tried again, and when trying stops: a crash loop must not eat the night.

Reboots, preemptions and kills from outside never fail a job; what a job does to itself may, soon.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from finetuned.core.events import Attempt, FailedRetry, Stopped
from finetuned.core.job import Exit, Stage

A = TypeVar("A")
E = TypeVar("E")

Past = tuple[Attempt | None, Exit | None]
"""One launch: the attempt it opened, if any, and how its process ended, if known."""


@dataclass(frozen=True)
class Limits:
    """How patient the daemon is. Seconds."""

    patience_seconds: float = 7200.0
    """For how long trouble outside the job (network, a full disk) is waited out."""
    unstarted_pauses: tuple[float, ...] = (5, 15, 60, 300, 600)
    killed_pauses: tuple[float, ...] = (0, 0, 0, 60, 300, 900, 3600)
    failed_pauses: tuple[float, ...] = (10, 60, 300, 900)
    failures_in_a_row: int = 5
    """Attempts that fail in whatever way without raising the checkpointed step."""


@dataclass(frozen=True)
class RetryAfter:
    """Try again once nothing of it has lived for `seconds`."""

    seconds: float
    why: str


@dataclass(frozen=True)
class GiveUp:
    reason: str
    hint: str


Verdict = RetryAfter | GiveUp


def judge(stage: Stage, past: Sequence[Past], limits: Limits) -> Verdict:
    """What follows from the launches since the last result, oldest first, none of which finished or failed for good."""
    unstarted = _count_trailing(past, lambda attempt, _exit: attempt is None)
    if unstarted:
        pause = _pause(limits.unstarted_pauses, unstarted)
        return RetryAfter(pause, f"{unstarted} launch(es) never started; this machine's trouble, trying again")
    started = [(attempt, exit_) for attempt, exit_ in past if attempt is not None]
    if not started:
        return RetryAfter(0, "not tried yet")
    attempt, exit_ = started[-1]
    if exit_ is not None and _died(attempt, exit_):
        return _after_death(stage, started, exit_, limits)
    if isinstance(attempt.ending, Stopped):
        return RetryAfter(0, "stopped as asked")
    if isinstance(attempt.ending, FailedRetry):
        return _after_failure(stage, started, attempt.ending, limits)
    kills = _count_trailing(
        started, lambda attempt, exit_: _was_killed(attempt, exit_) and not attempt.raised_checkpoint
    )
    why = f"{stage} ended from outside {kills} time(s) in a row; trying again"
    return RetryAfter(_pause(limits.killed_pauses, max(kills, 1)), why)


def _after_failure(
    stage: Stage, started: Sequence[tuple[Attempt, Exit | None]], ending: FailedRetry, limits: Limits
) -> Verdict:
    failures = _count_trailing(started, lambda attempt, _exit: isinstance(attempt.ending, FailedRetry))
    row = [attempt.ending for attempt, _exit in started[-failures:] if isinstance(attempt.ending, FailedRetry)]
    pause = _pause(limits.failed_pauses, failures)
    if ending.cause:
        trying_seconds = (ending.time - row[0].time).total_seconds()
        if trying_seconds < limits.patience_seconds:
            return RetryAfter(pause, f"{stage}: {ending.error}; trying again")
        return GiveUp(f"{stage}: {ending.error}; {failures} attempts over {trying_seconds / 3600:.1f} h", ending.hint)
    if len(row) > 1 and (row[-2].error, row[-2].step) == (ending.error, ending.step):
        return GiveUp(f"{stage}: twice the same error at step {ending.step}: {ending.error}", ending.hint)
    fruitless = _count_trailing(started, lambda attempt, _exit: not attempt.raised_checkpoint)
    if fruitless >= limits.failures_in_a_row:
        return GiveUp(f"{stage}: {fruitless} attempts in a row without progress; the last: {ending.error}", ending.hint)
    return RetryAfter(pause, f"{stage}: {ending.error}; trying again")


def _after_death(stage: Stage, started: Sequence[tuple[Attempt, Exit | None]], exit_: Exit, limits: Limits) -> Verdict:
    deaths = _count_trailing(
        started,
        lambda attempt, exit_: _died(attempt, exit_) and not attempt.raised_checkpoint,
    )
    how = describe_exit(exit_)
    if deaths >= 2:
        hint = f"finetunectl logs shows what it printed last; the {stage} log is kept with the job"
        return GiveUp(f"{stage} died {deaths} times in a row without progress: {how}", hint)
    return RetryAfter(_pause(limits.failed_pauses, 1), f"{stage} died ({how}); trying again")


def describe_exit(exit_: Exit) -> str:
    """How a process ended, in words."""
    if exit_.out_of_memory:
        return "it ran out of host memory, and the kernel killed it"
    if exit_.hung:
        return "it hung: it made no progress for too long and was killed; its log shows where each thread stood"
    if exit_.signal is not None:
        return f"signal {exit_.signal}"
    return f"exit status {exit_.returncode}"


def _died(attempt: Attempt, exit_: Exit | None) -> bool:
    """Whether it ended by its own fault.

    A stage of which the kernel killed one process for want of memory may still stop in good order.
    """
    if exit_ is None or not exit_.died_by_itself:
        return False
    return attempt.ending is None or (isinstance(attempt.ending, Stopped) and exit_.out_of_memory)


def _was_killed(attempt: Attempt, exit_: Exit | None) -> bool:
    return attempt.ending is None and (exit_ is None or not exit_.died_by_itself)


def _count_trailing(items: Sequence[tuple[A, E]], matches: Callable[[A, E], bool]) -> int:
    count = 0
    for item in reversed(items):
        if not matches(*item):
            break
        count += 1
    return count


def _pause(pauses: tuple[float, ...], count: int) -> float:
    return pauses[min(count, len(pauses)) - 1]
