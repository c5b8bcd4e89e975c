"""What every launcher promises. A test class inherits `LauncherConformance` and says how to make its launcher."""

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

import scripted_worker
from finetuned.core.job import Exit, Launch, Phase, Stage
from finetuned.host.jobdir import JobDir, write_record
from finetuned.host.journal import read_events
from finetuned.host.launch import Launcher, LaunchFailed, Observation
from finetuned.host.machine import boot_id
from finetuned.host.process import read_stat
from until import until

STAGE = Stage.TRAIN


def a_job(spool: Path, name: str = "20261130-221500-support-tone-7f3a09c1") -> JobDir:
    job = JobDir(spool / Phase.ACTIVE / name)
    job.path.mkdir(parents=True)
    return job


def a_launch(job: JobDir, number: int = 1, devices: tuple[str, ...] = ("cpu:0",), stage: Stage = STAGE) -> Launch:
    """A launch whose file is on disk, as the daemon leaves it before it asks a launcher."""
    launch = Launch(
        number=number, stage=stage, devices=devices, boot_id=boot_id(), release=sys.executable, asked=datetime.now(UTC)
    )
    job.launches.mkdir(exist_ok=True)
    write_record(job.launch_file(number), launch)
    return launch


class LauncherConformance:
    save_seconds = 2.0
    """Longer than the shortest timeout of a stop that the launcher can be given."""

    def launcher(self, *script: str, stop_timeout_seconds: float = 60.0) -> Launcher:
        """A launcher of a fresh daemon whose stage does what the words say (see scripted_worker)."""
        raise NotImplementedError

    def daemon_source(self, *script: str) -> str:
        """Python text that leaves such a launcher in the name `launcher`."""
        raise NotImplementedError

    @pytest.fixture
    def job(self, tmp_path: Path):
        job = a_job(tmp_path)
        yield job
        launcher = self.launcher(stop_timeout_seconds=0.0)
        while launcher.observe(job, STAGE) is Observation.RUNNING:
            launcher.stop(job, STAGE)

    def test_a_started_stage_runs_until_it_is_done(self, job: JobDir):
        launcher = self.launcher("open", "wait")
        launcher.start(job, a_launch(job))
        assert launcher.observe(job, STAGE) is Observation.RUNNING
        launcher.stop(job, STAGE)
        until(lambda: launcher.observe(job, STAGE) is Observation.GONE)

    def test_a_stage_that_was_never_launched_is_gone(self, job: JobDir):
        assert self.launcher().observe(job, STAGE) is Observation.GONE

    def test_stopping_what_does_not_run_does_nothing(self, job: JobDir):
        self.launcher().stop(job, STAGE)

    @pytest.mark.parametrize(
        ("script", "returncode", "number", "by_itself"),
        [
            (("exit:0",), 0, None, False),
            (("exit:3",), 3, None, True),
            ((f"kill:{signal.SIGKILL}",), None, signal.SIGKILL, False),
            ((f"kill:{signal.SIGSEGV}",), None, signal.SIGSEGV, True),
        ],
    )
    def test_the_exit_record_says_how_it_ended(self, job: JobDir, script, returncode, number, by_itself):
        exit = self.run_to_the_end(job, *script)
        assert (exit.launch, exit.returncode, exit.signal) == (1, returncode, number)
        assert exit.died_by_itself == by_itself
        assert not exit.asked_to_stop
        assert not exit.out_of_memory

    def test_the_exit_record_says_that_it_was_asked_to_stop(self, job: JobDir):
        launcher = self.launcher("open", "wait", "exit:0")
        launcher.start(job, a_launch(job))
        until(lambda: job.events_file(STAGE).exists())
        launcher.stop(job, STAGE)
        until(lambda: launcher.observe(job, STAGE) is Observation.GONE)
        exit = job.read_exit(1)
        assert exit is not None
        assert (exit.asked_to_stop, exit.returncode, exit.signal) == (True, 0, None)

    def test_asking_twice_to_stop_is_as_good_as_once(self, job: JobDir):
        launcher = self.launcher("open", "wait", "sleep:0.3", "exit:5")
        launcher.start(job, a_launch(job))
        until(lambda: job.events_file(STAGE).exists())
        launcher.stop(job, STAGE)
        launcher.stop(job, STAGE)
        until(lambda: launcher.observe(job, STAGE) is Observation.GONE)
        exit = job.read_exit(1)
        assert exit is not None
        assert (exit.returncode, exit.asked_to_stop) == (5, True)

    def test_a_second_start_is_refused_while_the_first_lives(self, job: JobDir):
        launcher = self.launcher("open", "wait")
        launcher.start(job, a_launch(job, 1))
        with pytest.raises(LaunchFailed, match="runs already"):
            launcher.start(job, a_launch(job, 2))
        with pytest.raises(LaunchFailed, match="runs already"):
            self.launcher("open", "wait").start(job, a_launch(job, 3))

    def test_a_stage_can_be_started_again_after_its_end(self, job: JobDir):
        self.run_to_the_end(job, "exit:0", number=1)
        assert self.run_to_the_end(job, "exit:4", number=2).returncode == 4

    def test_a_run_outlives_a_killed_daemon_and_is_found_again(self, job: JobDir):
        a_launch(job)
        text = f"""
import os, signal
from pathlib import Path
from finetuned.host.jobdir import JobDir
job = JobDir(Path({str(job.path)!r}))
{self.daemon_source("open", "wait", "exit:7")}
launcher.start(job, job.read_launches()[0])
os.kill(os.getpid(), signal.SIGKILL)
"""
        died = subprocess.run([sys.executable, "-c", text], env=os.environ | {"PYTHONPATH": _TESTS}, check=False)
        assert died.returncode == -signal.SIGKILL
        launcher = self.launcher()
        assert launcher.observe(job, STAGE) is Observation.RUNNING
        until(lambda: job.events_file(STAGE).exists())
        launcher.stop(job, STAGE)
        until(lambda: launcher.observe(job, STAGE) is Observation.GONE)
        exit = job.read_exit(1)
        assert exit is not None
        assert exit.returncode == 7

    def test_nothing_of_the_tree_is_left_after_a_stop(self, job: JobDir):
        launcher = self.launcher("open", "tree", "deaf", "sleep:600", stop_timeout_seconds=0.5)
        launcher.start(job, a_launch(job))
        self.assert_the_tree_goes(job, launcher)
        exit = job.read_exit(1)
        assert exit is not None
        assert (exit.signal, exit.asked_to_stop) == (signal.SIGKILL, True)

    def test_nothing_of_the_tree_is_left_after_an_orderly_end(self, job: JobDir):
        launcher = self.launcher("open", "tree", "wait", "exit:0")
        launcher.start(job, a_launch(job))
        self.assert_the_tree_goes(job, launcher)

    def test_a_stage_that_is_silent_for_longer_than_it_announced_has_hung_and_is_killed(self, job: JobDir):
        exit = self.run_to_the_end(job, "open", "watched:0.5", "beat:1", "sleep:600")
        assert (exit.hung, exit.signal, exit.died_by_itself, exit.asked_to_stop) == (True, signal.SIGABRT, True, False)

    def test_a_stage_that_was_frozen_from_outside_has_hung_too_and_wakes_to_its_end(self, job: JobDir):
        launcher = self.launcher("open", "watched:1", "mark", "beat:600")
        launcher.start(job, a_launch(job))
        until((job.path / "mark").exists)
        [started] = read_events(job.events_file(STAGE))
        os.kill(started.pid, signal.SIGSTOP)
        until(lambda: launcher.observe(job, STAGE) is Observation.GONE)
        exit = job.read_exit(1)
        assert exit is not None
        assert (exit.hung, exit.signal) == (True, signal.SIGABRT)

    def test_a_stop_lasts_for_as_long_as_the_stage_asks_for_more_time(self, job: JobDir):
        launcher = self.launcher("open", "wait", f"save:{self.save_seconds}", "exit:0", stop_timeout_seconds=0.5)
        launcher.start(job, a_launch(job))
        until(lambda: job.events_file(STAGE).exists())
        launcher.stop(job, STAGE)
        until(lambda: launcher.observe(job, STAGE) is Observation.GONE, 60)
        exit = job.read_exit(1)
        assert exit is not None
        assert (exit.returncode, exit.asked_to_stop, exit.hung) == (0, True, False)

    def assert_the_tree_goes(self, job: JobDir, launcher: Launcher) -> None:
        until(lambda: (job.path / "tree").exists() and len((job.path / "tree").read_text().split()) == 3)
        pids = [int(pid) for pid in (job.path / "tree").read_text().split()]
        assert all(read_stat(pid) is not None for pid in pids)
        launcher.stop(job, STAGE)
        until(lambda: launcher.observe(job, STAGE) is Observation.GONE)
        assert [pid for pid in pids if read_stat(pid) is not None] == []

    def run_to_the_end(self, job: JobDir, *script: str, number: int = 1) -> Exit:
        launcher = self.launcher(*script)
        launcher.start(job, a_launch(job, number))
        until(lambda: launcher.observe(job, STAGE) is Observation.GONE)
        exit = job.read_exit(number)
        assert exit is not None
        return exit


_TESTS = str(Path(scripted_worker.__file__).parent)
