"""One turn of the daemon: observe, decide, carry out. Every turn starts from the disk; nothing is remembered.

A crash between any two writes is repaired by the next turn, with the code that runs when nothing crashes.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Protocol, assert_never

from finetuned.core import queue
from finetuned.core.job import Launch, Phase, Result, Stage, Wish
from finetuned.core.lifecycle import (
    Action,
    Alive,
    Conclude,
    CopySpec,
    DropWish,
    ForgetResume,
    JobFacts,
    LaunchPrepare,
    Move,
    PutResultAway,
    Ready,
    Stop,
    Wait,
    WritePlan,
    decide,
    taken_devices,
)
from finetuned.core.messages import Kind
from finetuned.core.plan import RunPlan
from finetuned.core.retry import Limits

# A dropped file goes from claim to preparation in one turn; no road through the phases is longer than this.
_ACTIONS_A_TURN = 10


class JobTrouble(Exception):
    """This job cannot be read or written now; the others go on. The message says what is wrong."""


class World(Protocol):
    """What a turn looks at, and the writes it can do: each of these is one step that a crash can fall before or after.

    All of them raise JobTrouble for trouble with that one job.
    """

    def receive(self) -> None:
        """Claim what was dropped and move requests into their jobs; trouble is logged and met again next turn."""

    def jobs(self) -> Iterable[str]:
        """Every job in a live phase, and filed ones that were asked to resume; oldest first."""

    def facts(self, job: str) -> JobFacts: ...

    def devices(self) -> tuple[str, ...]:
        """Ids of all devices that runs can take."""

    def prepare_slots(self) -> int:
        """How many jobs may be prepared at once."""

    def holds_devices(self, job: str) -> bool:
        """Whether an unreadable job may be using a device: it stands in active/ and something of it may live."""

    def say(self, job: str, kind: Kind, what: str, mistake: Exception | None = None) -> None:
        """A line for the person who reads the journal, with the traceback of a mistake of ours.

        Not repeated while it is the last thing said of that job.
        """

    def now(self) -> datetime: ...

    def copy_spec(self, job: str) -> None: ...

    def write_plan(self, job: str, plan: RunPlan) -> None: ...

    def write_launch(self, job: str, stage: Stage, devices: tuple[str, ...]) -> Launch: ...

    def start(self, job: str, launch: Launch) -> None: ...

    def stop(self, job: str, stage: Stage) -> None: ...

    def write_result(self, job: str, result: Result) -> None: ...

    def move(self, job: str, to: Phase) -> None: ...

    def put_result_away(self, job: str) -> None: ...

    def drop_wish(self, job: str, wish: Wish) -> None: ...

    def forget_resume(self, job: str, answer: str) -> None: ...


def turn(world: World, limits: Limits) -> None:
    """Bring every job as far as it can go now."""
    world.receive()
    ready: list[Ready] = []
    active: list[JobFacts] = []
    unprepared: list[Ready] = []
    preparing = 0
    all_taken = False
    for job in list(world.jobs()):
        try:
            facts, action = _advance(world, job, limits)
        except JobTrouble as trouble:
            world.say(job, Kind.TROUBLE, str(trouble))
            all_taken = all_taken or world.holds_devices(job)
            continue
        except Exception as mistake:
            what = f"left as it is; this should not happen: {type(mistake).__name__}: {mistake}"
            world.say(job, Kind.MISTAKE, what, mistake)
            all_taken = all_taken or world.holds_devices(job)
            continue
        if isinstance(action, Ready):
            ready.append(action)
        if isinstance(action, LaunchPrepare):
            unprepared.append(Ready(job, facts.priority))
        preparing += facts.prepare.alive is not Alive.NO
        if facts.phase is Phase.ACTIVE:
            active.append(facts)
    _start_preparing(world, unprepared, world.prepare_slots() - preparing)
    if not all_taken:
        _start_runs(world, ready, taken_devices(active))


def _advance(world: World, job: str, limits: Limits) -> tuple[JobFacts, Action]:
    """Act until there is nothing more to do for this job alone; the last facts, and the decision that remains."""
    for _ in range(_ACTIONS_A_TURN):
        facts = world.facts(job)
        action = decide(facts, limits)
        if isinstance(action, Wait | Ready | LaunchPrepare):
            return facts, action
        _carry_out(world, facts, action)
        if isinstance(action, Stop):
            return facts, action
    return facts, action


def _carry_out(world: World, facts: JobFacts, action: Action) -> None:
    job = facts.job
    match action:
        case CopySpec():
            world.copy_spec(job)
        case WritePlan(plan=plan):
            world.write_plan(job, plan)
            steps, size = plan.schedule.total_steps, plan.batches.global_batch_size
            world.say(job, Kind.PLANNED, f"planned {steps} steps of {size} examples")
        case Stop(stage=stage, why=why):
            world.say(job, Kind.STOPPING, f"stopping {stage}: {why}")
            world.stop(job, stage)
        case Conclude():
            world.write_result(job, _result(facts, action, world.now()))
            world.say(job, Kind(action.outcome), f"{action.outcome}: {action.reason}")
        case Move(to=to, why=why):
            world.move(job, to)
            world.say(job, Kind.MOVED, f"{facts.phase} → {to}: {why}")
        case PutResultAway():
            world.put_result_away(job)
        case DropWish(wish=wish):
            world.drop_wish(job, wish)
        case ForgetResume(answer=answer):
            world.forget_resume(job, answer)
        case Wait() | Ready() | LaunchPrepare():
            pass
        case _:
            assert_never(action)


def _result(facts: JobFacts, action: Conclude, now: datetime) -> Result:
    return Result(
        outcome=action.outcome,
        reason=action.reason,
        problems=action.problems,
        hint=action.hint,
        attempts=sum(launch.attempt is not None for launch in facts.train.launches),
        last_launch=facts.last_launch,
        ended=now,
    )


def _start_preparing(world: World, unprepared: list[Ready], free_slots: int) -> None:
    """Some at a time: a hundred jobs dropped at once must not take the memory from under one another."""
    for job in [each.job for each in queue.in_order(unprepared)][: max(0, free_slots)]:
        try:
            _start(world, job, world.write_launch(job, Stage.PREPARE, ()))
        except JobTrouble as trouble:
            world.say(job, Kind.TROUBLE, str(trouble))


def _start_runs(world: World, ready: list[Ready], taken: frozenset[str]) -> None:
    for start in queue.choose(ready, world.devices(), taken):
        try:
            # Before the move: where there is no room for it, the job stays in its place and does not go to and fro.
            launch = world.write_launch(start.job, Stage.TRAIN, start.devices)
            world.move(start.job, Phase.ACTIVE)
            _start(world, start.job, launch)
        except JobTrouble as trouble:
            world.say(start.job, Kind.TROUBLE, str(trouble))


def _start(world: World, job: str, launch: Launch) -> None:
    devices = f" on {launch.devices[0]}" if launch.devices else ""
    world.say(job, Kind.LAUNCHED, f"launch {launch.number}: {launch.stage}{devices}")
    world.start(job, launch)
