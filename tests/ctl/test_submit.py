"""submit and resubmit: checked, pinned, packed, dropped whole, claimed, followed."""

import os
import pwd
import shutil
from pathlib import Path

import pytest

import exports
from finetuned.core.events import Entered
from finetuned.core.job import Phase, Stage
from finetuned.core.spec import parse_spec
from finetuned.host.drops import is_temporary
from spools import require
from until import until


def dropped(bench) -> list[str]:
    return sorted(os.listdir(bench.spool.incoming))


def spec_of(job) -> str:
    return job.spec_file.read_text()


def test_submit_prints_the_id_under_which_the_job_was_claimed(bench, daemon):
    daemon()
    answer = bench.ctl("submit", str(bench.a_spec()))
    [job] = bench.spool.jobs()
    assert (answer.code, answer.out, answer.err) == (0, f"{job.job}\n", "")
    assert job.read_claim().name == "tone.yaml"


def test_paths_are_pinned_and_comments_stay(bench, daemon):
    daemon()
    spec = bench.a_spec()
    bench.ctl("submit", str(spec))
    text = spec_of(bench.spool.jobs()[0])
    assert text == spec.read_text().replace("./model", str(bench.folder / "model")).replace(
        "chats.jsonl", str(bench.folder / "chats.jsonl")
    )


def test_settings_and_name_go_into_the_job(bench, daemon):
    daemon()
    job = bench.ctl(
        "submit", str(bench.a_spec()), "--set", "seed=7", "--set", "lr=1e-4", "--name", "my tone"
    ).out.strip()
    [found] = bench.spool.find(job)
    spec = parse_spec(spec_of(found), "spec").spec
    assert (spec.seed, spec.learning_rate) == (7, 1e-4)
    assert found.read_claim().name == "my tone.yaml"
    assert "my-tone" in found.job


@pytest.mark.parametrize(
    "name", ["-rf.yaml", "a b.yaml", "🦙.yml", ".hidden.yaml", "noending", "t.tmp", "o'k.json", "x" * 250]
)
def test_any_file_name_can_be_submitted(bench, daemon, name):
    daemon()
    answer = bench.ctl("submit", "--", str(bench.a_spec(name)))
    assert answer.code == 0
    [job] = bench.spool.jobs()
    assert answer.out.strip() == job.job
    assert job.read_claim().refusal is None


def test_a_folder_or_standard_input_can_be_submitted(bench, daemon, monkeypatch):
    daemon()
    spec = bench.a_spec("job.yaml")
    assert bench.ctl("submit", str(bench.folder)).code == 0
    monkeypatch.chdir(bench.folder)
    assert bench.ctl("submit", "-", stdin=spec.read_text()).code == 0
    names = {job.read_claim().name for job in bench.spool.jobs()}
    assert names == {"mine.yaml", "job.yaml"}


def test_a_file_with_problems_is_not_submitted_unless_forced(bench, daemon):
    daemon()
    spec = bench.a_spec(extra="num_train_epoch: 3\n")
    answer = bench.ctl("submit", str(spec))
    assert (answer.code, answer.out) == (1, "")
    assert "num_train_epochs" in answer.err
    assert bench.spool.jobs() == []
    assert bench.ctl("submit", str(spec), "--force").code == 0
    assert len(bench.spool.jobs()) == 1


def test_without_a_daemon_the_job_waits_and_that_is_said(bench):
    answer = bench.ctl("submit", str(bench.a_spec()))
    assert (answer.code, answer.out) == (5, "")
    assert "no daemon is running" in answer.err
    assert dropped(bench) == ["tone.yaml"]


def test_a_job_that_waits_is_never_overwritten(bench):
    spec = bench.a_spec()
    for seed in range(3):
        bench.ctl("submit", str(spec), "--set", f"seed={seed}")
    assert dropped(bench) == ["tone-2.yaml", "tone-3.yaml", "tone.yaml"]
    seeds = [parse_spec((bench.spool.incoming / name).read_text(), name).spec.seed for name in dropped(bench)]
    assert seeds == [1, 2, 0]


def test_the_same_file_submitted_twice_is_two_jobs(bench, daemon):
    daemon()
    spec = bench.a_spec()
    first, second = (bench.ctl("submit", str(spec)).out.strip() for _ in range(2))
    assert {job.job for job in bench.spool.jobs()} == {first, second}
    assert first != second


def test_json_tells_the_job_and_where_it_was_dropped(bench, daemon):
    daemon()
    submitted = bench.ctl("submit", str(bench.a_spec()), "--name", "b", "--json").json
    assert submitted["dropped"] == str(bench.spool.incoming / "b.yaml")
    assert submitted["daemon_running"] is True
    assert bench.spool.get(submitted["job"]) is not None


def make_spool_of_nobody(bench) -> None:
    require(os.geteuid() == 0, "needs root")
    require("nobody" in {entry.pw_name for entry in pwd.getpwall()}, "no user nobody")
    os.chown(bench.spool.path, pwd.getpwnam("nobody").pw_uid, -1)


