"""A whole machine in memory: spool, processes, clock, disk. The daemon may crash before and after any single write.

`SimulatedWorld` implements the writes of `service.turn.World`; what it keeps is what would be on disk, so a crash loses
nothing but where the turn was. Stages run on their own, as real ones do, and die in all the ways real ones do.
"""

import random
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from finetuned.core.events import Attempt, Ending, FailedForGood, FailedRetry, Finished, Started, Stopped
from finetuned.core.job import Exit, Launch, Outcome, Phase, Result, Stage, Wish
from finetuned.core.lifecycle import Alive, JobFacts, LaunchFacts, SpecState, StageFacts
from finetuned.core.messages import Kind
from finetuned.core.plan import RunPlan
from finetuned.core.problems import Problem
from finetuned.service.turn import JobTrouble

EPOCH = datetime(2026, 11, 30, tzinfo=UTC)
TOTAL_STEPS = 12
A_PLAN = RunPlan.model_construct(
    schedule=RunPlan.model_construct(total_steps=TOTAL_STEPS), batches=RunPlan.model_construct(global_batch_size=1)
)


class Crash(BaseException):
    """The daemon is killed here."""


class Violation(BaseException):
    """Something happened that never may; not an Exception, so that the turn's broad except cannot swallow it."""


def must(holds: object, otherwise: str) -> None:
    if not holds:
        raise Violation(otherwise)


@dataclass
class Faults:
    """Chances, each per write or per tick."""

    crash: float = 0.0
    full_disk: float = 0.0
    never_starts: float = 0.0
    killed: float = 0.0
    dies: float = 0.0
    fails_retry: float = 0.0
    fails_for_good: float = 0.0
    reboot: float = 0.0
    unknown: float = 0.0


@dataclass
class Process:
    """A launched stage. It opens its attempt some time after the launch, if the launch is still its own."""

    job: str
    launch: Launch
    has_started: bool = False
    asked_to_stop: bool = False
    step: int = 0


@dataclass
class Job:
    id: str
    phase: Phase = Phase.QUEUED
    spec: SpecState = SpecState.MISSING
    is_bad: bool = False
    prepared: bool = False
    planned: bool = False
    launches: list[Launch] = field(default_factory=list)
    attempts: dict[int, Attempt] = field(default_factory=dict)
    """By launch number."""
    exits: dict[int, Exit] = field(default_factory=dict)
    checkpoint: int = 0
    wishes: set[Wish] = field(default_factory=set)
    result: Result | None = None
    earlier: list[Result] = field(default_factory=list)
    resume_asked: bool = False
    last_life: dict[Stage, float] = field(default_factory=dict)
    was_ever_cancelled: bool = False
    resumes_due: int = 0
    harmed_itself: bool = False
    """It failed or died by itself at some time, so failing it may be right."""


