"""One look at a job's directory: everything that is there, read once, and never raising for what is wrong inside."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from finetuned.core.events import History, Progress
from finetuned.core.job import Claim, Launch, Phase, Result, Stage, Wish
from finetuned.core.lifecycle import LaunchFacts, Ready
from finetuned.core.plan import Facts, RunPlan
from finetuned.core.problems import InvalidSpec
from finetuned.core.queue import in_order
from finetuned.core.spec import parse_spec
from finetuned.ctl.jobs import locate
from finetuned.host.files import is_locked
from finetuned.host.jobdir import JobDir, Unreadable
from finetuned.host.journal import HistoryReader
from finetuned.host.launches import launch_facts, since_last_result


@dataclass(frozen=True)
class Sight:
    """Everything one look at a job's directory found."""

    job: JobDir
    claim: Claim | None = None
    priority: int = 0
    base_model: str = ""
    facts: Facts | None = None
    plan: RunPlan | None = None
    result: Result | None = None
    wishes: frozenset[Wish] = frozenset()
    has_spec: bool = True
    """The daemon has read what was dropped."""
    past: dict[Stage, tuple[tuple[Launch, LaunchFacts], ...]] = field(default_factory=dict)
    """Launches since the last result, oldest first, and what came of them."""
    histories: dict[Stage, History] = field(default_factory=dict)
    alive: dict[Stage, bool | None] = field(default_factory=dict)
    unreadable: str = ""

    @property
    def is_refused(self) -> bool:
        """What was dropped can never be a job."""
        return self.claim is not None and self.claim.refusal is not None

    def progress(self) -> Progress:
        """Of the stage that matters now: train once it has begun, prepare before."""
        return self.histories.get(self.main_stage, History()).progress

    @property
    def main_stage(self) -> Stage:
        train = self.histories.get(Stage.TRAIN, History())
        return Stage.TRAIN if train.attempts or self.job.phase is Phase.ACTIVE else Stage.PREPARE

    def is_alive(self, stage: Stage) -> bool:
        """Where this user may not look at the lock: whether its newest attempt has no ending."""
        alive = self.alive[stage]
        if alive is not None:
            return alive
        attempts = self.histories[stage].attempts
        return bool(attempts) and attempts[-1].ending is None


def look_at_job(job: JobDir) -> Sight:
    """Never raises for what is wrong inside the job: that is the sight's `unreadable`.

    A job that moves to another phase meanwhile is looked at again there.
    """
    while True:
        try:
            sight = _look(job)
        except (Unreadable, OSError) as error:
            sight = Sight(job, unreadable=str(error))
        if job.path.is_dir() or (moved := locate(job)) is None:
            return sight
        job = moved


def _look(job: JobDir) -> Sight:
    claim = job.read_claim()
    if claim is None:
        raise Unreadable(f"{job.claim_file} is missing")
    text = job.read_spec_text()
    priority, base_model = _asked(job, text)
    histories = {stage: HistoryReader(job.events_file(stage)).read() for stage in Stage}
    launches = since_last_result(job, job.read_launches())
    return Sight(
        job=job,
        claim=claim,
        priority=priority,
        base_model=base_model,
        facts=job.read_facts(),
        plan=job.read_plan(),
        result=job.read_result(),
        wishes=job.wishes(),
        has_spec=text is not None,
        past={stage: _past(job, launches, stage, histories[stage]) for stage in Stage},
        histories=histories,
        alive={stage: _is_alive(job.lock_file(stage)) for stage in Stage},
    )


def _past(
    job: JobDir, launches: list[Launch], stage: Stage, history: History
) -> tuple[tuple[Launch, LaunchFacts], ...]:
    asked = [launch for launch in launches if launch.stage is stage]
    return tuple(zip(asked, launch_facts(job, asked, history), strict=True))


def _asked(job: JobDir, text: str | None) -> tuple[int, str]:
    """Priority and base model of the spec; nothing of one that does not parse."""
    if text is None:
        return 0, ""
    try:
        spec = parse_spec(text, job.job).spec
    except InvalidSpec:
        return 0, ""
    return spec.priority, spec.base_model


def _is_alive(lock: Path) -> bool | None:
    try:
        return is_locked(lock)
    except PermissionError:
        return None


def queue_positions(sights: Iterable[Sight]) -> dict[str, int]:
    """1 for the job whose turn comes first; held, cancelled and ended ones have no turn."""
    waiting = [
        Ready(sight.job.job, sight.priority)
        for sight in sights
        if sight.job.phase is Phase.QUEUED and not sight.wishes and sight.result is None and not sight.unreadable
    ]
    return {ready.job: position for position, ready in enumerate(in_order(waiting), start=1)}
