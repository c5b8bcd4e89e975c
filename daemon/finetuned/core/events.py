"""What a stage says happened: event records, their line form, and what a history of them adds up to.

One JSON object a line in `events/STAGE.jsonl`, written by that stage alone. A later attempt may repeat steps that an
earlier one did after its last checkpoint; the later line counts.
"""

import json
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from finetuned.core.problems import Problem
from finetuned.core.record import Record, UtcTime

Activity = Literal["fetching", "reading", "loading", "training", "evaluating", "saving", "exporting"]

Cause = Literal["", "network", "disk"]
"""What outside of the job failed, where that is known: trouble that may pass, and is waited for longer."""


class _Event(Record):
    time: UtcTime


class Started(_Event):
    """The stage opened its attempt: it holds the lock and the launch is its own. fsynced."""

    event: Literal["started"] = "started"
    format: Literal[1] = 1
    launch: int
    attempt: int
    """Counts from 1 over the whole life of the job's stage."""
    pid: int
    boot_id: str


class Entered(_Event):
    """What the stage is busy with from now on."""

    event: Literal["entered"] = "entered"
    activity: Activity


class Progressed(_Event):
    """How far a long activity outside training is: bytes fetched, rows read, rows evaluated."""

    event: Literal["progressed"] = "progressed"
    activity: Activity
    done: int
    total: int | None
    unit: str


class Noticed(_Event):
    """Something a person should know and nothing depends on."""

    event: Literal["noticed"] = "noticed"
    text: str


class Restored(_Event):
    """Training goes on from this checkpoint; step 0 and no name where there was none."""

    event: Literal["restored"] = "restored"
    checkpoint: str | None
    step: int


class SetAside(_Event):
    """A checkpoint that did not verify was renamed out of the way."""

    event: Literal["set_aside"] = "set_aside"
    checkpoint: str
    renamed_to: str
    why: str


class Stepped(_Event):
    """One optimizer update. `loss` is the mean over the target tokens of the whole global batch (nats)."""

    event: Literal["stepped"] = "stepped"
    step: int
    total_steps: int
    epoch: float
    loss: float
    grad_norm: float
    """Global L2 norm before clipping."""
    learning_rate: float
    tokens: int
    target_tokens: int
    micro_batches: int
    seconds: float


class Evaluated(_Event):
    """Mean loss over the target tokens of the evaluation rows, after `step` updates (0 = before training)."""

    event: Literal["evaluated"] = "evaluated"
    step: int
    eval_loss: float
    target_tokens: int
    is_best: bool
    seconds: float


class Checkpointed(_Event):
    """A whole checkpoint stands under its final name. fsynced."""

    event: Literal["checkpointed"] = "checkpointed"
    step: int
    checkpoint: str
    size_bytes: int
    stall_seconds: float
    """How long training stood still for it."""
    seconds: float


class Exported(_Event):
    """Artifacts are written, reloaded and compared. `largest_logit_difference` is over the probe rows.

    `merge_drift`: the merged model's largest difference, in parts of the largest logit.
    """

    event: Literal["exported"] = "exported"
    step: int
    files: tuple[str, ...]
    largest_logit_difference: float
    merge_drift: float | None = None


class Finished(_Event):
    """All that was planned is done and proven. fsynced, like every ending."""

    event: Literal["finished"] = "finished"
    step: int = 0
    early_end: str = ""
    """Why fewer steps than planned were right, e.g. "early stopping: ..."; empty when all were done."""
    shortfall: str = ""
    """What was asked for beside training and could not be made, and why; the result is good without it."""


class Stopped(_Event):
    """Asked to stop, and stopped with everything worth keeping on disk."""

    event: Literal["stopped"] = "stopped"
    step: int = 0
    why: str


class FailedRetry(_Event):
    """Failed in a way that another attempt may not repeat (network, a full disk, a device error)."""

    event: Literal["failed_retry"] = "failed_retry"
    step: int = 0
    error: str
    cause: Cause = ""
    hint: str = ""


class FailedForGood(_Event):
    """Failed in a way that every attempt would repeat."""

    event: Literal["failed_for_good"] = "failed_for_good"
    step: int = 0
    error: str
    problems: tuple[Problem, ...] = ()
    hint: str = ""


Ending = Finished | Stopped | FailedRetry | FailedForGood
Event = (
    Started
    | Entered
    | Progressed
    | Noticed
    | Restored
    | SetAside
    | Stepped
    | Evaluated
    | Checkpointed
    | Exported
    | Ending
)
DURABLE = (Started, Checkpointed, Finished, Stopped, FailedRetry, FailedForGood)
"""Events that are on disk (fsync) before the stage goes on."""

_EVENT: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="event")])


