"""The words of a job's life, and the files that the daemon and the launcher write about it."""

from enum import StrEnum
from typing import Literal

from finetuned.core.problems import Problem
from finetuned.core.record import Record, UtcTime


class Phase(StrEnum):
    """Where a job is in its life: the name of its parent directory, and nothing else."""

    QUEUED = "queued"
    ACTIVE = "active"
    OUTBOX = "outbox"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        return self in (Phase.DONE, Phase.FAILED, Phase.CANCELLED)


class Stage(StrEnum):
    """A kind of process that works on one job."""

    PREPARE = "prepare"
    TRAIN = "train"


class Wish(StrEnum):
    """A person's request, moved into its job; stays until a result or a release."""

    CANCEL = "cancel"
    HOLD = "hold"


class Outcome(StrEnum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def phase(self) -> Phase:
        """The phase under which a job with this outcome is filed."""
        return {Outcome.SUCCEEDED: Phase.DONE, Outcome.FAILED: Phase.FAILED, Outcome.CANCELLED: Phase.CANCELLED}[self]


class Claim(Record):
    """claim.json: who dropped what, written before the drop is moved in."""

    format: Literal[1] = 1
    job: str
    name: str
    """The name as dropped, undecodable bytes replaced by U+FFFD: for people, never for paths."""
    uid: int
    claimed: UtcTime
    refusal: Problem | None = None
    """Why the drop cannot be a job at all (a link, a fifo, too large, unreadable); such a job fails early."""


class Launch(Record):
    """launches/NNNN.json: the daemon asked for a stage."""

    format: Literal[1] = 1
    number: int
    stage: Stage
    devices: tuple[str, ...] = ()
    """Device ids as in Machine: "cuda:0", "cpu:0"; empty for a stage that takes none."""
    boot_id: str
    release: str
    """Absolute path of the Python interpreter of the release that this launch, and every rank of it, runs."""
    checkpoint: str | None = None
    """Name of the checkpoint the daemon saw as newest and whole, for people; the loader verifies for itself."""
    asked: UtcTime


class Exit(Record):
    """launches/NNNN.exit.json: how the stage's main process ended, as the system saw it."""

    format: Literal[1] = 1
    launch: int
    returncode: int | None = None
    signal: int | None = None
    out_of_memory: bool = False
    """The kernel's OOM killer ended it (cgroup record)."""
    hung: bool = False
    """It said nothing for longer than it had announced, and its supervisor killed it."""
    asked_to_stop: bool = False
    """The launcher had been told to stop it."""
    ended: UtcTime

    @property
    def died_by_itself(self) -> bool:
        """A fault of the stage, not of the machine or of a person: an exit code, a crash, a hang, out of memory."""
        if self.out_of_memory or self.hung:
            return True
        if self.signal is not None:
            return self.signal in (4, 6, 7, 8, 11)  # SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV
        return self.returncode not in (0, None)


class Result(Record):
    """result.json: how a job ended, why, and what to do. Never rewritten."""

    format: Literal[1] = 1
    outcome: Outcome
    reason: str
    problems: tuple[Problem, ...] = ()
    hint: str = ""
    attempts: int
    """Attempts of the train stage that were opened for this result."""
    last_launch: int
    """Highest launch number this result covers; launches and attempts count anew after it."""
    ended: UtcTime
