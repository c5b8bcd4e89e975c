"""ChildLauncher: the conformance suite, and what only a shim has to promise."""

import ast
import json
import math
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import scripted_worker
from finetuned.core.job import Exit, Stage
from finetuned.host.jobdir import JobDir, read_record
from finetuned.host.launch import Child, ChildLauncher, LaunchFailed, Observation
from finetuned.host.notifications import NotifySocket, Patience
from finetuned.host.process import holders_of, read_stat
from finetuned.host.settings import Settings
from finetuned.host.shim import oom_kills
from launcher_conformance import STAGE, LauncherConformance, a_launch
from until import until


class TestChildLauncher(LauncherConformance):
    def launcher(self, *script: str, stop_timeout_seconds: float = 60.0) -> ChildLauncher:
        settings = Settings.model_construct(stop_timeout_seconds=stop_timeout_seconds, cpu_threads=None)
        return ChildLauncher(settings, scripted_worker.words(*script))

    def daemon_source(self, *script: str) -> str:
        return f"""
import scripted_worker
from finetuned.host.launch import ChildLauncher
from finetuned.host.settings import Settings
launcher = ChildLauncher(Settings(), scripted_worker.words(*{script!r}))
"""

    def test_a_stage_whose_shim_was_killed_still_counts_as_running_and_can_be_stopped(self, job: JobDir):
        launcher = self.launcher("open", "wait", "finish", "exit:0")
        launcher.start(job, a_launch(job))
        until(lambda: job.events_file(STAGE).exists())
        self.kill_the_shim(job)
        assert launcher.observe(job, STAGE) is Observation.RUNNING
        with pytest.raises(LaunchFailed):
            launcher.start(job, a_launch(job, 2))
        launcher.stop(job, STAGE)
        until(lambda: launcher.observe(job, STAGE) is Observation.GONE)
        assert "finished" in job.events_file(STAGE).read_text()
        assert job.read_exit(1) is None

    def test_an_unsupervised_stage_that_ignores_the_request_is_killed_when_asked_after_the_timeout(self, job: JobDir):
        launcher = self.launcher("open", "tree", "deaf", "sleep:600", stop_timeout_seconds=0.05)
        launcher.start(job, a_launch(job))
        until(lambda: (job.path / "tree").exists() and len((job.path / "tree").read_text().split()) == 3)
        self.kill_the_shim(job)
        until(lambda: launcher.stop(job, STAGE) or launcher.observe(job, STAGE) is Observation.GONE)
        assert holders_of(job.lock_file(STAGE)) == []

    def test_a_lock_that_outlives_stage_and_shim_means_running_and_its_holder_can_be_stopped(self, job: JobDir):
        launcher = self.launcher("open", "tree", "wait", stop_timeout_seconds=0.05)
        launcher.start(job, a_launch(job))
        until(lambda: (job.path / "tree").exists() and len((job.path / "tree").read_text().split()) == 3)
        child = self.child_with_stage(job)
        self.kill_the_shim(job)
        os.kill(child.stage_pid, signal.SIGKILL)
        until(lambda: read_stat(child.stage_pid) is None)
        assert launcher.observe(job, STAGE) is Observation.RUNNING
        until(lambda: launcher.stop(job, STAGE) or launcher.observe(job, STAGE) is Observation.GONE)

    def test_a_process_of_an_earlier_boot_is_gone_even_if_its_pid_is_taken_again(self, job: JobDir):
        launcher = self.launcher("wait")
        launcher.start(job, a_launch(job))
        child = self.child_with_stage(job)
        written = (job.launches / "0001.child.json").read_text()
        (job.launches / "0001.child.json").write_text(written.replace(child.boot_id, "another-boot"))
        assert self.launcher().observe(job, STAGE) is Observation.GONE
        (job.launches / "0001.child.json").write_text(written)

    def test_a_pid_that_was_taken_again_by_another_process_does_not_count(self, job: JobDir):
        job.launches.mkdir()
        self.write_child(job, Child(launch=1, stage=STAGE, boot_id=_boot_id(), pid=os.getpid(), start_time=1))
        assert self.launcher().observe(job, STAGE) is Observation.GONE

    def test_where_proc_cannot_be_read_nobody_can_tell(self, job: JobDir, tmp_path: Path):
        launcher = self.launcher("wait")
        launcher.start(job, a_launch(job))
        blind = ChildLauncher(Settings(), proc=tmp_path / "not-mounted")
        assert blind.observe(job, STAGE) is Observation.UNKNOWN
        with pytest.raises(LaunchFailed, match="nobody can tell"):
            blind.start(job, a_launch(job, 2))

    def test_a_damaged_child_record_means_unknown(self, job: JobDir):
        job.launches.mkdir()
        (job.launches / "0001.child.json").write_text("{")
        assert self.launcher().observe(job, STAGE) is Observation.UNKNOWN

    def test_stages_of_one_job_are_told_apart(self, job: JobDir):
        launcher = self.launcher("open", "wait")
        launcher.start(job, a_launch(job, 1))
        assert launcher.observe(job, Stage.PREPARE) is Observation.GONE

    def test_a_missing_release_is_a_failed_launch_that_names_it(self, job: JobDir):
        launch = a_launch(job).model_copy(update={"release": "/opt/finetuned-0.0/bin/python"})
        with pytest.raises(LaunchFailed, match=r"/opt/finetuned-0\.0/bin/python cannot be started: No such file"):
            self.launcher("wait").start(job, launch)
        assert self.launcher().observe(job, STAGE) is Observation.GONE

    def test_a_shim_that_cannot_work_is_a_failed_launch_with_its_last_words(self, job: JobDir):
        launch = a_launch(job)
        job.launches.rename(job.path / "elsewhere")
        launcher = self.launcher("wait")
        with pytest.raises(LaunchFailed, match=r"ended at once with status 1: FileNotFoundError"):
            launcher.start(job, launch)
        assert launcher.observe(job, STAGE) is Observation.GONE

    def test_a_stage_that_cannot_be_started_has_an_exit_record_and_a_line_in_its_log(self, job: JobDir):
        launcher = ChildLauncher(Settings(), lambda _job, _launch: ["/no/such/program"])
        launcher.start(job, a_launch(job))
        until(lambda: launcher.observe(job, STAGE) is Observation.GONE)
        assert job.read_exit(1).returncode == 127
        assert "cannot start /no/such/program: No such file" in job.log_file(STAGE).read_text()

    def test_words_said_before_the_stage_has_its_log_are_kept(self, job: JobDir):
        command = lambda _job, launch: [launch.release, "-c", "import nothing_of_that_name"]  # noqa: E731
        launcher = ChildLauncher(Settings(), command)
        launcher.start(job, a_launch(job))
        until(lambda: launcher.observe(job, STAGE) is Observation.GONE)
        assert "ModuleNotFoundError: No module named 'nothing_of_that_name'" in job.log_file(STAGE).read_text()

    def test_a_stage_sees_the_gpus_of_its_launch_and_the_threads_of_the_settings(self, job: JobDir, monkeypatch):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
        names = ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "OMP_NUM_THREADS"]
        text = f"import os; print([os.environ[name] for name in {names}])"
        command = lambda _job, launch: [launch.release, "-c", text]  # noqa: E731
        launcher = ChildLauncher(Settings(cpu_threads=3), command)
        for number, devices in enumerate((("cuda:1", "cuda:2"), ("cpu:0",), ()), start=1):
            launcher.start(job, a_launch(job, number, devices))
            until(lambda: launcher.observe(job, STAGE) is Observation.GONE)
        assert job.log_file(STAGE).read_text().splitlines() == [
            "['1,2', 'PCI_BUS_ID', '3']",
            "['', 'PCI_BUS_ID', '3']",
            "['', 'PCI_BUS_ID', '3']",
        ]

    def test_a_stage_does_not_take_what_is_said_to_the_daemon_for_its_own(self, job: JobDir, monkeypatch):
        mine = {"NOTIFY_SOCKET": "/daemons", "INVOCATION_ID": "daemons", "JOURNAL_STREAM": "1:2", "WATCHDOG_USEC": "9"}
        for name, value in mine.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("CREDENTIALS_DIRECTORY", "/secrets")
        text = f"import os; print([os.environ.get(name) for name in {[*mine, 'CREDENTIALS_DIRECTORY']}])"
        launcher = ChildLauncher(Settings(), lambda _job, launch: [launch.release, "-c", text])
        for number, stage in enumerate((Stage.TRAIN, Stage.PREPARE), start=1):
            launcher.start(job, a_launch(job, number, stage=stage))
            until(lambda stage=stage: launcher.observe(job, stage) is Observation.GONE)
        trains, prepares = (ast.literal_eval(job.log_file(stage).read_text()) for stage in (Stage.TRAIN, Stage.PREPARE))
        assert trains[0].startswith("@")
        assert trains[1:] == [None] * 4
        assert prepares[-1] == "/secrets"

    def test_where_each_thread_of_a_hung_stage_stood_is_in_its_log(self, job: JobDir, tmp_path: Path, monkeypatch):
        monkeypatch.setenv("FINETUNED_CONFIG", str(tmp_path))
        (tmp_path / "finetuned.yaml").write_text("hang_minutes: 0.005\n")
        text = """
import threading, time
from finetuned.core.job import Stage
from finetuned.host.stage import run_stage
def a_step_that_never_ends():
    time.sleep(600)
def work(run):
    threading.Thread(target=a_step_that_never_ends, name="other").start()
    run.enter("saving")
    a_step_that_never_ends()
run_stage(Stage.TRAIN, work)
"""
        command = lambda job, launch: [launch.release, "-c", text, str(job.path), str(launch.number)]  # noqa: E731
        launcher = ChildLauncher(Settings(), command)
        launcher.start(job, a_launch(job))
        until(lambda: launcher.observe(job, STAGE) is Observation.GONE)
        exit = job.read_exit(1)
        assert exit is not None
        assert (exit.hung, exit.signal) == (True, signal.SIGABRT)
        assert job.log_file(STAGE).read_text().count("in a_step_that_never_ends") == 2
        assert not list(job.path.glob("core*"))

    def test_the_environment_of_a_stage_is_written_nowhere(self, job: JobDir, monkeypatch):
        monkeypatch.setenv("HF_TOKEN", "hf_canary")
        self.run_to_the_end(job, "open", "exit:3")
        written = [path for path in job.path.rglob("*") if path.is_file()]
        assert written
        assert not any(b"hf_canary" in path.read_bytes() for path in written)

    def test_the_exit_record_follows_a_job_that_was_moved(self, job: JobDir):
        launcher = self.launcher("open", "wait", "exit:0")
        launcher.start(job, a_launch(job))
        until(lambda: job.events_file(STAGE).exists())
        moved = JobDir(job.path.with_name("moved"))
        job.path.rename(moved.path)
        launcher.stop(moved, STAGE)
        until(lambda: launcher.observe(moved, STAGE) is Observation.GONE and moved.read_exit(1) is not None)
        moved.path.rename(job.path)

    def test_the_records_have_the_form_that_their_readers_expect(self, job: JobDir):
        self.run_to_the_end(job, "exit:0")
        child = json.loads((job.launches / "0001.child.json").read_text())
        assert child.keys() == Child.model_fields.keys()
        assert json.loads(job.exit_file(1).read_text()).keys() == Exit.model_fields.keys()
        assert sorted(path.name for path in job.launches.iterdir()) == [
            "0001.child.json",
            "0001.exit.json",
            "0001.json",
        ]

    def test_a_shim_is_small(self, job: JobDir):
        self.launcher("wait").start(job, a_launch(job))
        child = self.child_with_stage(job)
        status = Path(f"/proc/{child.pid}/status").read_text()
        resident = int(status.split("VmRSS:")[1].split()[0]) * 1024
        assert resident < 25 << 20, f"{resident:,} bytes"

    def child_with_stage(self, job: JobDir) -> Child:
        path = job.launches / "0001.child.json"
        until(lambda: read_record(path, Child).stage_pid is not None)
        return read_record(path, Child)

    def kill_the_shim(self, job: JobDir) -> None:
        child = self.child_with_stage(job)
        os.kill(child.pid, signal.SIGKILL)
        until(lambda: read_stat(child.pid) is None)

    def write_child(self, job: JobDir, child: Child) -> None:
        (job.launches / f"{child.launch:04d}.child.json").write_text(child.model_dump_json())


