"""prune: shows before it deletes, and never touches what is live."""

import os
import time
from datetime import UTC, datetime

import pytest

from finetuned.core.job import Phase, Stage
from finetuned.ctl import prunable
from finetuned.host.claim import in_place
from finetuned.host.receipts import write_answer, write_receipt


def items(answer):
    return [(item["kind"], os.path.basename(item["path"])) for item in answer.json["items"]]


def test_nothing_is_deleted_without_yes(bench):
    job = bench.job(Phase.DONE)
    checkpoint = bench.checkpoint(job, 4)
    answer = bench.ctl("prune", "--older-than", "0d")
    assert checkpoint.exists()
    assert str(job.checkpoints) in answer.out
    assert "repeat with --yes" in answer.err
    assert bench.ctl("prune", "--older-than", "0d", "--yes").code == 0
    assert not job.checkpoints.exists()
    assert job.result_file.exists()


def test_young_jobs_stay(bench):
    bench.checkpoint(bench.job(Phase.DONE), 4)
    assert items(bench.ctl("prune", "--json")) == []


def test_live_jobs_are_never_touched(bench):
    for number, phase in enumerate((Phase.QUEUED, Phase.ACTIVE, Phase.OUTBOX)):
        bench.checkpoint(bench.job(phase, number=number), 4)
    for options in ((), ("--jobs",), ("--checkpoints",)):
        assert items(bench.ctl("prune", "--older-than", "0d", "--json", "--yes", *options)) == []


def test_whole_jobs_go_on_request(bench):
    job = bench.job(Phase.FAILED)
    answer = bench.ctl("prune", "--older-than", "0d", "--jobs", "--yes", "--json")
    assert items(answer) == [("job", job.job)]
    assert answer.json["deleted"] is True
    assert os.listdir(job.path.parent) == []


def dropped_in_place(bench, job):
    """A dropped folder that only its owner could have moved out of incoming/."""
    folder = in_place(job)
    folder.mkdir()
    (folder / "chats.jsonl").write_bytes(b"c" * 5000)
    job.dropped.unlink()
    job.dropped.symlink_to(f"../../incoming/{folder.name}")
    return folder


def receipts(bench):
    return sorted(path.name for path in bench.spool.receipts.iterdir())


def test_a_whole_job_takes_its_receipts_and_what_stayed_in_incoming_with_it(bench):
    job, other = bench.job(Phase.FAILED, number=1), bench.job(number=2)
    folder = dropped_in_place(bench, job)
    for each in (job, other):
        write_receipt(bench.spool, each)
        write_answer(bench.spool, f"{each.job}.cancel", "no", datetime.now(UTC))
    answer = bench.ctl("prune", "--older-than", "0d", "--jobs", "--yes", "--json")
    assert answer.json["size_bytes"] >= 5000
    assert not folder.exists()
    assert receipts(bench) == [f"{other.job}.cancel.json", f"{other.job}.json"]


def test_an_interrupted_removal_of_a_job_is_finished_by_the_next(bench):
    job = bench.job(Phase.FAILED)
    folder = dropped_in_place(bench, job)
    write_receipt(bench.spool, job)
    job.path.rename(job.path.with_name(f".{job.job}.pruned"))
    assert bench.ctl("prune", "--yes").code == 0
    assert not folder.exists()
    assert receipts(bench) == []
    assert os.listdir(job.path.parent) == []


def test_a_job_that_is_asked_to_resume_stays(bench):
    bench.checkpoint(job := bench.job(Phase.FAILED), 4)
    (bench.spool.requests / f"{job.job}.resume").touch()
    assert items(bench.ctl("prune", "--older-than", "0d", "--json")) == []


def test_a_job_that_somebody_works_on_stays(bench):
    bench.checkpoint(job := bench.job(Phase.FAILED), 4)
    bench.run(job, Stage.TRAIN)
    answer = bench.ctl("prune", "--older-than", "0d", "--yes")
    assert job.checkpoints.exists()
    assert "in use" in answer.err


def prepared(bench, name):
    folder = bench.spool.store / "prepared" / name
    folder.mkdir()
    (folder / "train.arrow").write_bytes(b"t" * 5000)
    return folder


def test_prepared_data_goes_when_no_live_job_names_it(bench):
    used, unused = prepared(bench, "prepared-1"), prepared(bench, "prepared-2")
    bench.job(Phase.ACTIVE, is_planned=True)
    answer = bench.ctl("prune", "--older-than", "0d", "--yes", "--json")
    assert items(answer) == [("prepared", "prepared-2")]
    assert answer.json["size_bytes"] >= 5000
    assert used.exists()
    assert not unused.exists()


def test_prepared_data_stays_while_a_live_job_has_not_said_what_it_uses(bench):
    folder = prepared(bench, "prepared-2")
    bench.job()
    answer = bench.ctl("prune", "--older-than", "0d", "--yes")
    assert folder.exists()
    assert "has not said what it uses" in answer.err


@pytest.fixture
def a_day_later(monkeypatch):
    tomorrow = time.time() + 90_000
    monkeypatch.setattr(prunable.time, "time", lambda: tomorrow)


def unfinished(bench, name):
    """A folder of the store that somebody began to build, and the lock under which they did."""
    folder = bench.spool.store / "models" / f".{name}.partial"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"m" * 5000)
    lock = folder.with_suffix(".lock")
    lock.touch()
    return folder, lock


def test_what_killed_stages_left_in_the_store_goes_after_a_day(bench, a_day_later):
    folder, lock = unfinished(bench, "org--tiny--abc")
    bench.job()
    answer = bench.ctl("prune", "--yes", "--json")
    assert items(answer) == [("leftover", lock.name), ("leftover", folder.name)]
    assert os.listdir(folder.parent) == []


def test_what_is_being_built_stays(bench):
    unfinished(bench, "org--tiny--abc")
    assert items(bench.ctl("prune", "--older-than", "0d", "--json")) == []


def test_what_is_being_built_for_days_stays(bench, a_day_later):
    folder, lock = unfinished(bench, "org--tiny--abc")
    bench.hold(lock)
    assert items(bench.ctl("prune", "--yes", "--json")) == []
    assert folder.exists()


def test_what_an_interrupted_prune_left_goes_with_the_next(bench):
    left = bench.spool.path / "done" / ".20261130-221500-tone-7f3a0900.pruned"
    left.mkdir()
    bench.ctl("prune", "--yes")
    assert not left.exists()


def test_an_age_that_is_none_is_refused(bench):
    answer = bench.ctl("prune", "--older-than", "soon")
    assert answer.code == 2
    assert "30d" in answer.err
