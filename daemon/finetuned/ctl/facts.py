"""What finetunectl tells about jobs: the documented JSON of `list` and `status`, and what tables and pages are made of.

Fields are added, never renamed or removed.
"""

from typing import Literal

from finetuned.core.events import Activity
from finetuned.core.job import Outcome, Phase, Result, Stage, Wish
from finetuned.core.record import Record, UtcTime

State = Literal[
    "waiting", "preparing", "ready", "training", "stopping", "held", "ending", "succeeded", "failed", "cancelled",
    "unreadable",
]  # fmt: skip


class JobRow(Record):
    """One job as `list` shows it."""

    job: str
    name: str
    """As dropped; empty when the claim cannot be read."""
    phase: Phase
    state: State
    why: str
    """Why it waits, what it does, or how it ended."""
    priority: int = 0
    queue_position: int | None = None
    """1 = next; None for what is not waiting its turn."""
    activity: Activity | None = None
    done: int = 0
    total: int | None = None
    unit: str = ""
    step: int = 0
    total_steps: int = 0
    loss: float | None = None
    eta_seconds: float | None = None
    """Of training alone; None before its first step."""
    wishes: tuple[Wish, ...] = ()
    claimed: UtcTime | None = None
    ended: UtcTime | None = None
    outcome: Outcome | None = None


class JobList(Record):
    """`finetunectl list --json`."""

    spool: str
    daemon_running: bool | None
    jobs: tuple[JobRow, ...]


class AttemptRow(Record):
    launch: int
    attempt: int
    started: UtcTime
    step: int
    ended: UtcTime | None = None
    ending: Literal["finished", "stopped", "failed_retry", "failed_for_good", "no word"] | None = None
    """None while it runs."""
    why: str = ""


class StagePage(Record):
    stage: Stage
    alive: bool | None
    """None when this user may not look."""
    attempts: tuple[AttemptRow, ...] = ()
    log: str | None = None
    """Path of its log, when there is one."""


class CheckpointRow(Record):
    name: str
    step: int
    whole: bool
    size_bytes: int


class JobPage(JobRow):
    """`finetunectl status JOB --json`."""

    path: str
    daemon_running: bool | None
    learning_rate: float | None = None
    eval_loss_before: float | None = None
    eval_loss_now: float | None = None
    eval_loss_best: float | None = None
    best_step: int | None = None
    seconds_per_step: float | None = None
    target_tokens_per_second: float | None = None
    updated: UtcTime | None = None
    """Time of the newest event."""
    base_model: str = ""
    stages: tuple[StagePage, ...] = ()
    checkpoints: tuple[CheckpointRow, ...] = ()
    notices: tuple[str, ...] = ()
    result: Result | None = None
    artifacts: str | None = None
    """Folder of what the submitter wants back, once it is there."""
    preview: str | None = None
    """File that shows what the model will learn, once prepared."""


class Check(Record):
    """One of `doctor`'s checks."""

    name: str
    state: Literal["ok", "warn", "fail"]
    what: str
    hint: str = ""
