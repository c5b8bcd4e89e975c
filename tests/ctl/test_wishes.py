"""cancel, hold, release, resume: what is written into requests/, and what is refused with a reason."""

import os

import pytest

from exports import EVENING
from finetuned.core.job import Phase, Wish
from finetuned.host.requests import take_requests


def requests(bench):
    return sorted(os.listdir(bench.spool.requests))


@pytest.mark.parametrize(
    ("verb", "phase", "wishes"),
    [
        ("cancel", Phase.QUEUED, ()),
        ("cancel", Phase.ACTIVE, ()),
        ("cancel", Phase.OUTBOX, ()),
        ("hold", Phase.ACTIVE, ()),
        ("release", Phase.QUEUED, (Wish.HOLD,)),
        ("resume", Phase.FAILED, ()),
        ("resume", Phase.CANCELLED, ()),
    ],
)
def test_a_request_that_makes_sense_is_written_for_the_daemon(bench, verb, phase, wishes):
    job = bench.job(phase, wishes=wishes)
    answer = bench.ctl(verb, "tone")
    assert (answer.code, answer.out) == (0, f"{job.job}\n")
    assert requests(bench) == [f"{job.job}.{verb}"]
    assert "no daemon is running" in answer.err


@pytest.mark.parametrize(
    ("verb", "phase", "wishes", "why"),
    [
        ("cancel", Phase.DONE, (), "has succeeded already"),
        ("cancel", Phase.FAILED, (), "has ended already"),
        ("hold", Phase.DONE, (), "has succeeded already"),
        ("hold", Phase.OUTBOX, (), "has just ended"),
        ("hold", Phase.QUEUED, (Wish.HOLD,), "is on hold already"),
        ("release", Phase.QUEUED, (), "is not on hold"),
        ("resume", Phase.ACTIVE, (), "is active already"),
        ("resume", Phase.DONE, (), "has succeeded"),
        ("resume", Phase.QUEUED, (Wish.HOLD,), "finetunectl release"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_with_a_reason(bench, verb, phase, wishes, why):
    bench.job(phase, wishes=wishes)
    answer = bench.ctl(verb, "tone")
    assert (answer.code, answer.out) == (6, "")
    assert why in answer.err
    assert "hint:" in answer.err
    assert requests(bench) == []


def test_several_jobs_are_asked_together_or_not_at_all(bench):
    first, second = bench.job(number=1), bench.job(number=2)
    filed = bench.job(Phase.DONE, number=3)
    assert bench.ctl("cancel", first.job, filed.job).code == 6
    assert requests(bench) == []
    assert bench.ctl("cancel", first.job, second.job, first.job).code == 0
    assert requests(bench) == [f"{first.job}.cancel", f"{second.job}.cancel"]


def test_the_daemon_understands_what_is_written(bench):
    job, failed = bench.job(number=1), bench.job(Phase.FAILED, number=2)
    bench.ctl("hold", job.job)
    bench.ctl("resume", failed.job)
    assert take_requests(bench.spool, EVENING) == [failed]
    assert job.wishes() == {Wish.HOLD}
    bench.ctl("release", job.job)
    take_requests(bench.spool, EVENING)
    assert job.wishes() == set()


def test_a_hold_that_is_not_yet_taken_can_be_released(bench):
    job = bench.job()
    bench.ctl("hold", job.job)
    assert bench.ctl("release", job.job).code == 0
