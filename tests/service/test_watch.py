"""The doorbell, with the real inotify."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from watchdog.observers import inotify

from finetuned.host.claim import Arrivals
from finetuned.host.settings import Settings
from finetuned.service.watch import Doorbell
from spools import SOUND, a_spool, require
from until import until

LONG = 20.0


@pytest.fixture
def doors(tmp_path: Path) -> tuple[Path, Path]:
    incoming, requests = tmp_path / "incoming", tmp_path / "requests"
    incoming.mkdir()
    requests.mkdir()
    return incoming, requests


@pytest.fixture
def doorbell(doors: tuple[Path, Path]) -> Iterator[Doorbell]:
    doorbell = Doorbell(*doors)
    assert doorbell.problem is None
    yield doorbell
    doorbell.close()


def test_it_is_silent_while_nothing_moves(doorbell: Doorbell):
    assert not doorbell.wait(0.2)


def test_a_file_written_into_a_door_rings(doorbell: Doorbell, doors):
    (doors[0] / "a.yaml").write_text("x")
    assert doorbell.wait(LONG)
    assert not doorbell.arrived_by_rename("a.yaml")


def test_a_request_rings(doorbell: Doorbell, doors):
    (doors[1] / "a.cancel").touch()
    assert doorbell.wait(LONG)


def test_a_folder_rings(doorbell: Doorbell, doors):
    (doors[0] / "a").mkdir()
    assert doorbell.wait(LONG)


def test_a_file_moved_in_from_elsewhere_is_known_to_have_arrived_by_rename(doorbell: Doorbell, doors, tmp_path: Path):
    (tmp_path / "a.yaml").write_text("x")
    os.rename(tmp_path / "a.yaml", doors[0] / "a.yaml")
    assert doorbell.wait(LONG)
    assert doorbell.arrived_by_rename("a.yaml")


def test_a_file_renamed_within_the_door_as_rsync_does_is_known_too(doorbell: Doorbell, doors):
    (doors[0] / ".a.yaml.Xy12").write_text("x")
    os.rename(doors[0] / ".a.yaml.Xy12", doors[0] / "a.yaml")
    assert doorbell.wait(LONG)
    assert doorbell.arrived_by_rename("a.yaml")


@pytest.mark.parametrize("command", [["mv"], ["rsync"]])
def test_what_arrives_by_rename_is_claimed_at_the_first_look(tmp_path: Path, command: list[str]):
    require(shutil.which(command[0]) is not None, f"{command[0]} is missing")
    spool = a_spool(tmp_path)
    doorbell = Doorbell(spool.incoming, spool.requests)
    arrivals = Arrivals(spool, Settings(), doorbell.arrived_by_rename, clock=lambda: 0.0)
    (tmp_path / "a.yaml").write_text(SOUND)
    subprocess.run([*command, tmp_path / "a.yaml", f"{spool.incoming}/"], check=True)
    claimed = []
    while not claimed:
        assert doorbell.wait(LONG)
        claimed = arrivals.claim()
    assert [job.dropped.read_text() for job in claimed] == [SOUND]
    doorbell.close()


def test_an_undecodable_name_is_known_as_the_scan_sees_it(doorbell: Doorbell, doors, tmp_path: Path):
    (tmp_path / "x").touch()
    os.rename(tmp_path / "x", os.fsencode(doors[0]) + b"/a\xff.yaml")
    assert doorbell.wait(LONG)
    assert doorbell.arrived_by_rename(os.listdir(doors[0])[0])


def test_a_rename_counts_for_one_file_only(doorbell: Doorbell, doors, tmp_path: Path):
    (tmp_path / "a.yaml").touch()
    os.rename(tmp_path / "a.yaml", doors[0] / "a.yaml")
    doorbell.wait(LONG)
    assert doorbell.arrived_by_rename("a.yaml")
    assert not doorbell.arrived_by_rename("a.yaml")


def test_a_file_that_is_written_to_after_its_rename_no_longer_counts(doorbell: Doorbell, doors, tmp_path: Path):
    (tmp_path / "a.yaml").touch()
    os.rename(tmp_path / "a.yaml", doors[0] / "a.yaml")
    doorbell.wait(LONG)
    (doors[0] / "a.yaml").write_text("more")
    doorbell.wait(LONG)
    assert not doorbell.arrived_by_rename("a.yaml")


def test_temporary_names_and_what_leaves_do_not_ring(doorbell: Doorbell, doors, tmp_path: Path):
    (doors[0] / ".hidden").write_text("x")
    (doors[0] / "a.part").write_text("x")
    (doors[0] / "a.yaml").write_text("x")
    assert doorbell.wait(LONG)
    until(lambda: not doorbell.wait(0.1))
    os.rename(doors[0] / "a.yaml", tmp_path / "claimed")
    (doors[0] / "a.part").unlink()
    assert not doorbell.wait(1.0)


def test_what_rang_while_nobody_waited_is_not_lost(doorbell: Doorbell, doors):
    for number in range(50):
        (doors[0] / f"{number}.yaml").touch()
        assert doorbell.wait(LONG), number
        doorbell.wait(0)


def test_it_can_be_rung_by_hand_from_a_signal_handler(doorbell: Doorbell):
    signal.signal(signal.SIGUSR1, lambda *_: doorbell.ring())
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    assert doorbell.wait(LONG)
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)


def test_a_door_that_is_removed_rings_and_is_named(doorbell: Doorbell, doors):
    doors[0].rmdir()
    assert doorbell.wait(LONG)
    assert doorbell.problem == f"{doors[0]} was removed; looking every turn instead"


def test_where_nothing_can_be_watched_it_waits_its_time_and_says_why(doors, monkeypatch):
    def no_more_instances(*_args: object) -> None:
        raise OSError(24, "inotify instance limit reached")

    monkeypatch.setattr(inotify.InotifyFD, "__init__", no_more_instances)
    doorbell = Doorbell(*doors)
    assert doorbell.problem == "cannot watch for new files: inotify instance limit reached; looking every turn instead"
    assert not doorbell.wait(0.05)
    doorbell.ring()
    assert doorbell.wait(LONG)
    doorbell.close()


def test_a_door_that_cannot_be_watched_is_named_and_leaves_no_threads(doors):
    doors[1].rmdir()
    before = threading.active_count()
    doorbell = Doorbell(*doors)
    assert doorbell.problem is not None
    assert "No such file" in doorbell.problem
    until(lambda: threading.active_count() == before)


def test_waiting_costs_next_to_nothing(doors):
    text = f"""
import resource
from pathlib import Path
from finetuned.host.claim import Arrivals
from finetuned.host.settings import Settings
from finetuned.service.watch import Doorbell
doorbell = Doorbell(Path({str(doors[0])!r}), Path({str(doors[1])!r}))
before = resource.getrusage(resource.RUSAGE_SELF)
doorbell.wait(3)
after = resource.getrusage(resource.RUSAGE_SELF)
print(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
"""
    seconds = float(subprocess.check_output([sys.executable, "-c", text], text=True))
    assert seconds < 0.015, "more than 0.5 % of a core"
