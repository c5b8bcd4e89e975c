"""The real world of a turn: what is said of a job, and what its receipt tells."""

import logging
from pathlib import Path

import pytest

from finetuned.core.job import Launch, Phase, Stage
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
