"""The real world of a turn: what is said of a job, and what its receipt tells."""

import errno
import logging
from pathlib import Path

import pytest

from finetuned.core.job import Launch, Phase, Stage
from finetuned.core.lifecycle import Ready
from finetuned.core.record import Record
from finetuned.core.retry import Limits
from finetuned.host.claim import Arrivals
from finetuned.host.jobdir import JobDir, read_record
from finetuned.host.launch import LaunchFailed, Observation
from finetuned.host.receipts import Receipt
from finetuned.host.settings import Settings
from finetuned.host.spool import Spool
from finetuned.service.turn import turn
from finetuned.service.world import DiskWorld
from spools import a_queued_job, a_spool


class NothingStarts:
    """A launcher on a machine where no stage can be started."""

    def start(self, job: JobDir, launch: Launch) -> None:
        raise LaunchFailed("not here")

    def stop(self, job: JobDir, stage: Stage) -> None:
        pass

    def observe(self, job: JobDir, stage: Stage) -> Observation:
        return Observation.GONE


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return a_spool(tmp_path)


@pytest.fixture
def world(spool: Spool) -> DiskWorld:
    return DiskWorld(spool, Settings(), NothingStarts(), Arrivals(spool, Settings()))


def test_a_receipt_tells_the_place_among_the_queued_jobs(spool: Spool, world: DiskWorld) -> None:
    running, earlier, job = (a_queued_job(spool, job=f"20261130-22150{n}-tone-7f3a09c{n}") for n in range(3))
    spool.move(running, Phase.ACTIVE)
    assert list(world.jobs()) == [running.job, earlier.job, job.job]
    world.copy_spec(job.job)
    receipt = read_record(spool.receipts / f"{job.job}.json", Receipt)
    assert receipt is not None
    assert receipt.position == 2


def test_a_mistake_of_ours_is_told_with_its_traceback_and_once(
    spool: Spool, world: DiskWorld, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistaken(_job: JobDir) -> None:
        raise ZeroDivisionError("a slip")

    job = a_queued_job(spool)
    monkeypatch.setattr(JobDir, "read_launches", mistaken)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            turn(world, Limits())
    [said] = [record for record in caplog.records if job.job in record.getMessage()]
    assert "ZeroDivisionError: a slip" in said.getMessage()
    assert said.exc_info is not None


class NobodyCanTell(NothingStarts):
    """A launcher whose systemd does not answer."""

    def observe(self, job: JobDir, stage: Stage) -> Observation:
        return Observation.UNKNOWN


def test_while_nobody_can_tell_what_runs_that_is_told_and_nothing_is_done(
    spool: Spool, caplog: pytest.LogCaptureFixture
) -> None:
    world = DiskWorld(spool, Settings(), NobodyCanTell(), Arrivals(spool, Settings()))
    job = a_queued_job(spool)
    for _ in range(3):
        turn(world, Limits())
    assert [
        record.getMessage() for record in caplog.records if "cannot be told which stages run" in record.message
    ] == ["it cannot be told which stages run (does systemctl answer?); nothing is started or stopped now"]
    assert job.read_launches() == []


def a_ready_job(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> JobDir:
    job = a_queued_job(spool)
    monkeypatch.setattr("finetuned.service.turn.decide", lambda facts, _limits: Ready(facts.job, 0))
    return job


def test_a_ready_job_stays_in_its_place_while_a_full_disk_has_no_room_for_its_launch(
    spool: Spool, world: DiskWorld, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, _record: Record) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    job = a_ready_job(spool, monkeypatch)
    monkeypatch.setattr("finetuned.service.world.write_record", full)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            turn(world, Limits())
    assert spool.jobs(Phase.QUEUED) == [job]
    [said] = [record.getMessage() for record in caplog.records if job.job in record.getMessage()]
    assert said.endswith("launches/0001.json: No space left on device")


def test_a_step_that_cannot_be_taken_is_told_once(
    spool: Spool, world: DiskWorld, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(_spool: Spool, job: JobDir, _phase: Phase) -> JobDir:
        raise OSError(errno.EROFS, "Read-only file system", str(job.path))

    job = a_queued_job(spool, spec="base_model: /nowhere\ndatasets: []\n")
    monkeypatch.setattr(Spool, "move", read_only)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            turn(world, Limits())
    said = [record.getMessage() for record in caplog.records if job.job in record.getMessage()]
    assert len(said) == 2
    assert "failed: " in said[0]
    assert said[1].endswith("Read-only file system")


def test_a_spool_that_is_away_is_told_once_a_minute_and_is_taken_up_when_it_is_back(
    spool: Spool, caplog: pytest.LogCaptureFixture
) -> None:
    clock = [0.0]
    world = DiskWorld(spool, Settings(), NothingStarts(), Arrivals(spool, Settings()), lambda: clock[0])
    job = a_queued_job(spool)
    away = spool.path.with_name("away")
    spool.path.rename(away)
    for clock[0] in (1.0, 3.0, 59.0, 61.0, 63.0):
        turn(world, Limits())
    assert [f"{spool.path} cannot be looked at" in record.getMessage() for record in caplog.records] == [True, True]
    assert not any(record.exc_info for record in caplog.records)
    away.rename(spool.path)
    world.receive()
    assert list(world.jobs()) == [job.job]
