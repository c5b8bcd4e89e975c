"""What a stage's unit runs before and after the stage: the launch that it becomes, and how that ended."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from finetuned.core.job import Stage
from finetuned.host.jobdir import JobDir
from finetuned.host.launchhelper import answer_to
from finetuned.host.unit import ended, was_asked_to_stop
from launcher_conformance import STAGE, a_job, a_launch


@pytest.fixture
def job(tmp_path: Path) -> JobDir:
    return a_job(tmp_path)


def said(result: str, how: str = "", status: str = "") -> dict[str, str]:
    return {"SERVICE_RESULT": result, "EXIT_CODE": how, "EXIT_STATUS": status}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (said("success", "exited", "0"), {"returncode": 0}),
        (said("exit-code", "exited", "3"), {"returncode": 3}),
        (said("signal", "killed", "KILL"), {"signal": 9}),
        (said("core-dump", "dumped", "SEGV"), {"signal": 11}),
        (said("oom-kill", "killed", "KILL"), {"signal": 9, "out_of_memory": True}),
        (said("watchdog", "killed", "ABRT"), {"signal": 6, "hung": True}),
        (said("resources"), {}),
    ],
)
def test_systemds_word_for_an_end_becomes_the_exit_record(job: JobDir, words, expected):
    a_launch(job)
    ended(STAGE, job, words, asked_to_stop=False)
    exit = job.read_exit(1)
    assert exit is not None
    found = exit.model_dump(include={"returncode", "signal", "out_of_memory", "hung"}, exclude_defaults=True)
    assert found == expected


def test_an_exit_record_is_written_once(job: JobDir):
    a_launch(job)
    ended(STAGE, job, said("exit-code", "exited", "3"), asked_to_stop=False)
    ended(STAGE, job, said("success", "exited", "0"), asked_to_stop=True)
    exit = job.read_exit(1)
    assert exit is not None
    assert exit.returncode == 3


def test_each_stage_has_its_own_newest_launch(job: JobDir):
    a_launch(job, 1, stage=Stage.TRAIN)
    a_launch(job, 2, stage=Stage.PREPARE)
    ended(Stage.TRAIN, job, said("success", "exited", "0"), asked_to_stop=False)
    assert (job.read_exit(1) is not None, job.read_exit(2)) == (True, None)


def test_what_systemd_does_not_answer_was_not_asked_to_stop():
    assert not was_asked_to_stop("finetuned-train@x.service", ("/no/such/systemctl",))
    assert not was_asked_to_stop("finetuned-train@x.service", ("false",))


def run_unit(job: JobDir, *words: str, config: str = "/nonexistent") -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"FINETUNED_SPOOL": str(job.spool), "FINETUNED_CONFIG": config}
    command = [sys.executable, "-m", "finetuned.host.unit", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_unit_becomes_the_release_that_its_newest_launch_names(job: JobDir, tmp_path: Path):
    release = tmp_path / "python"
    release.write_text('#!/bin/sh\necho "$@" $CUDA_VISIBLE_DEVICES $OMP_NUM_THREADS\n')
    release.chmod(0o755)
    (tmp_path / "finetuned.yaml").write_text(json.dumps({"cpu_threads": 7}))
    launch = a_launch(job, 4, ("cuda:1", "cuda:2"))
    job.launch_file(4).write_text(launch.model_copy(update={"release": str(release)}).model_dump_json())
    ran = run_unit(job, "run", STAGE, job.job, config=str(tmp_path))
    assert ran.stdout == f"-m finetuned.{STAGE} {job.path} 4 1,2 7\n"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("run", "train", "20991231-000000-other-00000000"), "has no such job"),
        (("run", "train"), "usage: "),
        (("run", "dance", "a"), "usage: "),
        (("run", "train", "../../etc"), "usage: "),
        (("run", "prepare", "20261130-221500-support-tone-7f3a09c1"), "has not asked for it"),
    ],
)
def test_a_unit_that_nobody_asked_for_says_so_and_runs_nothing(job: JobDir, words, why):
    a_launch(job)
    ran = run_unit(job, *words)
    assert ran.returncode in (64, 66)
    assert why in ran.stderr
    assert job.read_exit(1) is None


def test_settings_that_cannot_be_read_do_not_keep_a_launch_from_starting(job: JobDir, tmp_path: Path):
    (tmp_path / "finetuned.yaml").write_text("cpu_threads: none of your business\n")
    launch = a_launch(job)
    job.launch_file(1).write_text(launch.model_copy(update={"release": "/bin/true"}).model_dump_json())
    ran = run_unit(job, "run", STAGE, job.job, config=str(tmp_path))
    assert ran.returncode == 0
    assert "starting with the defaults" in ran.stderr


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"start train job",
        b"restart train job\n",
        b"start sshd job\n",
        b"start train job.service\n",
        b"start train ../job\n",
        b"start train -job\n",
        b"start train job --force\n",
        b"start train job\x00\n",
        "start train jöb\n".encode(),
        b"start  train job\n",
        b"start train job\nstop train job\n",
    ],
)
def test_the_helper_of_old_polkits_does_nothing_but_what_it_is_for(line: bytes):
    assert answer_to(line, ("/no/such/systemctl",)).startswith("not understood")


def test_the_helper_starts_the_unit_of_a_stage(tmp_path: Path):
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    systemctl.chmod(0o755)
    assert answer_to(b"start train 20261130-a-1\n", (str(systemctl), "--no-ask-password")) == "ok"
    assert (tmp_path / "asked").read_text() == (
        "--no-ask-password start --no-block finetuned-train@20261130-a-1.service\n"
    )


def test_the_helper_passes_on_why_systemd_refused(tmp_path: Path):
    systemctl = tmp_path / "systemctl"
    systemctl.write_text("#!/bin/sh\necho 'Access denied' >&2\nexit 1\n")
    systemctl.chmod(0o755)
    assert answer_to(b"stop prepare a\n", (str(systemctl),)) == "Access denied"


def test_the_helper_answers_each_connection_with_one_line(tmp_path: Path):
    systemctl = tmp_path / "systemctl"
    systemctl.write_text("#!/bin/sh\nexit 0\n")
    systemctl.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    helper = [sys.executable, "-m", "finetuned.host.launchhelper"]
    answers = [
        subprocess.run(helper, input=line, env=environment, capture_output=True, text=True, check=True).stdout
        for line in ("start train a\n", "start train a b\n")
    ]
    assert answers[0] == "ok\n"
    assert answers[1].startswith("not understood")
    assert answers[1].count("\n") == 1
