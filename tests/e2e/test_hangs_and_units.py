"""Real stages of a real daemon as units of a real systemd; and a worker that hangs, whoever supervises it."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import user_systemd
from daemons import Daemon, a_spec
from finetuned.core.events import Checkpointed, Restored, Started
from finetuned.core.job import Outcome, Phase, Stage
from finetuned.host.jobdir import JobDir
from finetuned.host.journal import read_events
from finetuned.host.unit import unit_name
from user_systemd import UserSystemd

pytestmark = pytest.mark.slow

HANG_SECONDS = 10
SPEC = {"num_train_epochs": 12, "save_steps": 2}


def a_unit(home: Path, stage: Stage) -> str:
    run = f"{sys.executable} -m finetuned.host.unit"
    return f"""
[Service]
Type=notify
NotifyAccess=main
KillMode=mixed
WatchdogSec=30min
LimitCORE=0
Environment=FINETUNED_SPOOL={home}/spool FINETUNED_CONFIG={home}/config PATH={home}/bin:{os.environ["PATH"]}
ExecStart={run} run {stage} %i
ExecStopPost={run} ended {stage} %i
"""


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[UserSystemd]:
    """One whose systemctl is the first on PATH, so that the daemon asks it and no other."""
    if reason := user_systemd.why_not():
        pytest.skip(reason)
    manager = UserSystemd(
        tmp_path / "systemd", {f"finetuned-{stage}@.service": a_unit(tmp_path, stage) for stage in Stage}
    )
    for name, value in manager.environment.items():
        monkeypatch.setenv(name, value)
    ask = tmp_path / "bin" / "systemctl"
    ask.parent.mkdir()
    ask.write_text('#!/bin/sh\nexec /usr/bin/systemctl --user "$@"\n')
    ask.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ask.parent}:{os.environ['PATH']}")
    yield manager
    manager.close()


def test_a_job_goes_all_the_way_in_units_and_a_killed_daemon_finds_its_worker_again(
    systemd: UserSystemd, a_daemon: Callable[..., Daemon], home: Path
):
    daemon = a_daemon(launcher="units")
    daemon.drop(a_spec(home, **SPEC), "units.yaml")
    daemon.wait_for_event("units", Checkpointed)
    job = daemon.job("units")
    daemon.kill()
    shown = systemd.systemctl("show", "--property=ActiveState,StatusText,MainPID", unit_name(Stage.TRAIN, job.job))
    assert "ActiveState=active" in shown
    assert "StatusText=" in shown
    [started] = started_in(job)
    assert f"MainPID={started.pid}" in shown
    daemon.start()
    job = daemon.wait_for("units", Phase.DONE)
    assert job.read_result().outcome is Outcome.SUCCEEDED
    assert started_in(job) == [started]
    exits = [job.read_exit(launch.number) for launch in job.read_launches()]
    assert [(exit.returncode, exit.asked_to_stop) for exit in exits] == [(0, False), (0, False)]


def test_a_held_job_stops_with_a_checkpoint_and_goes_on_as_a_new_unit(
    systemd: UserSystemd, a_daemon: Callable[..., Daemon], home: Path
):
    daemon = a_daemon(launcher="units")
    daemon.drop(a_spec(home, **SPEC), "held.yaml")
    daemon.wait_for_event("held", Checkpointed)
    daemon.ask(daemon.job("held"), "hold")
    job = daemon.wait_for("held", Phase.QUEUED)
    exit = job.read_exit(2)
    assert exit is not None
    assert (exit.returncode, exit.asked_to_stop) == (0, True)
    daemon.ask(job, "release")
    assert_resumed(daemon.wait_for("held", Phase.DONE))


@pytest.mark.parametrize("launcher", ["children", "units"])
def test_a_worker_that_hangs_is_killed_named_and_resumed(
    launcher: str, request: pytest.FixtureRequest, a_daemon: Callable[..., Daemon], home: Path
):
    if launcher == "units":
        request.getfixturevalue("systemd")
    daemon = a_daemon(launcher=launcher, hang_minutes=HANG_SECONDS / 60)
    daemon.drop(a_spec(home, **SPEC), "hangs.yaml")
    daemon.wait_for_event("hangs", Checkpointed)
    [worker] = started_in(daemon.job("hangs"))
    os.kill(worker.pid, signal.SIGSTOP)
    job = daemon.wait_for("hangs", Phase.DONE)
    exit = job.read_exit(2)
    assert exit is not None
    assert (exit.hung, exit.asked_to_stop) == (True, False)
    # Unlike one that hangs, a process that was stopped goes on while its stacks are written: Python may trip over that.
    assert exit.signal in (signal.SIGABRT, signal.SIGSEGV)
    assert "(most recent call first)" in job.log_file(Stage.TRAIN).read_text()
    assert "Fatal Python error: Aborted" in job.log_file(Stage.TRAIN).read_text()
    assert "(it hung: it made no progress for too long and was killed" in daemon.log
    assert_resumed(job)


def started_in(job: JobDir) -> list[Started]:
    return [event for event in read_events(job.events_file(Stage.TRAIN)) if isinstance(event, Started)]


def assert_resumed(job: JobDir) -> None:
    restored = [event.step for event in read_events(job.events_file(Stage.TRAIN)) if isinstance(event, Restored)]
    assert len(restored) == 2
    assert restored[0] == 0 < restored[1]
