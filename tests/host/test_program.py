"""One program run to its end: what is told of it, and that nothing of it stays."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from finetuned.core.problems import StopRequested
from finetuned.host.process import read_stat
from finetuned.host.program import run_program
from finetuned.host.stage import StopFlag
from until import until

LEAVES_A_CHILD = "sleep 600 & echo $! > pid; wait"


def sh(script: str, seconds: float = 20.0, stop: StopFlag | None = None):
    return run_program(["/bin/sh", "-c", script], seconds=seconds, stop=stop or StopFlag())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def child_in(folder: Path) -> int:
    until(lambda: (folder / "pid").exists() and (folder / "pid").read_text().strip())
    return int((folder / "pid").read_text())


def test_its_end_and_its_last_words_are_told_and_all_its_words_are_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    ended = sh("seq 100; echo oh no >&2; exit 3")
    assert (ended.returncode, ended.how, ended.succeeded) == (3, "ended with status 3", False)
    assert ended.last_lines[-2:] == ("100", "oh no")
    assert len(capfd.readouterr().out.splitlines()) == 101


def test_a_program_that_was_killed_is_told_apart() -> None:
    assert sh("kill -9 $$").how == "was killed (SIGKILL)"


def test_a_program_that_takes_too_long_is_killed_with_all_it_started(folder: Path) -> None:
    ended = sh(LEAVES_A_CHILD, seconds=0.5)
    assert ended.how == "ran out of time"
    until(lambda: read_stat(child_in(folder)) is None)


def test_a_stop_ends_it_with_all_it_started(folder: Path) -> None:
    stop = StopFlag()

    def ask() -> None:
        child_in(folder)
        stop.why = "asked to stop (SIGTERM)"

    thread = threading.Thread(target=ask)
    thread.start()
    with pytest.raises(StopRequested):
        sh(LEAVES_A_CHILD, stop=stop)
    thread.join()
    until(lambda: read_stat(child_in(folder)) is None)


def test_what_a_program_leaves_behind_at_its_end_is_killed(folder: Path) -> None:
    assert sh("sleep 600 > /dev/null 2>&1 & echo $! > pid").succeeded
    until(lambda: read_stat(child_in(folder)) is None)


def test_it_gets_no_input() -> None:
    assert sh("read line || echo nothing to read").last_lines == ("nothing to read",)


def test_a_program_that_is_not_there_is_an_error_of_the_system() -> None:
    with pytest.raises(FileNotFoundError):
        run_program([f"/nowhere/{os.getpid()}"], seconds=1, stop=StopFlag())


def test_a_program_that_never_ends_a_line_does_not_fill_our_memory() -> None:
    # In a process of its own: a peak cannot be taken back.
    script = (
        "import resource, sys\n"
        "from finetuned.host.program import run_program\n"
        "from finetuned.host.stage import StopFlag\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "ended = run_program(['head', '-c', '300000000', '/dev/zero'], seconds=60, stop=StopFlag())\n"
        "assert ended.succeeded\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, file=sys.stderr)\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True)
    assert int(ran.stderr) < 50_000