def to_line(event: Event) -> bytes:
    """One line of a journal, newline included. NaN and infinities are written as JSON's usual extension words."""
    return json.dumps(event.model_dump(mode="json"), ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def from_line(line: bytes) -> Event | None:
    """The event of a line, or None for a kind that this release does not know.

    Raises ValueError for a line that is not an event at all.
    """
    try:
        return _EVENT.validate_python(json.loads(line))
    except ValidationError as error:
        if any(problem["type"] == "union_tag_invalid" for problem in error.errors()):
            return None
        raise ValueError(f"not an event: {line[:120]!r}") from error


class Attempt(Record):
    """One *Started* and what came of it."""

    started: Started
    checkpointed_step: int
    """Highest checkpointed step of the job when this attempt ended (or now), over all attempts so far."""
    raised_checkpoint: bool = False
    """This attempt raised that step."""
    step: int = 0
    """Where this attempt got to."""
    ending: Annotated[Ending, Field(discriminator="event")] | None = None


class Progress(Record):
    """Where a stage is, folded from its events; what status, lists and reports show."""

    activity: Activity | None = None
    done: int = 0
    total: int | None = None
    unit: str = ""
    step: int = 0
    total_steps: int = 0
    loss: float | None = None
    learning_rate: float | None = None
    median_step_seconds: float | None = None
    """Median of the last 20 steps."""
    recent_step_seconds: tuple[float, ...] = ()
    target_tokens_per_second: float | None = None
    first_eval_loss: float | None = None
    last_eval_loss: float | None = None
    best_eval_loss: float | None = None
    best_step: int | None = None
    checkpointed_step: int = 0
    notices: tuple[str, ...] = ()
    updated: UtcTime | None = None

    @property
    def remaining_seconds(self) -> float | None:
        """Training steps left times their median; None before the first step. Eval and export are not in it."""
        if self.median_step_seconds is None:
            return None
        return (self.total_steps - self.step) * self.median_step_seconds


class History(Record):
    """All attempts of one stage of one job, and its progress."""

    attempts: tuple[Attempt, ...] = ()
    progress: Progress = Progress()


def extend(history: History, events: Iterable[Event]) -> History:
    """The history after `events`."""
    attempts = list(history.attempts)
    progress = history.progress
    for event in events:
        attempts = _with_event(attempts, event)
        progress = _progress_after(progress, event)
    return History(attempts=tuple(attempts), progress=progress)


def _with_event(attempts: list[Attempt], event: Event) -> list[Attempt]:
    if isinstance(event, Started):
        checkpointed = attempts[-1].checkpointed_step if attempts else 0
        return [*attempts, Attempt(started=event, checkpointed_step=checkpointed)]
    if not attempts:
        return attempts
    last = attempts[-1]
    match event:
        case Stepped(step=step) | Restored(step=step):
            attempts[-1] = last.model_copy(update={"step": step})
        case Checkpointed(step=step) if step > last.checkpointed_step:
            attempts[-1] = last.model_copy(update={"checkpointed_step": step, "raised_checkpoint": True})
        case Finished() | Stopped() | FailedRetry() | FailedForGood():
            attempts[-1] = last.model_copy(update={"ending": event})
    return attempts


def _progress_after(progress: Progress, event: Event) -> Progress:
    changes: dict[str, object] = {"updated": event.time}
    match event:
        case Started():
            changes |= {"activity": None, "done": 0, "total": None, "unit": "", "recent_step_seconds": ()}
        case Entered(activity=activity):
            changes |= {"activity": activity, "done": 0, "total": None, "unit": ""}
        case Progressed():
            changes |= {"activity": event.activity, "done": event.done, "total": event.total, "unit": event.unit}
        case Noticed(text=text) if text not in progress.notices:
            changes["notices"] = (*progress.notices, text)
        case Restored(step=step):
            changes["step"] = step
        case Stepped():
            recent = (*progress.recent_step_seconds, event.seconds)[-20:]
            changes |= {
                "step": event.step,
                "total_steps": event.total_steps,
                "loss": event.loss,
                "learning_rate": event.learning_rate,
                "recent_step_seconds": recent,
                "median_step_seconds": sorted(recent)[len(recent) // 2],
                "target_tokens_per_second": event.target_tokens / event.seconds if event.seconds > 0 else None,
            }
        case Evaluated():
            changes["last_eval_loss"] = event.eval_loss
            if event.step == 0:
                changes["first_eval_loss"] = event.eval_loss
            if event.is_best:
                changes |= {"best_eval_loss": event.eval_loss, "best_step": event.step}
        case Checkpointed(step=step):
            changes["checkpointed_step"] = max(step, progress.checkpointed_step)
    return progress.model_copy(update=changes)
