"""What the disk and the launcher say about a job, as the facts that `core.lifecycle.decide` wants. Decides nothing."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from finetuned.core.events import Progress
from finetuned.core.job import Launch, Phase, Stage
from finetuned.core.lifecycle import Alive, JobFacts, SpecState, StageFacts
from finetuned.core.plan import Facts, Machine, RunPlan
from finetuned.core.planning import make_plan
from finetuned.core.problems import CannotRun, InvalidSpec, Problem
from finetuned.core.spec import JobSpec, parse_spec
from finetuned.host.claim import dropped_folder, spec_changed
from finetuned.host.files import is_locked
from finetuned.host.jobdir import JobDir
from finetuned.host.journal import HistoryReader
from finetuned.host.launch import Launcher, Observation
from finetuned.host.launches import launch_facts, since_last_result
from finetuned.host.sources import source_problems
from finetuned.host.store import Store


@dataclass
class _Memory:
    """Kept only so as not to read it again; all of it may be lost at any time."""

    freshness: object = None
    facts: JobFacts | None = None
    histories: dict[Path, HistoryReader] = field(default_factory=dict)
    last_alive: dict[Stage, float] = field(default_factory=dict)
    running: dict[Stage, Progress] = field(default_factory=dict)


class Observer:
    """Facts of jobs. Reads a job again only if it may have changed: its folder moved, or something in it runs."""

    def __init__(self, launcher: Launcher, machine: Callable[[], Machine], clock: Callable[[], float]):
        """`clock`: seconds that go on while the machine sleeps and never jump (CLOCK_BOOTTIME)."""
        self._launcher, self._machine, self._clock = launcher, machine, clock
        self._memories: dict[str, _Memory] = {}

    def forget(self, job: str) -> None:
        """Read this job anew at the next look: something in it was just written."""
        if memory := self._memories.get(job):
            memory.facts = None

    def look_at_all_again(self, jobs: set[str]) -> None:
        """Trust nothing that was seen before; jobs that are not among these are no longer of interest."""
        self._memories = {job: memory for job, memory in self._memories.items() if job in jobs}
        for job in jobs:
            self.forget(job)

    def running(self) -> dict[str, Progress]:
        """By job: where the stage is that ran when it was last looked at."""
        return {job: progress for job, memory in self._memories.items() for progress in memory.running.values()}

    def observe(self, job: JobDir, resume_asked: bool = False) -> JobFacts:
        """Everything that decides what is next. Raises Unreadable or OSError."""
        memory = self._memories.setdefault(job.job, _Memory())
        freshness = (_freshness(job), resume_asked)
        if memory.facts is None or memory.freshness != freshness:
            facts = self._look(job, memory, resume_asked)
            is_at_rest = facts.prepare.alive is Alive.NO and facts.train.alive is Alive.NO
            memory.freshness, memory.facts = freshness, facts if is_at_rest else None
            return facts
        return replace(
            memory.facts,
            prepare=replace(memory.facts.prepare, dead_seconds=self._dead_seconds(memory, Stage.PREPARE)),
            train=replace(memory.facts.train, dead_seconds=self._dead_seconds(memory, Stage.TRAIN)),
        )

    def _look(self, job: JobDir, memory: _Memory, resume_asked: bool) -> JobFacts:
        launches = job.read_launches()
        counted = since_last_result(job, launches)
        claim = job.read_claim()
        facts = JobFacts(
            job=job.job,
            phase=job.phase,
            refusal=claim.refusal if claim else None,
            prepare=self._stage_facts(job, Stage.PREPARE, counted, memory),
            train=self._stage_facts(job, Stage.TRAIN, counted, memory),
            wishes=job.wishes(),
            resume_asked=resume_asked,
            result=job.read_result(),
        )
        if facts.phase is not Phase.QUEUED or facts.refusal is not None:
            return facts
        has_trained = any(launch.stage is Stage.TRAIN for launch in launches)
        return self._with_spec(job, facts, claim.name if claim else "job.yaml", has_trained)

    def _stage_facts(self, job: JobDir, stage: Stage, launches: list[Launch], memory: _Memory) -> StageFacts:
        # Aliveness first: whatever was seen dead has written all it will ever write before its events are read.
        alive = self._aliveness(job, stage)
        if alive is not Alive.NO:
            memory.last_alive[stage] = self._clock()
        path = job.events_file(stage)
        history = memory.histories.setdefault(path, HistoryReader(path)).read()
        memory.running.pop(stage, None)
        if alive is Alive.YES:
            memory.running[stage] = history.progress
        return StageFacts(
            alive=alive,
            launches=launch_facts(job, [launch for launch in launches if launch.stage is stage], history),
            dead_seconds=self._dead_seconds(memory, stage),
        )

    def _aliveness(self, job: JobDir, stage: Stage) -> Alive:
        if is_locked(job.lock_file(stage)):
            return Alive.YES
        match self._launcher.observe(job, stage):
            case Observation.RUNNING:
                return Alive.YES
            case Observation.GONE:
                return Alive.NO
            case Observation.UNKNOWN:
                return Alive.UNKNOWN

    def _dead_seconds(self, memory: _Memory, stage: Stage) -> float:
        now = self._clock()
        return now - memory.last_alive.setdefault(stage, now)

    def _with_spec(self, job: JobDir, facts: JobFacts, name: str, has_trained: bool) -> JobFacts:
        """The facts, with what the job file says and what was made of it."""
        text = job.read_spec_text()
        if text is None:
            return facts
        if not has_trained and spec_changed(job):
            return replace(facts, spec=SpecState.CHANGED)
        facts = replace(facts, spec=SpecState.CURRENT)
        spec = _parse(text, name)
        if not isinstance(spec, JobSpec):
            return replace(facts, problems=spec)
        facts = replace(facts, priority=spec.priority)
        found = job.read_facts()
        if found is None or not Store(job.spool / "store").has_prepared(found.data.prepared):
            # Once prepare has been launched, it says itself what it cannot read.
            return (
                facts if facts.prepare.launches else replace(facts, problems=source_problems(spec, dropped_folder(job)))
            )
        if job.plan_file.exists():
            return replace(facts, is_prepared=True, is_planned=True)
        return replace(facts, is_prepared=True, draft=_draft(spec, found, self._machine()))


@lru_cache(maxsize=256)
def _parse(text: str, name: str) -> JobSpec | tuple[Problem, ...]:
    try:
        return parse_spec(text, name).spec
    except InvalidSpec as error:
        return error.problems


def _draft(spec: JobSpec, found: Facts, machine: Machine) -> RunPlan | tuple[Problem, ...] | None:
    if not machine.devices:
        return None
    try:
        return make_plan(spec, found, machine)
    except CannotRun as error:
        return error.problems


def _freshness(job: JobDir) -> tuple[object, ...]:
    """Changes whenever the daemon, a stage or a person may have changed what a resting job's facts rest on."""
    folder = os.stat(job.path)
    try:
        dropped = os.stat(job.dropped, follow_symlinks=False)
    except FileNotFoundError:
        return (str(job.path), folder.st_ctime_ns)
    return (str(job.path), folder.st_ctime_ns, dropped.st_ino, dropped.st_ctime_ns)
