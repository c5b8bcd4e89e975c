"""Files that survive a crash, and files of strangers."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from finetuned.host import files
from finetuned.host.files import (
    MAX_STRANGER_BYTES,
    Untrustworthy,
    is_locked,
    read_stranger,
    rename_durably,
    take_lock,
    write_whole,
)


def test_a_whole_write_replaces_the_file_and_leaves_nothing_beside_it(tmp_path: Path):
    path = tmp_path / "plan.json"
    write_whole(path, b"old")
    write_whole(path, b"new" * 100_000)
    assert path.read_bytes() == b"new" * 100_000
    assert os.listdir(tmp_path) == ["plan.json"]
    assert stat.S_IMODE(path.stat().st_mode) & 0o007 == 0


def test_a_whole_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch):
    path = tmp_path / "plan.json"
    write_whole(path, b"old")
    monkeypatch.setattr(files.os, "fsync", lambda _: (_ for _ in ()).throw(OSError(5, "broken")))
    with pytest.raises(OSError, match=f"broken: '{path}'"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["plan.json"]


def test_a_whole_write_does_not_follow_a_planted_link(tmp_path: Path):
    (tmp_path / "precious").write_bytes(b"precious")
    (tmp_path / f".plan.json.{os.getpid()}.tmp").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError):
        write_whole(tmp_path / "plan.json", b"new")
    assert (tmp_path / "precious").read_bytes() == b"precious"


def test_a_durable_rename_syncs_both_directories_after_it(tmp_path: Path, monkeypatch):
    synced: list[tuple[str, bool]] = []
    monkeypatch.setattr(files, "sync_directory", lambda path: synced.append((path.name, target.exists())))
    source, target = tmp_path / "a" / "x", tmp_path / "b" / "x"
    source.parent.mkdir()
    target.parent.mkdir()
    source.write_text("")
    rename_durably(source, target)
    assert synced == [("b", True), ("a", True)]


def test_a_small_regular_file_of_a_stranger_is_read(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"x" * MAX_STRANGER_BYTES)
    assert len(read_stranger(tmp_path / "a")) == MAX_STRANGER_BYTES


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path.symlink_to("/etc/hostname"), "is a symbolic link"),
        (os.mkfifo, "is not a regular file"),
        (os.mkdir, "is not a regular file"),
        (lambda path: path.write_bytes(b"x" * (MAX_STRANGER_BYTES + 1)), "is 1,048,577 bytes; a job file is at most"),
        (lambda path: (path.with_name("b").write_text(""), os.link(path.with_name("b"), path)), "has 2 names"),
    ],
)
def test_anything_else_is_not_read(tmp_path: Path, make, said: str):
    make(tmp_path / "a")
    with pytest.raises(Untrustworthy, match=said):
        read_stranger(tmp_path / "a")


def test_a_file_that_grows_past_the_limit_while_it_is_read_is_not_read(tmp_path: Path, monkeypatch):
    path = tmp_path / "a"
    path.write_bytes(b"x")
    real = os.fstat

    def grow_afterwards(descriptor: int) -> os.stat_result:
        found = real(descriptor)
        with path.open("ab") as file:
            file.write(b"x" * MAX_STRANGER_BYTES)
        return found

    monkeypatch.setattr(files.os, "fstat", grow_afterwards)
    with pytest.raises(Untrustworthy, match="is more than 1,048,576 bytes"):
        read_stranger(path)


def test_a_lock_is_held_by_one_and_seen_by_all(tmp_path: Path):
    path = tmp_path / "train.lock"
    assert not is_locked(path)
    lock = take_lock(path)
    assert lock is not None
    assert is_locked(path)
    assert take_lock(path) is None
    os.close(lock)
    assert not is_locked(path)


def test_bytes_of_a_lock_file_are_locked_apart(tmp_path: Path):
    path = tmp_path / "train.lock"
    locks = [take_lock(path, byte) for byte in (0, 3)]
    assert None not in locks
    assert [is_locked(path, byte) for byte in range(4)] == [True, False, False, True]


def test_a_lock_dies_with_the_process_that_holds_it(tmp_path: Path):
    path = tmp_path / "train.lock"
    text = (
        "import sys, time; from pathlib import Path; from finetuned.host.files import take_lock; "
        f"take_lock(Path({str(path)!r})); print('locked', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert is_locked(path)
        holder.kill()
        holder.wait()
    assert not is_locked(path)


def test_reading_a_locked_file_does_not_touch_its_lock(tmp_path: Path):
    path = tmp_path / "train.lock"
    take_lock(path)
    path.read_bytes()
    assert is_locked(path)
    assert is_locked(path)
