"""The state machine: facts about one job → the next action. Pure; `service/turn.py` carries actions out."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from finetuned.core.events import Attempt, FailedForGood, FailedRetry, Finished
from finetuned.core.job import Exit, Outcome, Phase, Result, Stage, Wish
from finetuned.core.plan import RunPlan
from finetuned.core.problems import Problem, describe
from finetuned.core.retry import GiveUp, Limits, RetryAfter, describe_exit, judge


class Alive(StrEnum):
    """Lock held or process not gone; *unknown* when the launcher cannot tell, and then nothing is done."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


_MEND = "mend the job file and drop it again; finetunectl check tells its problems without dropping it"


@dataclass(frozen=True)
class LaunchFacts:
    """One launch since the job's last result: what was asked, what came of it."""

    number: int
    devices: tuple[str, ...] = ()
    attempt: Attempt | None = None
    """The attempt that this launch opened; None when it never came to *Started*."""
    exit: Exit | None = None


@dataclass(frozen=True)
class StageFacts:
    alive: Alive = Alive.NO
    launches: tuple[LaunchFacts, ...] = ()
    """Oldest first."""
    dead_seconds: float = 0.0
    """For how long nothing of it has been seen alive."""

    @property
    def newest(self) -> LaunchFacts | None:
        return self.launches[-1] if self.launches else None


class SpecState(StrEnum):
    MISSING = "missing"
    CURRENT = "current"
    CHANGED = "changed"
    """What was dropped has changed since it was copied, and no run has started yet."""


@dataclass(frozen=True)
class JobFacts:
    """All that `decide` may know about one job."""

    job: str
    phase: Phase
    refusal: Problem | None = None
    spec: SpecState = SpecState.MISSING
    problems: tuple[Problem, ...] = ()
    """What is wrong with the spec as copied, and with the files it names."""
    priority: int = 0
    is_prepared: bool = False
    """facts.json is there, and so is the prepared data it names."""
    is_planned: bool = False
    draft: RunPlan | tuple[Problem, ...] | None = None
    """Prepared, not planned: the plan that would be written, or why there can be none; None while no device answers."""
    prepare: StageFacts = field(default_factory=StageFacts)
    train: StageFacts = field(default_factory=StageFacts)
    wishes: frozenset[Wish] = frozenset()
    resume_asked: bool = False
    result: Result | None = None

    def stage(self, stage: Stage) -> StageFacts:
        return self.prepare if stage is Stage.PREPARE else self.train

    @property
    def last_launch(self) -> int:
        return max((launch.number for launch in (*self.prepare.launches, *self.train.launches)), default=0)


@dataclass(frozen=True)
class Wait:
    """Nothing to do now. `seconds`: look again after this long, even if nothing moves."""

    why: str
    seconds: float | None = None


@dataclass(frozen=True)
class CopySpec:
    """Read (again) what was dropped; what was prepared or planned from an earlier reading goes."""


@dataclass(frozen=True)
class WritePlan:
    plan: RunPlan


@dataclass(frozen=True)
class LaunchPrepare:
    pass


@dataclass(frozen=True)
class Ready:
    """Could train now; `queue.choose` says which of the ready jobs get devices."""

    job: str
    priority: int


@dataclass(frozen=True)
class Stop:
    stage: Stage
    why: str


@dataclass(frozen=True)
class Conclude:
    """Write result.json."""

    outcome: Outcome
    reason: str
    problems: tuple[Problem, ...] = ()
    hint: str = ""


@dataclass(frozen=True)
class Move:
    to: Phase
    why: str


@dataclass(frozen=True)
class PutResultAway:
    """First step of a resume: result.json → results/N.json."""


@dataclass(frozen=True)
class DropWish:
    wish: Wish


@dataclass(frozen=True)
class ForgetResume:
    """Last step of a resume, or a resume that cannot be: delete the request, saying why."""

    answer: str


Action = (
    Wait
    | CopySpec
    | WritePlan
    | LaunchPrepare
    | Ready
    | Stop
    | Conclude
    | Move
    | PutResultAway
    | DropWish
    | ForgetResume
)


def decide(facts: JobFacts, limits: Limits) -> Action:
    """The next thing to do for a job. Carried out or crashed in the middle, the next look decides again."""
    match facts.phase:
        case Phase.QUEUED:
            return _decide_queued(facts, limits)
        case Phase.ACTIVE:
            return _decide_active(facts)
        case Phase.OUTBOX:
            return _decide_outbox(facts)
        case _:
            return _decide_filed(facts)


def _decide_queued(facts: JobFacts, limits: Limits) -> Action:
    if facts.resume_asked:
        return ForgetResume("the job is queued again")
    if Alive.UNKNOWN in (facts.prepare.alive, facts.train.alive):
        return Wait("it cannot be told now whether something of it runs")
    if facts.train.alive is Alive.YES:
        return Wait("a worker that should be gone is still there")
    preparing = facts.prepare.alive is Alive.YES
    if facts.result is not None:
        return Stop(Stage.PREPARE, "the job has a result") if preparing else Move(Phase.OUTBOX, "it has a result")
    if Wish.CANCEL in facts.wishes:
        return Stop(Stage.PREPARE, "cancelled") if preparing else Conclude(Outcome.CANCELLED, "cancelled as asked")
    if facts.refusal is not None:
        return Conclude(
            Outcome.FAILED, f"{facts.refusal.place}: {facts.refusal.what}", (facts.refusal,), facts.refusal.hint
        )
    if Wish.HOLD in facts.wishes:
        return Stop(Stage.PREPARE, "put on hold") if preparing else Wait("on hold; finetunectl release starts it again")
    if facts.spec is not SpecState.CURRENT:
        return Stop(Stage.PREPARE, "its job file changed") if preparing else CopySpec()
    if facts.problems:
        reason = _in_short("the job file", facts.problems)
        return Stop(Stage.PREPARE, reason) if preparing else Conclude(Outcome.FAILED, reason, facts.problems, _MEND)
    if preparing:
        return Wait("preparing")
    if not facts.is_prepared:
        return _next_attempt(Stage.PREPARE, facts.prepare, limits, LaunchPrepare())
    if not facts.is_planned:
        return _plan(facts)
    return _next_attempt(Stage.TRAIN, facts.train, limits, Ready(facts.job, facts.priority))