class SimulatedWorld:
    def __init__(self, rng: random.Random, faults: Faults, devices: int = 1):
        self.rng, self.faults = rng, faults
        self.jobs_on_disk: dict[str, Job] = {}
        self.processes: list[Process] = []
        self.seconds = 0.0
        self._devices = tuple(f"cpu:{number}" for number in range(devices))
        self.dropped: list[Job] = []
        self.history: list[str] = []

    # --- what a turn sees -------------------------------------------------------------------------------------------

    def receive(self) -> None:
        while self.dropped:
            try:
                self._write(lambda: self.jobs_on_disk.__setitem__(self.dropped[0].id, self.dropped[0]))
            except JobTrouble:
                return
            self.dropped.pop(0)

    def jobs(self) -> list[str]:
        return sorted(j.id for j in self.jobs_on_disk.values() if not j.phase.is_terminal or j.resume_asked)

    def facts(self, job: str) -> JobFacts:
        found = self.jobs_on_disk[job]
        return JobFacts(
            job=job,
            phase=found.phase,
            spec=found.spec,
            problems=(Problem(place="line 1", what="bad"),) if found.is_bad else (),
            is_prepared=found.prepared,
            is_planned=found.planned,
            draft=A_PLAN if found.prepared and not found.planned else None,
            prepare=self._stage_facts(found, Stage.PREPARE),
            train=self._stage_facts(found, Stage.TRAIN),
            wishes=frozenset(found.wishes),
            resume_asked=found.resume_asked,
            result=found.result,
        )

    def _stage_facts(self, job: Job, stage: Stage) -> StageFacts:
        since = job.earlier[-1].last_launch if job.earlier else 0
        launches = tuple(
            LaunchFacts(launch.number, launch.devices, job.attempts.get(launch.number), job.exits.get(launch.number))
            for launch in job.launches
            if launch.stage is stage and launch.number > since
        )
        alive = Alive.YES if self._living(job.id, stage) else Alive.NO
        if self.rng.random() < self.faults.unknown:
            alive = Alive.UNKNOWN
        return StageFacts(alive, launches, self.seconds - job.last_life.get(stage, -1e9))

    def devices(self) -> tuple[str, ...]:
        return self._devices

    def prepare_slots(self) -> int:
        return 2

    def holds_devices(self, job: str) -> bool:
        return self.jobs_on_disk[job].phase is Phase.ACTIVE

    def say(self, job: str, kind: Kind, what: str, mistake: Exception | None = None) -> None:
        self.history.append(f"{job}: {what}")

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self.seconds)

    # --- the writes of a turn ---------------------------------------------------------------------------------------

    def _write(self, effect) -> None:
        if self.rng.random() < self.faults.crash:
            raise Crash("before a write")
        if self.rng.random() < self.faults.full_disk:
            raise JobTrouble("no space left on device")
        effect()
        if self.rng.random() < self.faults.crash:
            raise Crash("after a write")

    def copy_spec(self, job: str) -> None:
        found = self.jobs_on_disk[job]
        must(not self._living(job, Stage.PREPARE), "a spec is replaced under a running prepare")
        self._write(lambda: (setattr(found, "planned", False), setattr(found, "prepared", False)))
        self._write(lambda: setattr(found, "spec", SpecState.CURRENT))

    def write_plan(self, job: str, plan: RunPlan) -> None:
        self._write(lambda: setattr(self.jobs_on_disk[job], "planned", True))

    def write_launch(self, job: str, stage: Stage, devices: tuple[str, ...]) -> Launch:
        found = self.jobs_on_disk[job]
        must(found.result is None, "launched after its result")
        must(not self._living(job, stage), "launched while an earlier launch lives")
        must(Wish.HOLD not in found.wishes or stage is Stage.TRAIN, "launched while on hold")
        number = len(found.launches) + 1
        launch = Launch(number=number, stage=stage, devices=devices, boot_id="b", release="python", asked=self.now())
        self._write(lambda: found.launches.append(launch))
        return launch

    def start(self, job: str, launch: Launch) -> None:
        self._write(lambda: self.processes.append(Process(job, launch)))

    def stop(self, job: str, stage: Stage) -> None:
        def ask() -> None:
            for process in self._living(job, stage):
                process.asked_to_stop = True

        self._write(ask)

    def write_result(self, job: str, result: Result) -> None:
        found = self.jobs_on_disk[job]
        must(found.result is None, "a result is rewritten")
        must(not self._living(job, Stage.TRAIN), "a result is written while its worker lives")
        self._write(lambda: setattr(found, "result", result))

    def move(self, job: str, to: Phase) -> None:
        must(not any(self._living(job, stage) for stage in Stage), "moved while something of it lives")
        self._write(lambda: setattr(self.jobs_on_disk[job], "phase", to))

    def put_result_away(self, job: str) -> None:
        found = self.jobs_on_disk[job]

        def rename() -> None:
            found.earlier.extend([found.result] if found.result else [])
            found.result = None

        self._write(rename)

    def drop_wish(self, job: str, wish: Wish) -> None:
        self._write(lambda: self.jobs_on_disk[job].wishes.discard(wish))

    def forget_resume(self, job: str, answer: str) -> None:
        self._write(lambda: setattr(self.jobs_on_disk[job], "resume_asked", False))

    # --- what goes on meanwhile -------------------------------------------------------------------------------------

    def _living(self, job: str, stage: Stage) -> list[Process]:
        return [p for p in self.processes if p.job == job and p.launch.stage is stage]

    def tick(self) -> None:
        """Time passes; every process does a little; people drop wishes elsewhere."""
        self.seconds += self.rng.choice((0.1, 2, 2, 30, 700))
        if self.rng.random() < self.faults.reboot:
            for process in list(self.processes):
                self._end(process, exit_=None)
        for process in list(self.processes):
            self._live(process)

    def _live(self, process: Process) -> None:
        chance = self.rng.random
        if not process.has_started:
            self._open(process)
        elif process.asked_to_stop and chance() < 0.7:
            self._checkpoint(process)
            self._end(
                process, Stopped(time=self.now(), step=process.step, why="SIGTERM"), Exit(**self._how(process, 0))
            )
        elif chance() < self.faults.killed:
            self._end(process, exit_=Exit(**self._how(process, None), signal=9) if chance() < 0.5 else None)
        elif chance() < self.faults.dies:
            self.jobs_on_disk[process.job].harmed_itself = True
            self._end(process, exit_=Exit(**self._how(process, None), signal=11))
        elif chance() < self.faults.fails_retry:
            self.jobs_on_disk[process.job].harmed_itself = True
            error = FailedRetry(time=self.now(), step=process.step, error=f"error {self.rng.randrange(3)}")
            self._end(process, error, Exit(**self._how(process, 0)))
        elif chance() < self.faults.fails_for_good:
            self.jobs_on_disk[process.job].harmed_itself = True
            self._end(process, FailedForGood(time=self.now(), error="bad row"), Exit(**self._how(process, 0)))
        else:
            self._work(process)

    def _open(self, process: Process) -> None:
        """What host/stage.py does: lock, launch and folder are checked before *Started* is written."""
        job, stage = self.jobs_on_disk[process.job], process.launch.stage
        newest = max(launch.number for launch in job.launches if launch.stage is stage)
        own_folder = job.phase is (Phase.QUEUED if stage is Stage.PREPARE else Phase.ACTIVE)
        locked = any(other.has_started for other in self._living(job.id, stage) if other is not process)
        if locked or newest != process.launch.number or not own_folder or self.rng.random() < self.faults.never_starts:
            self.processes.remove(process)
            job.last_life[stage] = self.seconds
            return
        process.has_started = True
        process.step = job.checkpoint if stage is Stage.TRAIN else 0
        number = process.launch.number
        started = Started(time=self.now(), launch=number, attempt=number, pid=1, boot_id="b")
        must(number not in job.attempts, "a launch opened two attempts")
        job.attempts[number] = Attempt(started=started, checkpointed_step=job.checkpoint)
        if stage is Stage.TRAIN:
            running = [p for p in self.processes if p.has_started and p.launch.stage is Stage.TRAIN]
            used = [device for p in running for device in p.launch.devices]
            must(len(used) == len(set(used)), "two runs on one device")

    def _work(self, process: Process) -> None:
        job = self.jobs_on_disk[process.job]
        if process.launch.stage is Stage.PREPARE:
            if self.rng.random() < 0.5:
                must(job.spec is not SpecState.MISSING, "prepared without a spec")
                job.prepared = True
                self._end(process, Finished(time=self.now()), Exit(**self._how(process, 0)))
            return
        process.step = min(process.step + self.rng.randrange(1, 4), TOTAL_STEPS)
        if self.rng.random() < 0.5:
            self._checkpoint(process)
        if process.step == TOTAL_STEPS:
            self._checkpoint(process)
            self._end(process, Finished(time=self.now(), step=TOTAL_STEPS), Exit(**self._how(process, 0)))

    def _checkpoint(self, process: Process) -> None:
        job, number = self.jobs_on_disk[process.job], process.launch.number
        if process.launch.stage is Stage.TRAIN and process.step > job.checkpoint:
            job.checkpoint = process.step
            job.attempts[number] = job.attempts[number].model_copy(
                update={"checkpointed_step": process.step, "raised_checkpoint": True}
            )

    def _how(self, process: Process, returncode: int | None) -> dict:
        return {"launch": process.launch.number, "ended": self.now(), "returncode": returncode}

    def _end(self, process: Process, ending: Ending | None = None, exit_: Exit | None = None) -> None:
        job, number = self.jobs_on_disk[process.job], process.launch.number
        self.processes.remove(process)
        job.last_life[process.launch.stage] = self.seconds
        if number in job.attempts:
            job.attempts[number] = job.attempts[number].model_copy(update={"ending": ending, "step": process.step})
        if exit_ is not None:
            job.exits[number] = exit_

    def wish(self, job: str, wish: Wish) -> None:
        found = self.jobs_on_disk[job]
        if not found.phase.is_terminal and found.phase is not Phase.OUTBOX:
            found.wishes.add(wish)
            found.was_ever_cancelled |= wish is Wish.CANCEL

    def release(self, job: str) -> None:
        self.jobs_on_disk[job].wishes.discard(Wish.HOLD)

    def ask_resume(self, job: str) -> None:
        found = self.jobs_on_disk[job]
        if not found.resume_asked and found.phase in (Phase.FAILED, Phase.CANCELLED):
            found.resumes_due += 1
        found.resume_asked = True

    def without_faults(self) -> None:
        self.faults = replace(Faults())

    def check_endings(self) -> None:
        """What must hold of every filed job, whatever happened on the way."""
        for job in self.jobs_on_disk.values():
            assert job.phase.is_terminal, f"{job.id} is stuck in {job.phase}"
            assert job.result is not None
            assert job.result.outcome.phase is job.phase
            assert len(job.earlier) == job.resumes_due, "a resume was lost, or happened twice"
            if job.result.outcome is Outcome.SUCCEEDED:
                assert job.checkpoint == TOTAL_STEPS
            if job.result.outcome is Outcome.CANCELLED:
                assert job.was_ever_cancelled
            if job.result.outcome is Outcome.FAILED:
                assert job.is_bad or job.harmed_itself, f"{job.id} failed without fault: {job.result.reason}"
