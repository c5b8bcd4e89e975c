"""A crash after any single write is repaired by the next turn, by the same code that runs when nothing crashes."""

import logging
import random

import pytest

from finetuned.core.job import Phase, Stage, Wish
from finetuned.core.lifecycle import SpecState
from finetuned.core.retry import Limits
from finetuned.service.turn import turn
from simulated import Crash, Faults, Job, SimulatedWorld

LIMITS = Limits()


def settle(world: SimulatedWorld, turns: int = 400) -> None:
    """Turns without faults until every job is filed."""
    world.without_faults()
    for _ in range(turns):
        for job in world.jobs_on_disk.values():
            job.wishes.discard(Wish.HOLD)
        turn(world, LIMITS)
        world.tick()
        if not world.processes and all(j.phase.is_terminal and not j.resume_asked for j in world.jobs_on_disk.values()):
            return


def try_turn(world: SimulatedWorld) -> None:
    try:
        turn(world, LIMITS)
    except Crash:
        return  # The next turn is a new daemon's first one: it has nothing but what is on disk.


def drop(world: SimulatedWorld, rng: random.Random, count: int) -> None:
    for number in range(count):
        world.dropped.append(Job(f"job-{number}", is_bad=rng.random() < 0.1))


def disturb(world: SimulatedWorld, rng: random.Random) -> None:
    """What people do meanwhile."""
    for job in list(world.jobs_on_disk.values()):
        dice = rng.random()
        if dice < 0.02:
            world.wish(job.id, Wish.CANCEL)
        elif dice < 0.05:
            world.wish(job.id, Wish.HOLD)
        elif dice < 0.15:
            world.release(job.id)
        elif dice < 0.18:
            world.ask_resume(job.id)
        elif dice < 0.20 and may_still_change(job):
            job.spec = SpecState.CHANGED


def may_still_change(job: Job) -> bool:
    """A job file is read again until the first run."""
    never_ran = not any(launch.stage == "train" for launch in job.launches)
    return job.phase is Phase.QUEUED and job.spec is SpecState.CURRENT and never_ran


def live_through(seed: int, faults: Faults, jobs: int = 3) -> SimulatedWorld:
    rng = random.Random(seed)
    world = SimulatedWorld(rng, faults, devices=rng.choice((1, 2)))
    drop(world, rng, jobs)
    for _ in range(40):
        try_turn(world)
        world.tick()
        disturb(world, rng)
    settle(world)
    world.check_endings()
    return world


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.CRITICAL)
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


EVERYTHING = Faults(
    crash=0.1,
    full_disk=0.05,
    never_starts=0.1,
    killed=0.05,
    dies=0.03,
    fails_retry=0.03,
    fails_for_good=0.01,
    reboot=0.03,
    unknown=0.05,
)


@pytest.mark.parametrize("block", range(10))
def test_every_job_ends_once_and_rightly_whatever_crashes(block):
    for seed in range(block * 150, (block + 1) * 150):
        live_through(seed, EVERYTHING)


@pytest.mark.parametrize("block", range(4))
def test_kills_reboots_and_crashes_of_the_daemon_never_fail_a_job(block):
    faults = Faults(crash=0.15, full_disk=0.05, never_starts=0.2, killed=0.15, reboot=0.1, unknown=0.1)
    for seed in range(10_000 + block * 150, 10_000 + (block + 1) * 150):
        world = live_through(seed, faults)
        assert not [j.id for j in world.jobs_on_disk.values() if j.phase is Phase.FAILED and not j.is_bad]


def test_of_many_jobs_dropped_at_once_some_are_prepared_at_a_time_oldest_first():
    world = SimulatedWorld(random.Random(1), Faults())
    drop(world, random.Random(1), 9)
    for job in world.dropped:
        job.is_bad = False
    begun: list[str] = []
    most = 0
    for _ in range(100):
        try_turn(world)
        preparing = [process.job for process in world.processes if process.launch.stage is Stage.PREPARE]
        most = max(most, len(preparing))
        begun += [job for job in preparing if job not in begun]
        world.tick()
    assert most == world.prepare_slots()
    assert begun == [f"job-{number}" for number in range(9)]


def test_a_crash_at_each_write_of_an_undisturbed_life_changes_nothing():
    """Crash exactly once, at the n-th write, for every n."""

    class CrashAt(random.Random):
        def __init__(self, at: int):
            super().__init__(at)
            self.calls, self.at = 0, at

    for at in range(1, 40):
        rng = CrashAt(at)
        world = SimulatedWorld(rng, Faults())
        world.dropped.append(Job("job-0"))
        original = world._write
        writes = 0

        def crashing(effect, at=at, original=original):
            nonlocal writes
            writes += 1
            original(effect)
            if writes == at:
                raise Crash

        world._write = crashing
        for _ in range(60):
            try_turn(world)
            world.tick()
        job = world.jobs_on_disk["job-0"]
        assert job.phase is Phase.DONE, f"crash after write {at}: {job}"
        assert sum(attempt.ending is not None for attempt in job.attempts.values()) == len(job.attempts)