def test_what_the_service_cannot_read_is_packed_with_the_job(bench, daemon):
    make_spool_of_nobody(bench)
    spec = bench.a_spec()
    bench.folder.chmod(0o700)
    daemon()
    answer = bench.ctl("submit", str(spec))
    assert answer.code == 0
    [job] = bench.spool.jobs()
    assert answer.out.strip() == job.job
    assert sorted(os.listdir(job.dropped)) == ["READY", "chats.jsonl", "job.yaml", "model"]
    assert "base_model: ./model   # here" in spec_of(job)
    assert "path: ./chats.jsonl}" in spec_of(job)
    for path in (job.dropped, *job.dropped.rglob("*")):
        assert path.stat().st_mode & 0o050 >= 0o040, f"{path} is closed to the group"


def test_the_files_of_a_pattern_are_packed_and_found_by_it_again(bench, daemon):
    make_spool_of_nobody(bench)
    spec = bench.a_spec()
    (bench.folder / "rows/old").mkdir(parents=True)
    shutil.copy(bench.folder / "chats.jsonl", bench.folder / "rows/a.jsonl")
    shutil.copy(bench.folder / "chats.jsonl", bench.folder / "rows/old/b.jsonl")
    (bench.folder / "rows/notes.txt").write_text("not these")
    spec.write_text(spec.read_text().replace("chats.jsonl", "rows/**/*.jsonl"))
    bench.folder.chmod(0o700)
    daemon()
    assert bench.ctl("submit", str(spec)).code == 0
    [job] = bench.spool.jobs()
    [named] = [each.path for each in parse_spec(spec_of(job), "spec").spec.datasets]
    found = sorted(path.name for path in job.dropped.glob(named.removeprefix("./")))
    assert found == ["a.jsonl", "b.jsonl"]
    assert not list(job.dropped.rglob("notes.txt"))
    for path in (job.dropped, *job.dropped.rglob("*")):
        assert path.stat().st_mode & 0o050 >= 0o040, f"{path} is closed to the group"


def test_a_folder_is_not_seen_before_it_is_whole(bench):
    make_spool_of_nobody(bench)
    spec = bench.a_spec()
    bench.folder.chmod(0o700)
    bench.ctl("submit", str(spec), "--name", "odd.tmp")
    [name] = dropped(bench)
    assert not is_temporary(name)
    assert (bench.spool.incoming / name / "READY").exists()


def test_waiting_ends_well_when_the_job_does(bench, daemon):
    def live(job):
        job = bench.spool.move(job, Phase.ACTIVE)
        training = Entered(time=exports.EVENING, activity="training")
        bench.say(job, Stage.TRAIN, exports.started(), training, exports.stepped(1))
        bench.end(job, Phase.DONE, "all planned steps done")

    daemon(live)
    answer = bench.ctl("submit", str(bench.a_spec()), "--wait")
    assert answer.code == 0
    assert answer.out.strip() == bench.spool.jobs(Phase.DONE)[0].job
    assert "succeeded: all planned steps done" in answer.err


def test_waiting_ends_badly_when_the_job_does(bench, daemon):
    daemon(lambda job: bench.end(job, Phase.FAILED, "the disk burns", hint="buy a new one"))
    answer = bench.ctl("submit", str(bench.a_spec()), "--wait")
    assert answer.code == 1
    assert "failed: the disk burns" in answer.err
    assert "buy a new one" in answer.err


def test_waiting_as_json_prints_one_value_with_the_outcome(bench, daemon):
    daemon(lambda job: bench.end(job, Phase.CANCELLED))
    answer = bench.ctl("submit", str(bench.a_spec()), "--wait", "--json")
    assert (answer.code, answer.json["outcome"]) == (1, "cancelled")


def test_resubmit_makes_a_new_job_of_an_old_ones_spec(bench, daemon):
    daemon()
    old = bench.ctl("submit", str(bench.a_spec())).out.strip()
    answer = bench.ctl("resubmit", old, "--set", "seed=9")
    assert answer.code == 0
    [new] = bench.spool.find(answer.out.strip())
    assert new.job != old
    assert new.read_claim().name == "tone.yaml"
    assert spec_of(new) == spec_of(bench.spool.find(old)[0]) + "seed: 9\n"


def test_resubmit_of_a_job_that_cannot_be_read_names_the_file(bench):
    job = bench.job(Phase.FAILED)
    job.claim_file.write_text("{")
    answer = bench.ctl("resubmit", job.job)
    assert answer.code == 5
    assert f"{job.claim_file} is not a readable claim" in answer.err


def test_resubmit_of_a_folder_takes_its_files_along(bench, daemon):
    daemon()
    bench.a_spec("job.yaml")
    (bench.folder / "READY").touch()
    shutil.copytree(bench.folder, bench.spool.incoming / "mine")
    until(lambda: list(bench.spool.receipts.iterdir()))
    [old] = bench.spool.jobs()
    answer = bench.ctl("resubmit", old.job)
    assert answer.code == 0
    shutil.rmtree(old.path)
    [new] = bench.spool.jobs()
    assert Path(new.dropped / "chats.jsonl").exists()
    assert bench.ctl("check", str(new.dropped)).code == 0


def test_a_job_without_a_spec_cannot_be_submitted_again(bench):
    job = bench.job(Phase.FAILED)
    job.spec_file.unlink()
    assert bench.ctl("resubmit", job.job).code == 6
