"""However a job file arrives at a running daemon, it is claimed once and whole; what is no job is refused once."""

import os
import shutil
import subprocess
import time

import pytest

from daemons import a_spec
from finetuned.core.job import Outcome, Phase
from spools import require
from until import until

pytestmark = pytest.mark.slow


@pytest.fixture
def spec(home):
    # A job that fails early, at the claim: these tests are about arriving, not about training.
    return a_spec(home, base_model="/srv/finetuned/models/none")


def claimed(daemon, name):
    return [job for job in daemon.jobs() if (claim := job.read_claim()) is not None and claim.name == name]


def the_only(daemon, name, text):
    """Claimed exactly once, with exactly these bytes."""
    until(lambda: any(job.phase is Phase.FAILED for job in claimed(daemon, name)), 30)
    (job,) = claimed(daemon, name)
    assert job.read_spec_text() == text
    assert not (daemon.spool.incoming / name).exists()
    return job


def by_mv(text, target, aside):
    aside.write_text(text)
    os.rename(aside, target)


def by_cp(text, target, aside):
    aside.write_text(text)
    subprocess.run(["cp", "--", aside, target], check=True)


def by_a_slow_write(text, target, _aside):
    with open(target, "w") as file:
        for start in range(0, len(text), 40):
            file.write(text[start : start + 40])
            file.flush()
            time.sleep(0.05)


def by_rsync(text, target, aside, *options):
    require(shutil.which("rsync") is not None, "needs rsync")
    aside.write_text(text)
    subprocess.run(["rsync", *options, "--", aside, target], check=True)


def by_rsync_in_place(text, target, aside):
    by_rsync(text, target, aside, "--inplace")


@pytest.mark.parametrize("arrive", [by_mv, by_cp, by_a_slow_write, by_rsync, by_rsync_in_place])
def test_a_job_file_is_claimed_once_and_whole_however_it_arrives(a_daemon, spec, tmp_path, arrive):
    daemon = a_daemon()
    arrive(spec, daemon.spool.incoming / "night.yaml", tmp_path / "aside")
    the_only(daemon, "night.yaml", spec)


def test_a_folder_that_grows_while_it_is_copied_is_claimed_once_and_whole(a_daemon, home, tmp_path):
    source = tmp_path / "source" / "with data"
    source.mkdir(parents=True)
    shutil.copy(home / "chat.jsonl", source / "chat.jsonl")
    for number in range(50):
        (source / f"note-{number}.txt").write_text("x" * 10_000)
    text = a_spec(home, base_model="/srv/finetuned/models/none", datasets=[{"path": "chat.jsonl"}])
    (source / "job.yaml").write_text(text)
    daemon = a_daemon()
    subprocess.run(["cp", "-r", "--", source, daemon.spool.incoming], check=True)
    job = the_only(daemon, "with data", text)
    assert len(list(job.dropped.iterdir())) == 52


@pytest.mark.parametrize("name", ["with space.yaml", "quo'te\".yaml", "🌙.yaml", "-leading.yaml", "n" * 250 + ".yaml"])
def test_any_name_works(a_daemon, spec, tmp_path, name):
    daemon = a_daemon()
    by_mv(spec, daemon.spool.incoming / name, tmp_path / "aside")
    the_only(daemon, name, spec)


def test_what_can_never_be_a_job_gets_one_clear_refusal_each_and_nothing_else_suffers(a_daemon, home, tmp_path):
    daemon = a_daemon()
    incoming = daemon.spool.incoming
    (incoming / "link.yaml").symlink_to("/etc/passwd")
    os.mkfifo(incoming / "fifo.yaml")
    (incoming / "folder").mkdir()
    (incoming / "folder" / "data.jsonl").write_text("{}")
    (incoming / "huge.yaml").write_bytes(b"a: b\n" * 2_100_000)
    (incoming / "empty.yaml").touch()
    (incoming / "binary.yaml").write_bytes(os.urandom(4096))
    daemon.drop(a_spec(home, max_steps=2, num_train_epochs=None), "sound.yaml")
    refused = ["link.yaml", "fifo.yaml", "folder", "huge.yaml", "empty.yaml", "binary.yaml"]
    for name in refused:
        until(lambda name=name: [j for j in claimed(daemon, name) if j.phase is Phase.FAILED], 60)
        (job,) = claimed(daemon, name)
        result = job.read_result()
        assert result.outcome is Outcome.FAILED
        assert "Traceback" not in result.reason
        assert len(result.reason.splitlines()) == 1
        assert os.path.lexists(job.dropped)
    daemon.wait_for("sound", Phase.DONE)
    assert len(daemon.jobs()) == len(refused) + 1
