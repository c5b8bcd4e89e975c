"""Which ready jobs start next."""

from finetuned.core.lifecycle import Ready
from finetuned.core.queue import Start, choose, in_order


def test_priority_then_age_decides():
    ready = [Ready("20261130-b", 0), Ready("20261130-a", 0), Ready("20261130-c", 5)]
    assert [job.job for job in in_order(ready)] == ["20261130-c", "20261130-a", "20261130-b"]


def test_each_free_device_gets_one_job_and_taken_ones_none():
    ready = [Ready("a", 0), Ready("b", 0), Ready("c", 0)]
    assert choose(ready, ["cuda:0", "cuda:1", "cuda:2"], frozenset({"cuda:1"})) == [
        Start("a", ("cuda:0",)),
        Start("b", ("cuda:2",)),
    ]


def test_nothing_starts_when_all_is_taken():
    assert choose([Ready("a", 0)], ["cpu:0"], frozenset({"cpu:0"})) == []
