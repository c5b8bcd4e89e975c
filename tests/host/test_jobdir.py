"""One job's directory: typed reads and writes of its files, and which checkpoints count."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from finetuned.core.job import Launch, Outcome, Phase, Result, Stage, Wish
from finetuned.host.jobdir import JobDir, Unreadable, checkpoint_name, write_record
from spools import a_queued_job, a_spool

NOW = datetime(2026, 11, 30, 22, 15, tzinfo=UTC)


@pytest.fixture
def job(tmp_path: Path) -> JobDir:
    return a_queued_job(a_spool(tmp_path))


def a_checkpoint(job: JobDir, step: int, content: bytes = b"weights") -> Path:
    path = job.checkpoints / checkpoint_name(step)
    path.mkdir(parents=True)
    (path / "weights").write_bytes(content)
    manifest = {"format": 1, "step": step, "files": [{"path": "weights", "size_bytes": len(content), "sha256": ""}]}
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


def a_launch(number: int) -> Launch:
    return Launch(number=number, stage=Stage.TRAIN, boot_id="b", release="/usr/bin/python", asked=NOW)


def test_a_job_knows_its_phase_and_its_spool(job: JobDir):
    assert (job.phase, job.job, job.spool.name) == (Phase.QUEUED, job.path.name, "spool")


def test_files_that_are_not_there_are_none(tmp_path: Path):
    job = JobDir(tmp_path / "queued" / "a")
    assert [job.read_claim(), job.read_plan(), job.read_facts(), job.read_result(), job.read_exit(1)] == [None] * 5
    assert (job.read_spec_text(), job.read_launches(), job.list_checkpoints()) == (None, [], [])
    assert (job.wishes(), job.read_newest_earlier_result()) == (frozenset(), None)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b'{"format": 2}'])
def test_a_damaged_file_is_unreadable_by_name(job: JobDir, content: bytes):
    job.result_file.write_bytes(content)
    with pytest.raises(Unreadable, match=r"result\.json is not a readable result"):
        job.read_result()


def test_a_record_is_read_as_it_was_written_and_unknown_keys_of_a_newer_release_are_passed_over(job: JobDir):
    result = Result(outcome=Outcome.FAILED, reason="naïve", attempts=2, last_launch=3, ended=NOW)
    write_record(job.result_file, result)
    job.result_file.write_text(job.result_file.read_text().replace("{", '{"new": 1,', 1))
    assert job.read_result() == result


def test_launches_are_read_oldest_first_without_what_lies_beside_them(job: JobDir):
    job.launches.mkdir()
    for number in (10_000, 2, 1):
        write_record(job.launch_file(number), a_launch(number))
    for name in ("0001.exit.json", "0001.child.json", ".0003.json.1.tmp", "notes"):
        (job.launches / name).write_text("{")
    assert [launch.number for launch in job.read_launches()] == [1, 2, 10_000]


def test_the_newest_whole_checkpoint_counts_and_damaged_or_unfinished_ones_do_not(job: JobDir):
    whole = a_checkpoint(job, 100)
    (a_checkpoint(job, 200) / "manifest.json").unlink()
    (a_checkpoint(job, 300) / "weights").write_bytes(b"cut")
    (a_checkpoint(job, 400) / "manifest.json").write_text("{")
    (a_checkpoint(job, 500) / "weights").unlink()
    a_checkpoint(job, 600).rename(job.checkpoints / ".step-00000600.partial")
    a_checkpoint(job, 700).rename(job.checkpoints / "corrupt-step-00000700")
    newest = job.newest_whole_checkpoint()
    assert newest is not None
    assert (newest.path, newest.step) == (whole, 100)
    assert [checkpoint.step for checkpoint in job.list_checkpoints()] == [500, 400, 300, 200, 100]


def test_earlier_results_are_counted_by_number(job: JobDir):
    job.earlier_results.mkdir()
    for number in (1, 2, 10):
        result = Result(outcome=Outcome.FAILED, reason="", attempts=0, last_launch=number, ended=NOW)
        write_record(job.earlier_results / f"{number}.json", result)
    newest = job.read_newest_earlier_result()
    assert newest is not None
    assert newest.last_launch == 10


def test_wishes_are_files(job: JobDir):
    job.wish_file(Wish.HOLD).touch()
    assert job.wishes() == {Wish.HOLD}


def test_a_spec_with_undecodable_bytes_is_still_text(job: JobDir):
    job.spec_file.write_bytes(b"base_model: \xff")
    assert job.read_spec_text() == "base_model: �"
