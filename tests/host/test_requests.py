"""Requests: what people ask through requests/ reaches its job once, or is answered and removed."""

import logging
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from finetuned.core.job import Phase, Wish
from finetuned.host import requests
from finetuned.host.jobdir import JobDir
from finetuned.host.receipts import Answer
from finetuned.host.requests import forget_resume, take_requests
from finetuned.host.spool import Spool
from spools import a_queued_job, a_spool

NOW = datetime(2026, 11, 30, 22, 15, tzinfo=UTC)


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return a_spool(tmp_path)


def a_job_in(spool: Spool, phase: Phase) -> JobDir:
    return spool.move(a_queued_job(spool), phase)


def ask(spool: Spool, job: JobDir, verb: str) -> Path:
    path = spool.requests / f"{job.job}.{verb}"
    path.touch()
    return path


def answers(spool: Spool) -> dict[str, str]:
    found = [Answer.model_validate_json(path.read_text()) for path in spool.receipts.iterdir()]
    return {answer.request: answer.answer for answer in found}


@pytest.mark.parametrize("wish", Wish)
@pytest.mark.parametrize("phase", [Phase.QUEUED, Phase.ACTIVE])
def test_a_wish_moves_into_its_job(spool: Spool, wish: Wish, phase: Phase):
    job = a_queued_job(spool) if phase is Phase.QUEUED else a_job_in(spool, phase)
    ask(spool, job, wish)
    assert take_requests(spool, NOW) == []
    assert job.wishes() == {wish}
    assert os.listdir(spool.requests) == []
    assert answers(spool) == {}


def test_asking_twice_is_as_good_as_once(spool: Spool):
    job = a_queued_job(spool)
    for _ in range(2):
        ask(spool, job, "hold")
        take_requests(spool, NOW)
    assert job.wishes() == {Wish.HOLD}


def test_release_takes_the_hold_away_and_leaves_a_cancel(spool: Spool):
    job = a_queued_job(spool)
    for wish in Wish:
        job.wish_file(wish).touch()
    ask(spool, job, "release")
    take_requests(spool, NOW)
    assert job.wishes() == {Wish.CANCEL}
    assert os.listdir(spool.requests) == []


def test_a_release_whose_hold_is_gone_already_is_only_removed(spool: Spool):
    ask(spool, a_queued_job(spool), "release")
    take_requests(spool, NOW)
    assert os.listdir(spool.requests) == []
    assert answers(spool) == {}


def test_requests_are_carried_out_in_the_order_they_were_made(spool: Spool):
    job = a_queued_job(spool)
    ask(spool, job, "release")
    while ask(spool, job, "hold").stat().st_ctime_ns <= (spool.requests / f"{job.job}.release").stat().st_ctime_ns:
        (spool.requests / f"{job.job}.hold").unlink()
    take_requests(spool, NOW)
    assert job.wishes() == {Wish.HOLD}


def test_a_resume_waits_until_it_has_been_carried_out(spool: Spool):
    job = a_job_in(spool, Phase.FAILED)
    path = ask(spool, job, "resume")
    assert take_requests(spool, NOW) == [job]
    assert take_requests(spool, NOW) == [job]
    assert (spool.requests / f"{job.job}.resume").exists()
    forget_resume(spool, job, "the job is queued again", NOW)
    assert not path.exists()
    assert not (spool.requests / f"{job.job}.resume").exists()
    assert take_requests(spool, NOW) == []
    assert answers(spool) == {path.name: "the job is queued again"}


def test_a_filed_job_can_be_neither_cancelled_nor_held(spool: Spool):
    job = a_job_in(spool, Phase.DONE)
    for verb in ("cancel", "hold", "release"):
        ask(spool, job, verb)
    take_requests(spool, NOW)
    said = "the job has ended already; it is in done"
    assert answers(spool) == {f"{job.job}.{verb}": said for verb in ("cancel", "hold", "release")}
    assert job.wishes() == frozenset()


def test_a_job_that_is_being_delivered_can_be_cancelled_but_not_held(spool: Spool):
    job = a_job_in(spool, Phase.OUTBOX)
    ask(spool, job, "cancel")
    ask(spool, job, "hold")
    take_requests(spool, NOW)
    assert job.wishes() == {Wish.CANCEL}
    assert list(answers(spool)) == [f"{job.job}.hold"]


@pytest.mark.parametrize(
    "name", [b"nonsense", b"a.cancelx", b"a b.cancel", b"a..cancel", b"\xff.hold", b"x" * 255, b"new\nline.cancel"]
)
def test_junk_is_answered_by_its_name_and_removed(spool: Spool, name: bytes):
    (spool.requests / os.fsdecode(name)).touch()
    take_requests(spool, NOW)
    assert os.listdir(spool.requests) == []
    assert list(answers(spool)) == [name.decode(errors="replace")]


def test_a_request_for_an_unknown_job_is_answered(spool: Spool):
    (spool.requests / "20261130-221500-gone-00000000.cancel").touch()
    take_requests(spool, NOW)
    assert answers(spool)["20261130-221500-gone-00000000.cancel"].startswith("there is no such job")
    assert [path.name for path in spool.receipts.iterdir()] == ["20261130-221500-gone-00000000.cancel.json"]


def test_links_and_folders_named_like_requests_are_not_followed(spool: Spool):
    job = a_queued_job(spool)
    (spool.requests / f"{job.job}.cancel").symlink_to("/etc/hostname")
    (spool.requests / f"{job.job}.hold" / "inside").mkdir(parents=True)
    take_requests(spool, NOW)
    take_requests(spool, NOW)
    assert job.wishes() == frozenset()
    assert sorted(answers(spool)) == [f"{job.job}.cancel", f"{job.job}.hold"]
    assert [name[: len(job.job) + 6] for name in os.listdir(spool.requests)] == [f".{job.job}.hold"]


def test_a_folder_is_cleared_away_however_often_it_comes(spool: Spool):
    for _ in range(2):
        (spool.requests / "folder.cancel" / "inside").mkdir(parents=True)
        take_requests(spool, NOW)
    assert len(os.listdir(spool.requests)) == 2
    assert all(name.startswith(".folder.cancel.") for name in os.listdir(spool.requests))


def test_temporary_names_are_left_alone(spool: Spool):
    (spool.requests / ".a.cancel.tmp").touch()
    take_requests(spool, NOW)
    assert os.listdir(spool.requests) == [".a.cancel.tmp"]


def test_trouble_with_one_request_does_not_hold_up_the_others(spool: Spool, monkeypatch, caplog):
    first = a_queued_job(spool, job="20261130-221500-a-00000001")
    second = a_queued_job(spool, job="20261130-221500-b-00000002")
    ask(spool, first, "cancel")
    ask(spool, second, "cancel")
    real = requests.rename_durably

    def fail_for_the_first(source: Path, target: Path) -> None:
        if source.name.startswith(first.job):
            raise OSError(28, "No space left on device")
        real(source, target)

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(requests, "rename_durably", fail_for_the_first)
        take_requests(spool, NOW)
    assert (first.wishes(), second.wishes()) == (frozenset(), {Wish.CANCEL})
    assert "cannot be carried out yet" in caplog.text
    take_requests(spool, NOW)
    assert first.wishes() == {Wish.CANCEL}
