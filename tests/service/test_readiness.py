"""What the daemon tells the service manager, and how it reads its settings again."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from daemons import QUICK, RUN, Daemon
from finetuned.core.events import Entered, History, Progress, Started, extend
from finetuned.core.messages import status_of_daemon
from finetuned.service.readiness import Readiness, longest_pause
from until import until


class Manager:
    """A service manager that listens."""

    def __init__(self, path: Path):
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)
        self._lines: list[str] = []

    def lines(self) -> list[str]:
        try:
            while True:
                self._lines += self._socket.recv(10_000).decode().splitlines()
        except BlockingIOError:
            return self._lines

    def forget(self) -> None:
        self.lines().clear()


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Manager:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    return Manager(tmp_path / "notify")


@pytest.fixture
def daemon(tmp_path: Path, manager: Manager) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path).start()
    yield daemon
    daemon.close()


def test_the_daemon_is_ready_after_its_first_turn_feeds_the_watchdog_and_says_when_it_leaves(
    daemon: Daemon, manager: Manager
):
    until(lambda: "WATCHDOG=1" in manager.lines())
    assert manager.lines()[0] == "READY=1"
    assert "STATUS=idle" in manager.lines()
    daemon.stop()
    assert manager.lines()[-1] == "STOPPING=1"


def test_sighup_reads_the_settings_again_and_a_bad_file_changes_nothing(daemon: Daemon, manager: Manager):
    until(lambda: "READY=1" in manager.lines())
    settings = daemon.home / "config" / "finetuned.yaml"
    settings.write_text(json.dumps(QUICK | {"cpu_slots": 3}))
    manager.forget()
    os.kill(daemon.pid, signal.SIGHUP)
    until(lambda: "READY=1" in manager.lines())
    assert manager.lines().index("RELOADING=1") < manager.lines().index("READY=1")
    assert any(line.startswith("MONOTONIC_USEC=") for line in manager.lines())
    assert "the settings were read again" in daemon.log
    settings.write_text("cpu_slots: none\n")
    manager.forget()
    os.kill(daemon.pid, signal.SIGHUP)
    until(lambda: "READY=1" in manager.lines())
    assert "the settings stay as they were" in daemon.log
    assert "cpu_slots" in daemon.log
    manager.forget()
    until(lambda: "WATCHDOG=1" in manager.lines())


def test_units_without_a_systemd_are_refused_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    silent = tmp_path / "bin" / "systemctl"
    silent.parent.mkdir()
    silent.write_text("#!/bin/sh\nexit 1\n")
    silent.chmod(0o755)
    monkeypatch.setenv("PATH", f"{silent.parent}:{os.environ['PATH']}")
    command = [*RUN, "--spool", str(tmp_path / "spool"), "--config", str(tmp_path), "--launcher", "units"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 69
    assert "systemd does not answer" in ended.stderr


def said_by(*moments: float, status: str = "idle") -> list[str]:
    said: list[str] = []
    now = [0.0]
    readiness = Readiness(lambda *lines: said.extend(lines), lambda: now[0])
    for now[0] in moments:
        readiness.turn_completed(lambda: status)
    return said


def test_turns_in_quick_succession_are_told_once_a_second_and_the_status_every_few():
    said = said_by(*(tenth / 10 for tenth in range(100)))
    assert said.count("READY=1") == 1
    assert said.count("WATCHDOG=1") == 10
    assert said.count("STATUS=idle") == 2


def test_the_status_tells_no_secret():
    assert said_by(0.0, status="hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345")[-1] == "STATUS=[secret]"


def test_a_long_pause_between_turns_is_cut_where_a_watchdog_waits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    assert longest_pause(600.0) == 600.0
    monkeypatch.setenv("WATCHDOG_USEC", "60000000")
    assert longest_pause(600.0) == 20.0
    assert longest_pause(2.0) == 2.0


def test_the_status_names_what_runs_and_counts_what_waits():
    time = datetime.now(UTC)
    started = Started(time=time, launch=1, attempt=1, pid=1, boot_id="b")
    loading = extend(History(), [started, Entered(time=time, activity="loading")]).progress
    assert status_of_daemon({}, 0) == "idle"
    assert status_of_daemon({"b": loading, "a": Progress()}, 2) == "a: starting; b: loading; 2 queued"
    assert status_of_daemon({name: Progress() for name in "abcde"}, 0).endswith("c: starting; and 2 more")
