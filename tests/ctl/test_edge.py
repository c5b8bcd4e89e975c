"""What every verb promises: exit codes, streams, suggestions, no traceback, no torch, a quick start."""

import errno
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from finetuned.core.job import Phase
from finetuned.ctl import main as edge

FINETUNECTL = [sys.executable, "-c", "from finetuned.ctl.main import main; main()"]


@pytest.mark.parametrize(
    ("typed", "meant"), [("stauts", "status"), ("lst", "list"), ("ls", "list"), ("kill", "cancel"), ("chekc", "check")]
)
def test_a_mistyped_verb_is_told_what_was_probably_meant(bench, typed, meant):
    answer = bench.ctl(typed, "x")
    assert answer.code == 2
    assert f"no such command '{typed}'; did you mean {meant}?" in answer.err
    assert answer.out == ""


def test_a_mistyped_job_is_told_the_nearest_ids(bench):
    job = bench.job(slug="support-tone")
    answer = bench.ctl("status", "suport-tone")
    assert answer.code == 3
    assert job.job in answer.err


def test_a_part_that_several_jobs_have_is_answered_with_all_of_them(bench):
    jobs = [bench.job(number=number) for number in (1, 2)]
    answer = bench.ctl("status", "tone")
    assert answer.code == 4
    assert all(job.job in answer.err for job in jobs)
    assert answer.out == ""


@pytest.mark.parametrize("phase", list(Phase))
def test_any_part_of_the_id_finds_a_job_wherever_it_stands(bench, phase):
    job = bench.job(phase, number=3)
    bench.job(slug="other", number=4)
    for part in (job.job, "7f3a0903", "tone"):
        assert bench.ctl("status", part, "--json").json["job"] == job.job


@pytest.mark.parametrize("name", ["my job.yaml", "🦙 tone.yaml", "--all.yaml", 'it\'s "quoted".yaml'])
def test_any_part_of_the_dropped_name_finds_a_job(bench, name):
    job = bench.job(slug="job", name=name)
    bench.job(slug="other", number=2)
    assert bench.ctl("status", "--json", "--", name[:-5]).json["job"] == job.job


def test_a_spool_that_is_not_there_is_said_in_a_sentence(tmp_path, bench):
    answer = bench.ctl("list", "--spool", str(tmp_path / "nowhere"))
    assert answer.code == 5
    assert answer.err.startswith("finetunectl: there is no spool at")
    assert "hint:" in answer.err


def test_a_spool_that_is_closed_to_a_person_is_answered_with_what_opens_it(bench, monkeypatch):
    def closed(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "access", lambda *_args, **_more: False)
    monkeypatch.setattr(Path, "is_dir", closed)
    answer = bench.ctl("list")
    assert answer.code == 5
    assert answer.err.startswith(f"finetunectl: {bench.spool.path}/incoming: Permission denied\n  hint: ")


def test_the_spool_may_be_named_behind_the_verb_too(bench):
    bench.job()
    assert bench.ctl("list", "--json", f"--spool={bench.spool.path}").json["spool"] == str(bench.spool.path)


def test_a_mistake_of_the_program_is_one_sentence_and_the_traceback_is_for_who_asks(bench, monkeypatch):
    def fail(*_args: object, **_more: object) -> None:
        raise ZeroDivisionError("by zero")

    bench.job()
    monkeypatch.setattr("finetuned.ctl.show.look_at_job", fail)
    answer = bench.ctl("list")
    assert answer.code == 70
    assert "ZeroDivisionError: by zero" in answer.err
    assert "Traceback" not in answer.err
    monkeypatch.setenv("FINETUNED_DEBUG", "1")
    assert "Traceback" in bench.ctl("list").err


def test_an_interrupt_is_quiet(bench, monkeypatch):
    def interrupt(*_args: object) -> None:
        raise KeyboardInterrupt

    bench.job()
    monkeypatch.setattr("finetuned.ctl.show.look_at_job", interrupt)
    answer = bench.ctl("list")
    assert (answer.code, answer.err) == (130, "")


def test_a_closed_pipe_is_quiet(bench):
    job = bench.job(Phase.ACTIVE)
    (job.path / "train.log").write_bytes(b"line\n" * 200_000)
    environment = os.environ | {"FINETUNED_SPOOL": str(bench.spool.path)}
    command = [*FINETUNECTL, "logs", "tone"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    process.wait()


@pytest.mark.parametrize("closed", [1, 2])
def test_a_stream_that_the_shell_has_closed_is_no_mistake(bench, closed):
    command = shlex.join([*FINETUNECTL, "--spool", str(bench.spool.path), "list"])
    shell = subprocess.run(["sh", "-c", f"{command} {closed}>&-"], capture_output=True, text=True, check=False)
    assert "Traceback" not in shell.stdout + shell.stderr
    assert shell.returncode == 0


def test_names_cannot_steer_the_terminal(bench):
    bench.job(Phase.FAILED, name="evil\x1b[2J.yaml")
    answer = bench.ctl("status", "tone")
    assert "\x1b" not in answer.out
    assert "evil\N{REPLACEMENT CHARACTER}[2J.yaml" in answer.out


def test_no_verb_imports_what_computes():
    heavy = "{'torch', 'transformers', 'datasets', 'numpy', 'pyarrow'}"
    imports = "; ".join(f"import finetuned.ctl.{place.split('.')[0]}" for place in edge._VERBS.values())
    program = f"import sys, finetuned.ctl.main; {imports}; print(*{heavy} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == ""


def test_starting_costs_less_than_half_a_second_of_processor_time(bench):
    before = os.times()
    command = [*FINETUNECTL, "--spool", str(bench.spool.path), "list"]
    fastest = 99.0
    for _ in range(3):
        before = os.times()
        subprocess.run(command, capture_output=True, check=True)
        after = os.times()
        fastest = min(
            fastest, after.children_user + after.children_system - before.children_user - before.children_system
        )
    # 0.40 s when the processor's other thread is idle; the work doubles when it is not.
    assert fastest < 1.0


def test_every_exit_code_is_documented():
    page = (Path(__file__).parents[2] / "docs" / "finetunectl.md").read_text()
    for code in edge.ExitCode:
        assert f"| {int(code)} |" in page


def test_the_shell_completes_jobs(bench):
    job = bench.job()
    environment = os.environ | {
        "_FINETUNECTL_COMPLETE": "complete_bash",
        "COMP_WORDS": f"finetunectl --spool {bench.spool.path} status 2026",
        "COMP_CWORD": "4",
    }
    program = "import sys; sys.argv[0] = 'finetunectl'; from finetuned.ctl.main import main; main()"
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False
    )
    assert job.job in answer.stdout


def test_the_shell_completes_verbs():
    environment = os.environ | {
        "_FINETUNECTL_COMPLETE": "complete_bash",
        "COMP_WORDS": "finetunectl re",
        "COMP_CWORD": "1",
    }
    program = "import sys; sys.argv[0] = 'finetunectl'; from finetuned.ctl.main import main; main()"
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False
    )
    assert answer.stdout.split() == ["release", "resume", "resubmit"]


def test_schema_prints_a_json_schema(bench):
    assert bench.ctl("schema").json["required"] == ["base_model", "datasets"]


def test_version_is_data(bench):
    answer = bench.ctl("version")
    assert answer.out.startswith("finetuned ")
    assert answer.out == bench.ctl("--version").out
