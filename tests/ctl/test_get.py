"""get: artifacts whole or not at all."""

import os

import pytest

from exports import a_plan
from finetuned.core.job import Phase
from finetuned.ctl import get
from finetuned.host.jobdir import write_record


def test_artifacts_are_copied_whole(bench):
    bench.artifacts(bench.job(Phase.DONE))
    dest = bench.folder / "mine"
    answer = bench.ctl("get", "tone", str(dest))
    assert (answer.code, answer.out) == (0, f"{dest}\n")
    assert (dest / "adapter" / "adapter_model.safetensors").read_bytes() == b"a" * 1000
    assert (dest / "README.md").read_text() == "a card"
    assert os.listdir(bench.folder) == ["mine"]


def test_json_tells_what_was_copied(bench):
    bench.artifacts(job := bench.job(Phase.DONE))
    dest = bench.folder / "mine"
    assert bench.ctl("get", "tone", str(dest), "--json").json == {
        "job": job.job,
        "path": str(dest),
        "files": 2,
        "size_bytes": 1006,
    }


def test_nothing_is_overwritten_unless_forced(bench):
    bench.artifacts(bench.job(Phase.DONE))
    dest = bench.folder / "mine"
    dest.mkdir()
    (dest / "precious").touch()
    answer = bench.ctl("get", "tone", str(dest))
    assert answer.code == 6
    assert "--force" in answer.err
    assert os.listdir(dest) == ["precious"]
    assert bench.ctl("get", "tone", str(dest), "--force").code == 0
    assert sorted(os.listdir(dest)) == ["README.md", "adapter"]
    assert os.listdir(bench.folder) == ["mine"]


@pytest.mark.parametrize("dest", [".", "~", "/"])
def test_no_force_replaces_where_somebody_lives(bench, dest, monkeypatch):
    bench.artifacts(bench.job(Phase.DONE))
    (bench.folder / "precious").touch()
    monkeypatch.chdir(bench.folder)
    monkeypatch.setenv("HOME", str(bench.folder))
    answer = bench.ctl("get", "tone", os.path.expanduser(dest), "--force")
    assert answer.code == 6
    assert answer.err.endswith("hint: name a new folder\n")
    assert os.listdir(bench.folder) == ["precious"]


def test_an_empty_folder_is_filled(bench):
    bench.artifacts(bench.job(Phase.DONE))
    dest = bench.folder / "mine"
    dest.mkdir()
    assert bench.ctl("get", "tone", str(dest)).code == 0


def test_a_job_without_artifacts_says_what_to_do(bench):
    bench.job(Phase.FAILED)
    answer = bench.ctl("get", "tone", str(bench.folder / "mine"))
    assert answer.code == 1
    assert "finetunectl resume" in answer.err


def test_a_file_that_cannot_be_copied_is_named_and_nothing_is_left(bench):
    artifacts = bench.artifacts(bench.job(Phase.DONE))
    (artifacts / "nowhere").symlink_to("missing")
    answer = bench.ctl("get", "tone", str(bench.folder / "mine"))
    assert answer.code == 5
    assert f"{artifacts / 'nowhere'} cannot be copied: " in answer.err
    assert "[(" not in answer.err
    assert os.listdir(bench.folder) == []


def test_a_job_that_moves_while_it_is_copied_is_told(bench, monkeypatch):
    job = bench.job(Phase.OUTBOX)
    bench.artifacts(job)
    copy = get._copy_file

    def move_first(source, target):
        if job.path.exists():
            bench.spool.move(job, Phase.DONE)
        copy(source, target)

    monkeypatch.setattr(get, "_copy_file", move_first)
    answer = bench.ctl("get", "tone", str(bench.folder / "mine"))
    assert (answer.code, answer.err) == (
        5,
        f"finetunectl: {job.job} was moved while it was copied\n  hint: try again\n",
    )


def test_a_place_that_is_not_there_is_named(bench):
    bench.artifacts(bench.job(Phase.DONE))
    answer = bench.ctl("get", "tone", str(bench.folder / "no" / "mine"))
    assert answer.code == 6
    assert "mkdir -p" in answer.err


def test_a_gguf_file_that_could_not_be_made_is_told(bench):
    bench.artifacts(job := bench.job(Phase.DONE))
    write_record(job.plan_file, a_plan(gguf="q8_0"))
    answer = bench.ctl("get", "tone", str(bench.folder / "mine"))
    assert answer.code == 0
    assert f"could not be made; finetunectl status {job.job} says why" in answer.err
