"""The spool directory: what it is made of, who may work on it, where jobs stand and how they move."""

import errno
import os
import re
import stat
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from finetuned.core.job import Phase, Stage
from finetuned.host import spool as spool_module
from finetuned.host.files import take_lock
from finetuned.host.spool import Busy, Spool, SpoolUnusable, slug
from spools import a_queued_job, a_small_disk, a_spool, become, fill

NOW = datetime(2026, 11, 30, 22, 15, tzinfo=UTC)


def test_a_spool_has_the_same_modes_under_any_umask(tmp_path: Path):
    old = os.umask(0o777)
    try:
        spool = a_spool(tmp_path)
    finally:
        os.umask(old)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in spool.path.iterdir() if path.is_dir()}
    assert stat.S_IMODE(spool.path.stat().st_mode) == 0o2750
    assert {name for name, mode in modes.items() if mode == 0o3770} == {"incoming", "requests"}
    assert {name for name, mode in modes.items() if mode == 0o2750} == {"receipts", "store", *Phase}
    assert sorted(path.name for path in spool.store.iterdir()) == ["data", "models", "prepared"]


def test_making_a_spool_again_leaves_it_as_it_was(tmp_path: Path):
    spool = a_spool(tmp_path)
    spool.incoming.chmod(0o3730)
    spool.create()
    assert stat.S_IMODE(spool.incoming.stat().st_mode) == 0o3730


def test_a_spool_that_cannot_be_made_is_refused_by_name(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SpoolUnusable, match=r"file is there and is not a directory"):
        Spool(tmp_path / "file/spool").create()


def test_a_spool_on_nfs_is_refused(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(spool_module, "_file_system_magic", lambda _path: 0x6969)
    with pytest.raises(SpoolUnusable, match="is on NFS"):
        Spool(tmp_path / "spool").create()


def test_the_kind_of_file_system_is_asked_of_the_kernel():
    assert spool_module._file_system_magic(Path("/proc")) == 0x9FA0


def test_a_spool_over_two_file_systems_is_refused(tmp_path: Path):
    spool = a_spool(tmp_path)
    with a_small_disk(spool.path / "done"), pytest.raises(SpoolUnusable, match=r"done is on another file system than"):
        spool.create()


def test_a_daemon_that_does_not_own_the_doors_is_refused(public_path: Path):
    spool = a_spool(public_path)
    for path in (spool.path, *spool.path.iterdir()):
        path.chmod(0o777)
    with become(65534), pytest.raises(SpoolUnusable, match=r"incoming belongs to uid 0 .* chown 65534 "):
        spool.create()


def test_a_second_daemon_is_refused_with_a_sentence_naming_the_spool(tmp_path: Path):
    spool = a_spool(tmp_path)
    lock = spool.take_daemon_lock()
    said = re.escape(f"another finetuned daemon (pid {os.getpid()}) works on {spool.path}; stop it")
    with pytest.raises(SpoolUnusable, match=said):
        spool.take_daemon_lock()
    os.close(lock)
    os.close(spool.take_daemon_lock())


def test_the_lock_of_a_killed_daemon_is_free(tmp_path: Path):
    spool = a_spool(tmp_path)
    text = (
        f"import os; from pathlib import Path; from finetuned.host.spool import Spool; "
        f"Spool(Path({str(spool.path)!r})).take_daemon_lock(); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", text], check=False).returncode == -9
    os.close(spool.take_daemon_lock())


def test_jobs_are_listed_by_phase_oldest_first_and_nothing_else_is(tmp_path: Path):
    spool = a_spool(tmp_path)
    for job, phase in (("20261201-000000-b-00000002", "queued"), ("20261130-000000-a-00000001", "done")):
        (spool.path / phase / job).mkdir()
    (spool.path / "queued/.hidden").mkdir()
    (spool.path / "queued/a-file").write_text("")
    (spool.path / "queued/a-link").symlink_to(spool.path / "done")
    assert [job.job[-1] for job in spool.jobs()] == ["1", "2"]
    assert [job.job[-1] for job in spool.jobs(Phase.QUEUED, Phase.ACTIVE)] == ["2"]


def test_a_job_that_moves_while_the_phases_are_read_is_listed_once(tmp_path: Path, monkeypatch):
    spool = a_spool(tmp_path)
    job = a_queued_job(spool)
    read = spool_module._directories

    def move_after_the_first_phase(path: Path) -> list[Path]:
        found = read(path)
        if path.name == Phase.QUEUED:
            spool.move(job, Phase.ACTIVE)
        return found

    monkeypatch.setattr(spool_module, "_directories", move_after_the_first_phase)
    assert [found.phase for found in spool.jobs()] == [Phase.ACTIVE]


