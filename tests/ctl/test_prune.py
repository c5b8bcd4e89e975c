"""prune: shows before it deletes, and never touches what is live."""

import os

from finetuned.core.job import Phase, Stage


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


def test_what_an_interrupted_prune_left_goes_with_the_next(bench):
    left = bench.spool.path / "done" / ".20261130-221500-tone-7f3a0900.pruned"
    left.mkdir()
    bench.ctl("prune", "--yes")
    assert not left.exists()


def test_an_age_that_is_none_is_refused(bench):
    answer = bench.ctl("prune", "--older-than", "soon")
    assert answer.code == 2
    assert "30d" in answer.err