@pytest.mark.parametrize(
    ("cgroup", "counter"),
    [
        ("0::/system.slice/finetuned.service", "sys/fs/cgroup/system.slice/finetuned.service/memory.events"),
        ("4:memory:/box", "sys/fs/cgroup/memory/box/memory.oom_control"),
    ],
)
def test_the_kernels_record_of_out_of_memory_kills_is_read_from_either_kind_of_cgroup(
    tmp_path: Path, cgroup: str, counter: str
):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"1:cpu:/\n{cgroup}\n")
    (tmp_path / counter).parent.mkdir(parents=True)
    (tmp_path / counter).write_text("under_oom 0\noom_kill 2\n")
    assert oom_kills(tmp_path) == 2


def test_no_record_of_out_of_memory_kills_counts_as_none(tmp_path: Path):
    assert oom_kills(tmp_path) == 0


def test_the_shim_imports_nothing_heavy():
    text = "import sys, finetuned.host.shim; print([m for m in ('pydantic', 'finetuned.core.job') if m in sys.modules])"
    assert os.popen(f'{sys.executable} -c "{text}"').read().strip() == "[]"


def test_nobody_but_the_stage_itself_is_listened_to():
    notifications = NotifySocket()
    say = "import socket, sys; socket.socket(1, 2).sendto(b'WATCHDOG=1', chr(0) + sys.argv[1][1:])"
    for said_by_us in (False, True):
        if said_by_us:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ours:
                ours.sendto(b"WATCHDOG=1", "\0" + notifications.address[1:])
        else:
            subprocess.run([sys.executable, "-c", say, notifications.address], check=True)
        assert notifications.hear(os.getpid()) == (["WATCHDOG=1"] if said_by_us else [])


def test_a_stage_that_has_announced_nothing_never_hangs():
    patience = Patience()
    patience.hear(["READY=1", "WATCHDOG=1"], 100.0)
    assert patience.hangs_at == math.inf


def test_a_stage_hangs_when_it_has_been_silent_for_as_long_as_it_last_announced():
    patience = Patience()
    patience.hear(["WATCHDOG_USEC=30000000", "STATUS=WATCHDOG=1"], 100.0)
    assert patience.hangs_at == 130.0
    patience.hear(["WATCHDOG=1"], 120.0)
    assert patience.hangs_at == 150.0
    patience.hear(["WATCHDOG_USEC=5000000", "WATCHDOG_USEC=nonsense"], 130.0)
    assert patience.hangs_at == 135.0


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