def test_a_job_is_found_by_its_id_a_part_of_it_or_its_dropped_name(tmp_path: Path):
    spool = a_spool(tmp_path)
    tone = a_queued_job(spool, "Support Tone.yaml", job="20261130-221500-support-tone-7f3a09c1")
    other = a_queued_job(spool, "Übung.yaml", job="20261130-221501-ubung-7f3a09c2")
    assert spool.find(tone.job) == [tone]
    assert spool.find("tone") == [tone]
    assert spool.find("7F3A") == [tone, other]
    assert spool.find("übung") == [other]
    assert spool.find("support tone.yaml") == [tone]
    assert spool.find("nothing") == []


def test_no_text_leads_out_of_the_spool(tmp_path: Path):
    spool = a_spool(tmp_path)
    for text in ("..", ".", "../incoming", "/etc", "a/b", "", "x\0"):
        assert spool.get(text) is None
        assert spool.find(text) == []


def test_a_job_moves_with_everything_in_it(tmp_path: Path):
    spool = a_spool(tmp_path)
    job = a_queued_job(spool)
    moved = spool.move(job, Phase.ACTIVE)
    assert moved.phase is Phase.ACTIVE
    assert moved.read_claim() is not None
    assert not job.path.exists()
    assert take_lock(moved.lock_file(Stage.TRAIN)) is not None


def test_a_phase_that_was_tidied_away_is_made_again(tmp_path: Path):
    spool = a_spool(tmp_path)
    job = a_queued_job(spool)
    (spool.path / Phase.FAILED).rmdir()
    moved = spool.move(job, Phase.FAILED)
    assert spool.jobs(Phase.FAILED) == [moved]
    assert stat.S_IMODE((spool.path / Phase.FAILED).stat().st_mode) == 0o2750


@pytest.mark.parametrize("stage", Stage)
def test_a_job_does_not_move_while_a_stage_holds_its_lock(tmp_path: Path, stage: Stage):
    spool = a_spool(tmp_path)
    job = a_queued_job(spool)
    lock = take_lock(job.lock_file(stage))
    with pytest.raises(Busy, match=f"{stage} of {job.job} still runs"):
        spool.move(job, Phase.ACTIVE)
    assert job.path.exists()
    os.close(lock)
    spool.move(job, Phase.ACTIVE)


def test_no_stage_can_start_while_a_job_is_locked(tmp_path: Path):
    spool = a_spool(tmp_path)
    job = a_queued_job(spool)
    with spool.locked(job):
        assert [take_lock(job.lock_file(stage)) for stage in Stage] == [None for _ in Stage]
    assert take_lock(job.lock_file(Stage.TRAIN)) is not None


def test_a_job_is_never_moved_over_another(tmp_path: Path):
    spool = a_spool(tmp_path)
    job = a_queued_job(spool)
    (spool.path / "active" / job.job).mkdir()
    with pytest.raises(FileExistsError):
        spool.move(job, Phase.ACTIVE)
    assert job.read_claim() is not None


def test_ids_sort_by_time_say_something_of_the_name_and_differ(tmp_path: Path):
    spool = a_spool(tmp_path)
    ids = {spool.new_id("Support Tone (v2)", NOW) for _ in range(100)}
    assert len(ids) == 100
    assert all(re.fullmatch(r"20261130-221500-support-tone-v2-[0-9a-f]{8}", job) for job in ids)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("été", "ete"), ("😀", "job"), ("-rf *", "rf"), ("../../x", "x"), ("a\nb\udcff", "a-b"), ("n" * 255, "n" * 40)],
)
def test_a_slug_is_made_of_plain_letters(name: str, expected: str):
    assert slug(name) == expected


def test_an_ending_finds_room_on_a_full_disk(tmp_path: Path):
    with a_small_disk(tmp_path / "disk") as disk:
        spool = a_spool(disk)
        filler = fill(disk)
        result = spool.path / "result"
        with pytest.raises(OSError, match="No space left"):
            result.write_bytes(b"x" * 10_000)
        spool.with_reserve(lambda: result.write_bytes(b"x" * 10_000))
        assert result.stat().st_size == 10_000
        assert not spool.keep_reserve()
        filler.unlink()
        assert spool.keep_reserve()
        assert (spool.path / ".reserve").stat().st_blocks * 512 >= 1 << 20


def test_only_a_full_disk_costs_the_reserve(tmp_path: Path):
    spool = a_spool(tmp_path)

    def fail() -> None:
        raise OSError(errno.EIO, "the disk is broken")

    with pytest.raises(OSError, match="broken"):
        spool.with_reserve(fail)
    assert (spool.path / ".reserve").exists()
