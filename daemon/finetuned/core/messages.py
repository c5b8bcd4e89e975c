"""What goes to the system's journal: kinds of messages with their ids, and what a stage's events read like there."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from finetuned.core.durations import in_words
from finetuned.core.events import (
    Checkpointed,
    Entered,
    Evaluated,
    Event,
    Exported,
    FailedForGood,
    FailedRetry,
    Finished,
    Noticed,
    Progress,
    Progressed,
    Restored,
    SetAside,
    Started,
    Stepped,
    Stopped,
)
from finetuned.core.job import Stage

_JOBS_NAMED = 3


class Severity(IntEnum):
    """The numbers of syslog."""

    ERROR = 3
    WARNING = 4
    NOTICE = 5
    INFO = 6


class Kind(StrEnum):
    """What a message is about: the field FINETUNED_EVENT."""

    PLANNED = "planned"
    LAUNCHED = "launched"
    STOPPING = "stopping"
    MOVED = "moved"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TROUBLE = "trouble"
    MISTAKE = "mistake"
    # Stages, in the words of their events.
    STARTED = "started"
    NOTICED = "noticed"
    RESTORED = "restored"
    SET_ASIDE = "set_aside"
    EVALUATED = "evaluated"
    CHECKPOINTED = "checkpointed"
    EXPORTED = "exported"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED_RETRY = "failed_retry"
    FAILED_FOR_GOOD = "failed_for_good"


MESSAGE_IDS = {
    Kind.PLANNED: "1d2151f51c934666a18b57db2376e854",
    Kind.LAUNCHED: "03b513fb486245b9aa7f1da2dfb48e2c",
    Kind.STOPPING: "44dff483f86442ebb69944516ac932a7",
    Kind.MOVED: "eb67df63a502405b8c0c184907dbf589",
    Kind.SUCCEEDED: "df62dcb541034eb49e509bcb9bccae96",
    Kind.FAILED: "59f72cbb57d74b3b8ec21e5ed483c694",
    Kind.CANCELLED: "721cd2abd3614cefb49a165d987a62a6",
    Kind.TROUBLE: "fb6c36c2f7ce460ea4616365191ef39e",
    Kind.MISTAKE: "6f8fbbbbf0904e11a69fa515cbff76cf",
    Kind.STARTED: "4a2006b3673d4aad9d1fa128070c2460",
    Kind.NOTICED: "b7146b7730a6443bbc161fd79bf9f00a",
    Kind.RESTORED: "c5020cca665844139c3fe30abff69e3e",
    Kind.SET_ASIDE: "9cac7386fdb24b2188012c6f6ef1d502",
    Kind.EVALUATED: "7ae3b44880264ad8aa4387a4b25ed69e",
    Kind.CHECKPOINTED: "5fd1b756c0e141519c7c64a18fdf0e5d",
    Kind.EXPORTED: "b04b532a3454420093b743566c32c8f5",
    Kind.FINISHED: "8dab805cb07f4dd0a2ba8636dfc8cf56",
    Kind.STOPPED: "a6c40e8fc40e47b5b6cc4c0c47b640e8",
    Kind.FAILED_RETRY: "7764027824ec41bdbf0d256eb8229633",
    Kind.FAILED_FOR_GOOD: "5b071b8ae5964698b21606808107651e",
}
"""For ever: whoever watches the journal asks for them. units/finetuned.catalog explains each."""


@dataclass(frozen=True)
class Told:
    """One entry of the journal."""

    kind: Kind
    text: str
    severity: Severity = Severity.INFO
    stage: Stage | None = None
    step: int | None = None

    def fields(self, job: str) -> dict[str, str]:
        found = {"MESSAGE_ID": MESSAGE_IDS[self.kind], "FINETUNED_EVENT": self.kind.value}
        if job:
            found["FINETUNED_JOB"] = job
        if self.stage is not None:
            found["FINETUNED_STAGE"] = self.stage.value
        if self.step is not None:
            found["FINETUNED_STEP"] = str(self.step)
        return found


def of_event(stage: Stage, event: Event) -> Told | None:
    """An event as it reads in the journal; None for what happens every few seconds and only belongs in the status."""
    match event:
        case Entered() | Progressed() | Stepped():
            return None
        case Started():
            return Told(Kind.STARTED, f"{stage} attempt {event.attempt} (launch {event.launch})", stage=stage)
        case Noticed():
            return Told(Kind.NOTICED, event.text, Severity.NOTICE, stage)
        case Restored(checkpoint=None):
            return Told(Kind.RESTORED, f"{stage} begins at step 0", stage=stage, step=0)
        case Restored():
            return Told(Kind.RESTORED, f"{stage} goes on from {event.checkpoint}", stage=stage, step=event.step)
        case SetAside():
            text = f"{event.checkpoint} is damaged ({event.why}) and is called {event.renamed_to} now"
            return Told(Kind.SET_ASIDE, text, Severity.WARNING, stage)
        case Evaluated():
            best = ", the best so far" if event.is_best else ""
            text = f"step {event.step}: evaluation loss {event.eval_loss:.4f}{best}"
            return Told(Kind.EVALUATED, text, stage=stage, step=event.step)
        case Checkpointed():
            text = (
                f"step {event.step}: {event.checkpoint} is whole, {event.size_bytes:,} bytes in {event.seconds:.1f} s"
            )
            return Told(Kind.CHECKPOINTED, text, stage=stage, step=event.step)
        case Exported():
            text = f"{len(event.files)} files are exported, loaded again and compared"
            return Told(Kind.EXPORTED, text, stage=stage, step=event.step)
        case _:
            return _of_ending(stage, event)


def _of_ending(stage: Stage, ending: Finished | Stopped | FailedRetry | FailedForGood) -> Told:
    step = ending.step if stage is Stage.TRAIN else None
    at = f" at step {ending.step}" if step is not None else ""
    match ending:
        case Finished():
            why = "; ".join(word for word in (ending.early_end, ending.shortfall) if word)
            return Told(Kind.FINISHED, f"{stage} finished{at}{': ' if why else ''}{why}", stage=stage, step=step)
        case Stopped():
            return Told(Kind.STOPPED, f"{stage} stopped{at}: {ending.why}", stage=stage, step=step)
        case FailedRetry():
            text = f"{stage} failed{at} and may be tried again: {ending.error}"
            return Told(Kind.FAILED_RETRY, text, Severity.WARNING, stage, step)
        case FailedForGood():
            text = f"{stage} failed{at} for good: {ending.error}"
            return Told(Kind.FAILED_FOR_GOOD, text, Severity.ERROR, stage, step)


def status_of(progress: Progress) -> str:
    """Where a stage is, on one line: step, loss and the time left, or what it is busy with."""
    if progress.activity == "training" and progress.total_steps:
        said = f"step {progress.step} of {progress.total_steps}"
        if progress.loss is not None:
            said += f", loss {progress.loss:.4f}"
        left = progress.remaining_seconds
        return f"{said}, about {in_words(left)} left" if left is not None else said
    if progress.activity is None:
        return "starting"
    if progress.total:
        return f"{progress.activity}, {progress.done:,} of {progress.total:,} {progress.unit}".strip()
    return progress.activity


def status_of_daemon(running: Mapping[str, Progress], queued: int) -> str:
    """What the daemon's unit shows: each job that runs and where it is, and how many wait."""
    said = [f"{job}: {status_of(progress)}" for job, progress in sorted(running.items())[:_JOBS_NAMED]]
    if len(running) > _JOBS_NAMED:
        said.append(f"and {len(running) - _JOBS_NAMED} more")
    waiting = f"{queued} queued" if queued else ""
    return "; ".join(word for word in (*(said or ["idle"]), waiting) if word)