def _in_short(source: str, problems: tuple[Problem, ...]) -> str:
    """The one problem, or how many there are."""
    if len(problems) == 1:
        return f"{source}: {problems[0].place}: {problems[0].what}"
    return describe(source, problems).splitlines()[0]


def _plan(facts: JobFacts) -> Action:
    if isinstance(facts.draft, RunPlan):
        return WritePlan(facts.draft)
    if facts.draft is None:
        return Wait("no device of this machine answers; finetunectl doctor says more")
    problems = facts.draft
    return Conclude(Outcome.FAILED, _in_short("the plan", problems), problems, _MEND)


def _next_attempt(stage: Stage, stage_facts: StageFacts, limits: Limits, start: Action) -> Action:
    """`start`, or the pause before it, or the end of trying."""
    newest = stage_facts.newest
    if newest is not None and newest.attempt is not None and isinstance(newest.attempt.ending, FailedForGood):
        return _failed_for_good(stage, newest.attempt.ending)
    match judge(stage, [(launch.attempt, launch.exit) for launch in stage_facts.launches], limits):
        case GiveUp(reason=reason, hint=hint):
            return Conclude(Outcome.FAILED, reason, hint=hint)
        case RetryAfter(seconds=seconds, why=why) if stage_facts.dead_seconds < seconds:
            return Wait(why, seconds - stage_facts.dead_seconds)
        case _:
            return start


def _failed_for_good(stage: Stage, ending: FailedForGood) -> Conclude:
    headline = ending.error.splitlines()[0]
    if len(ending.problems) == 1:
        problem = ending.problems[0]
        source = "" if headline.endswith(": 1 problem") else f"{headline}: "
        headline = f"{source}{problem.place}: {problem.what}"
    return Conclude(Outcome.FAILED, f"{stage}: {headline}", ending.problems, ending.hint)


def _decide_active(facts: JobFacts) -> Action:
    if facts.resume_asked:
        return ForgetResume("the job is running")
    if facts.train.alive is Alive.UNKNOWN:
        return Wait("it cannot be told now whether its worker runs")
    if facts.train.alive is Alive.YES:
        for wish in (Wish.CANCEL, Wish.HOLD):
            if wish in facts.wishes:
                return Stop(Stage.TRAIN, f"asked to {wish}")
        return Wait("training")
    if facts.result is not None:
        return Move(Phase.OUTBOX, "it has a result")
    attempt = facts.train.newest.attempt if facts.train.newest else None
    match attempt.ending if attempt else None:
        case Finished(early_end=early_end, shortfall=shortfall):
            reason = early_end or "all planned steps done, artifacts reloaded and compared"
            return Conclude(Outcome.SUCCEEDED, f"{reason}; {shortfall}" if shortfall else reason)
        case FailedForGood() as ending:
            return _failed_for_good(Stage.TRAIN, ending)
        case ending:
            return Move(Phase.QUEUED, _what_happened(attempt, facts.train.newest, ending))


def _what_happened(attempt: Attempt | None, launch: LaunchFacts | None, ending: object) -> str:
    if launch is None:
        return "it was never launched"
    if attempt is None:
        return f"launch {launch.number} never started"
    if ending is None:
        how = describe_exit(launch.exit) if launch.exit else "killed?"
        return (
            f"attempt {attempt.started.attempt} ended without a word at step {attempt.step} ({how}); "
            f"starting again from step {attempt.checkpointed_step}"
        )
    word = "failed" if isinstance(ending, FailedRetry) else "stopped"
    return f"attempt {attempt.started.attempt} {word} at step {attempt.step}; step {attempt.checkpointed_step} is saved"


def _decide_outbox(facts: JobFacts) -> Action:
    if facts.resume_asked:
        return ForgetResume("the job has just ended; ask again when it is filed")
    if facts.result is None:
        return Wait("it has no result; that should not be")
    return Move(facts.result.outcome.phase, facts.result.outcome)


def _decide_filed(facts: JobFacts) -> Action:
    if not facts.resume_asked:
        return Wait("filed")
    if facts.phase is Phase.DONE:
        return ForgetResume("it succeeded; finetunectl resubmit runs it anew")
    if facts.refusal is not None:
        return ForgetResume(f"it never was a job: {facts.refusal.what}")
    if facts.result is not None:
        return PutResultAway()
    for wish in Wish:
        if wish in facts.wishes:
            return DropWish(wish)
    return Move(Phase.QUEUED, "resumed as asked")


def taken_devices(active: Sequence[JobFacts]) -> frozenset[str]:
    """Devices of the newest train launch of each job in `active/`."""
    newest = [facts.train.newest for facts in active]
    return frozenset(device for launch in newest if launch is not None for device in launch.devices)
