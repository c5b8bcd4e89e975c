"""Claiming: whatever is dropped, and however it arrives, becomes exactly one job."""

import os
import socket
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from finetuned.core.job import Phase
from finetuned.host import claim
from finetuned.host.claim import (
    Arrivals,
    copy_spec,
    dropped_folder,
    in_place,
    spec_changed,
)
from finetuned.host.files import Untrustworthy
from finetuned.host.jobdir import JobDir
from finetuned.host.receipts import Receipt, write_receipt
from finetuned.host.settings import Settings
from spools import SOUND, a_small_disk, a_spool, become, require

TRUNCATED = SOUND.removesuffix("}]\n")


class Inbox:
    """A spool's incoming/ and the daemon that scans it, on a clock of its own."""

    def __init__(self, parent: Path):
        self.spool = a_spool(parent)
        self.seconds = 0.0
        self.renamed: set[str] = set()
        self.restart()

    def restart(self) -> None:
        """A new daemon: it remembers nothing."""
        self.arrivals = Arrivals(self.spool, Settings(), self.renamed.__contains__, lambda: self.seconds)

    def drop(self, name: str, content: bytes | str = SOUND) -> Path:
        path = self.spool.incoming / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def drop_folder(self, name: str, spec: str | None = SOUND, job_file: str = "job.yaml") -> Path:
        path = self.spool.incoming / name
        (path / "data").mkdir(parents=True)
        (path / "data" / "chats.jsonl").write_text("{}\n")
        if spec is not None:
            (path / job_file).write_text(spec)
        return path

    def scan(self, after: float = 0.0) -> list[JobDir]:
        self.seconds += after
        return self.arrivals.claim()

    def scan_all(self, seconds: float = 200.0) -> list[JobDir]:
        """What all scans of that time claim."""
        claimed = self.scan()
        for _ in range(int(seconds)):
            claimed += self.scan(after=1.0)
        return claimed


@pytest.fixture
def inbox(tmp_path: Path) -> Inbox:
    return Inbox(tmp_path)


def refusal_of(job: JobDir) -> str:
    found = job.read_claim()
    assert found is not None
    assert found.refusal is not None
    return f"{found.refusal.place} {found.refusal.what}"


# How it arrives


def test_a_file_that_looks_the_same_for_two_seconds_is_claimed_once(inbox: Inbox):
    inbox.drop("Support Tone.yaml")
    assert inbox.scan() == []
    assert inbox.scan(after=1.9) == []
    [job] = inbox.scan(after=0.1)
    assert inbox.scan_all() == []
    assert os.listdir(inbox.spool.incoming) == []
    assert job.job.split("-", 2)[2].startswith("support-tone-")
    assert (job.dropped.read_text(), job.phase) == (SOUND, Phase.QUEUED)
    assert stat.S_IMODE(job.path.stat().st_mode) == 0o2750


def test_a_file_that_arrived_by_rename_is_claimed_at_once(inbox: Inbox):
    inbox.drop("tone.yaml")
    inbox.renamed.add("tone.yaml")
    assert len(inbox.scan()) == 1


def test_a_claim_says_what_was_dropped_and_by_whom(inbox: Inbox):
    inbox.drop("Über 😀.json", '{"base_model": "/m", "datasets": [{"path": "/d.jsonl"}]}')
    [job] = inbox.scan_all()
    found = job.read_claim()
    assert found is not None
    assert (found.job, found.name, found.uid, found.refusal) == (job.job, "Über 😀.json", os.getuid(), None)


def test_a_job_is_called_as_its_file_asks(inbox: Inbox):
    inbox.drop("tone.yaml", SOUND + "suffix: Support Tone\n")
    inbox.drop_folder("mine", SOUND + "suffix: other\n")
    names = {job.job.split("-", 2)[2].rsplit("-", 1)[0] for job in inbox.scan_all()}
    assert names == {"support-tone", "other"}


def test_a_growing_file_is_claimed_once_and_whole(inbox: Inbox):
    path = inbox.drop("tone.yaml", "")
    claimed = []
    for end in range(1, len(SOUND) + 1):
        path.write_text(SOUND[:end])
        claimed += inbox.scan(after=1.5)
    claimed += inbox.scan_all()
    assert [job.dropped.read_text() for job in claimed] == [SOUND]


def test_a_file_that_is_cut_short_is_waited_for(inbox: Inbox):
    path = inbox.drop("tone.yaml", TRUNCATED)
    assert inbox.scan_all(seconds=58) == []
    path.write_text(SOUND)
    [job] = inbox.scan_all(seconds=5)
    assert job.dropped.read_text() == SOUND


def test_a_file_with_a_wrong_spec_becomes_a_job_that_will_fail_with_all_its_problems(inbox: Inbox):
    inbox.drop("tone.yaml", TRUNCATED)
    assert inbox.scan_all(seconds=59) == []
    [job] = inbox.scan_all(seconds=2)
    found = job.read_claim()
    assert found is not None
    assert found.refusal is None


def test_a_wrong_spec_that_arrived_by_rename_is_not_waited_for(inbox: Inbox):
    inbox.drop("tone.yaml", "nonsense: [")
    inbox.renamed.add("tone.yaml")
    assert len(inbox.scan()) == 1


def test_a_spec_is_parsed_once_while_it_rests(inbox: Inbox, monkeypatch):
    looked: list[str] = []
    real = claim.judge
    monkeypatch.setattr(claim, "judge", lambda path: looked.append(path.name) or real(path))
    inbox.drop("tone.yaml", TRUNCATED)
    inbox.scan_all(seconds=50)
    assert looked == ["tone.yaml"]


@pytest.mark.parametrize("name", [".tone.yaml.Xy12", "a.yaml.tmp", "a.part", "a.PARTIAL", "a.filepart", "a.swp", "a~"])
def test_temporary_names_are_left_alone(inbox: Inbox, name: str):
    inbox.drop(name)
    assert inbox.scan_all() == []
    assert os.listdir(inbox.spool.incoming) == [name]


def test_files_dropped_while_no_daemon_ran_are_found(inbox: Inbox):
    for number in range(5):
        inbox.drop(f"job-{number}.yaml")
    inbox.restart()
    assert len(inbox.scan_all()) == 5


def test_a_restart_between_two_looks_costs_time_and_no_job(inbox: Inbox):
    inbox.drop("tone.yaml")
    inbox.scan()
    inbox.restart()
    assert inbox.scan(after=1.9) == []
    assert len(inbox.scan(after=2.0)) == 1


def test_a_flood_is_taken_in_portions(inbox: Inbox, monkeypatch):
    monkeypatch.setattr(claim, "_CLAIMS_A_SCAN", 3)
    for number in range(4):
        inbox.drop(f"{number}.yaml")
    inbox.scan()
    assert len(inbox.scan(after=2)) == 3
    assert inbox.arrivals.has_more
    assert len(inbox.scan()) == 1
    assert not inbox.arrivals.has_more


def test_the_same_file_dropped_twice_is_two_jobs(inbox: Inbox):
    inbox.drop("tone.yaml")
    first = inbox.scan_all(seconds=3)
    inbox.drop("tone.yaml")
    second = inbox.scan_all(seconds=3)
    assert len({job.job for job in first + second}) == 2


COPIES: dict[str, Callable[[str, str], list[str]]] = {
    "cp": lambda source, target: ["cp", "--", source, target],
    "mv": lambda source, target: ["mv", "--", source, target],
    "rsync": lambda source, target: ["rsync", source, target],
    "rsync in place": lambda source, target: ["rsync", "--inplace", source, target],
}


@pytest.mark.parametrize("way", COPIES)
def test_every_way_to_copy_a_file_makes_one_whole_job(inbox: Inbox, tmp_path: Path, way: str):
    command = COPIES[way](str(tmp_path / "tone.yaml"), f"{inbox.spool.incoming}/")
    require(subprocess.run(["which", command[0]], capture_output=True).returncode == 0, f"{command[0]} is missing")
    (tmp_path / "tone.yaml").write_text(SOUND)
    copying = subprocess.Popen(command)
    claimed = []
    while copying.poll() is None:
        claimed += inbox.scan(after=0.1)
    claimed += inbox.scan_all(seconds=10)
    assert copying.returncode == 0
    assert [job.dropped.read_text() for job in claimed] == [SOUND]


# Folders


def test_a_folder_that_rests_for_a_minute_is_claimed_whole(inbox: Inbox):
    inbox.drop_folder("tone")
    assert inbox.scan_all(seconds=59) == []
    [job] = inbox.scan_all(seconds=2)
    assert (job.dropped / "data/chats.jsonl").read_text() == "{}\n"
    assert dropped_folder(job) == job.dropped
    assert os.listdir(inbox.spool.incoming) == []


def test_a_folder_that_holds_ready_is_claimed_at_once(inbox: Inbox):
    (inbox.drop_folder("tone") / "READY").touch()
    assert len(inbox.scan()) == 1


def test_a_folder_that_grows_anywhere_in_its_tree_is_waited_for(inbox: Inbox):
    path = inbox.drop_folder("tone")
    for row in range(5):
        assert inbox.scan_all(seconds=50) == []
        with (path / "data/chats.jsonl").open("a") as file:
            file.write(f"{row}\n")
    [job] = inbox.scan_all(seconds=61)
    assert len((job.dropped / "data/chats.jsonl").read_text().splitlines()) == 6


def test_a_folder_copied_while_the_daemon_looks_is_claimed_once_and_whole(inbox: Inbox, tmp_path: Path):
    source = tmp_path / "tone"
    (source / "data").mkdir(parents=True)
    (source / "job.yaml").write_text(SOUND)
    for number in range(300):
        (source / f"data/{number}").write_bytes(b"x" * 20_000)
    copying = subprocess.Popen(["cp", "-r", source, inbox.spool.incoming])
    claimed = []
    while copying.poll() is None:
        claimed += inbox.scan(after=1.0)
    claimed += inbox.scan_all()
    assert [sum(path.stat().st_size for path in (job.dropped / "data").iterdir()) for job in claimed] == [6_000_000]


def test_a_folder_of_another_user_is_renamed_where_it_stands(public_path: Path):
    inbox = an_inbox_of(public_path, 65534)
    path = inbox.drop_folder("tone")
    for inside in (path, *path.rglob("*")):
        os.chown(inside, 1234, 1234)
    with become(65534):
        [job] = inbox.scan_all()
        assert dropped_folder(job) == job.dropped
        assert job.read_claim().uid == 1234
        copy_spec(job)
        moved = inbox.spool.move(job, Phase.ACTIVE)
        assert (dropped_folder(moved) or Path()).joinpath("data/chats.jsonl").read_text() == "{}\n"
    assert os.listdir(inbox.spool.incoming) == [f".{job.job}"]
    assert moved.read_spec_text() == SOUND


# What can never be a job


def a_link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def a_fifo(path: Path) -> None:
    os.mkfifo(path)


def a_folder_without_a_job_file(path: Path) -> None:
    path.mkdir()
    (path / "notes").write_text("x")


def a_folder_with_two_job_files(path: Path) -> None:
    path.mkdir()
    (path / "job.yaml").write_text(SOUND)
    (path / "job.json").write_text("{}")


def a_folder_with_a_linked_job_file(path: Path) -> None:
    path.mkdir()
    (path / "job.yaml").symlink_to("/etc/passwd")


def a_device(path: Path) -> None:
    require(os.geteuid() == 0, "only root can make a device")
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))


def a_second_name_of_a_file(path: Path) -> None:
    (path.parent.parent / "secret").write_text(SOUND)
    os.link(path.parent.parent / "secret", path)


def content(what: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(what) and None


REFUSED: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "a link": ("a.yaml", a_link, "a.yaml is a symbolic link"),
    "a fifo": ("a.yaml", a_fifo, "a.yaml is not a regular file"),
    "a folder without a job file": ("a", a_folder_without_a_job_file, "a is a folder without a job.yaml"),
    "two job files": ("a", a_folder_with_two_job_files, "a holds several job files: job.json, job.yaml"),
    "a folder whose job file is a link": ("a", a_folder_with_a_linked_job_file, "a/job.yaml is a symbolic link"),
    "a second name": ("a.yaml", a_second_name_of_a_file, "a.yaml has 2 names (hard links)"),
    "ten megabytes": ("a.yaml", content(b"x: y\n" * 2_000_000), "a.yaml is 10,000,000 bytes; a job file is at most"),
    "an empty file": ("a.yaml", content(b""), "a.yaml is empty"),
    "binary junk": ("a.yaml", content(b"\x80\x04junk"), "a.yaml is not text in UTF-8 (byte 0 is 0x80)"),
    "zero bytes": ("a.yaml", content(b"ab\0"), "a.yaml is not a text file (byte 2 is zero)"),
    "another suffix": ("a.txt", content(SOUND.encode()), "a.txt is not named like a job file"),
    "a device": ("a.yaml", a_device, "a.yaml is not a regular file"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_can_never_be_a_job_gets_one_clear_refusal_and_is_kept_with_it(inbox: Inbox, what: str):
    name, drop, said = REFUSED[what]
    drop(inbox.spool.incoming / name)
    before = os.lstat(inbox.spool.incoming / name)
    inbox.drop("good.yaml")
    jobs = {(job.read_claim().name): job for job in inbox.scan_all()}
    assert set(jobs) == {name, "good.yaml"}
    assert refusal_of(jobs[name]).startswith(said)
    assert jobs[name].read_claim().refusal.hint
    assert os.path.samestat(before, os.lstat(jobs[name].dropped))
    assert jobs["good.yaml"].read_claim().refusal is None
    assert os.listdir(inbox.spool.incoming) == []


def test_a_socket_is_refused(tmp_path: Path, monkeypatch):
    inbox = Inbox(tmp_path)
    monkeypatch.chdir(inbox.spool.incoming)  # The path of a socket is at most 107 bytes long.
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("a.yaml")
        [job] = inbox.scan_all()
    assert refusal_of(job) == "a.yaml is not a regular file"


def test_an_unreadable_file_is_refused_with_the_command_that_mends_it(public_path: Path):
    inbox = an_inbox_of(public_path, 65534)
    path = inbox.drop("a.yaml")
    path.chmod(0o600)
    with become(65534):
        [job] = inbox.scan_all()
        assert refusal_of(job) == "a.yaml cannot be read by the service's user"
        assert "chmod" in job.read_claim().refusal.hint


def test_an_unreadable_folder_is_refused(public_path: Path):
    inbox = an_inbox_of(public_path, 65534)
    inbox.drop_folder("a").chmod(0o700)
    with become(65534):
        [job] = inbox.scan_all()
        assert refusal_of(job) == "a cannot be read by the service's user"


def test_a_refused_link_is_never_followed_later_either(inbox: Inbox, tmp_path: Path):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/job.yaml").write_text(SOUND)
    (inbox.spool.incoming / "a").symlink_to(tmp_path / "secret")
    [job] = inbox.scan_all()
    assert dropped_folder(job) is None
    assert not spec_changed(job)
    with pytest.raises(Untrustworthy):
        copy_spec(job)


# Names


@pytest.mark.parametrize(
    "name",
    [
        b"with space.yaml",
        b"'single' \"double\" `back` $(touch pwned).yaml",
        "emoji 😀.yaml".encode(),
        b"-rf.yaml",
        b"new\nline.yaml",
        b"invalid \xff\xfe utf-8.yaml",
        b"n" * 250 + b".yaml",
        b"back\\slash;semi&amp|pipe*.yaml",
        "NFD e\u0301.yaml".encode(),
        b"%s%n{}.YAML",
    ],
)
def test_any_name_is_claimed_and_told_back(inbox: Inbox, name: bytes):
    (inbox.spool.incoming / os.fsdecode(name)).write_text(SOUND)
    [job] = inbox.scan_all(seconds=5)
    assert job.read_claim().name == name.decode(errors="replace")
    assert job.read_claim().refusal is None
    assert job.path.name.isascii()
    assert os.listdir(inbox.spool.incoming) == []


def test_names_that_differ_in_one_undecodable_byte_are_two_jobs(inbox: Inbox):
    for name in (b"a\xff.yaml", b"a\xfe.yaml"):
        (inbox.spool.incoming / os.fsdecode(name)).write_text(SOUND)
    assert len(inbox.scan_all(seconds=5)) == 2


# Crashes and trouble


class Crash(BaseException):
    """The daemon dies here."""


STEPS = ("mkdir", "chmod", "write_record", "sync_directory", "rename_durably", "after rename_durably")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_crash_before_any_step_of_a_claim_is_repaired_by_the_next_daemon(inbox: Inbox, monkeypatch, step, kind):
    inbox.drop("tone.yaml") if kind == "file" else (inbox.drop_folder("tone") / "READY").touch()
    inbox.scan() if kind == "file" else None
    with monkeypatch.context() as patch:
        crash_at(patch, step)
        with pytest.raises(Crash):
            inbox.scan(after=2)
    inbox.restart()
    claimed = inbox.scan_all(seconds=5)
    assert len(claimed) == (0 if step.startswith("after") else 1)
    [job] = inbox.spool.jobs()
    assert job.read_claim() is not None
    assert job.dropped.exists()
    assert os.listdir(inbox.spool.incoming) == []


def test_a_crash_after_a_folder_was_renamed_where_it_stands_is_repaired(public_path: Path, monkeypatch):
    inbox = an_inbox_of(public_path, 65534)
    os.chown(inbox.drop_folder("tone"), 1234, 1234)
    with become(65534):
        with monkeypatch.context() as patch:
            patch.setattr(claim, "_link_in_place", lambda _job: crash())
            with pytest.raises(Crash):
                inbox.scan_all()
        inbox.restart()
        assert inbox.scan_all(seconds=5) == []
        [job] = inbox.spool.jobs()
        assert dropped_folder(job) == job.dropped
        assert (job.dropped / "job.yaml").read_text() == SOUND
        assert in_place(job).is_dir()


def test_a_job_that_lost_its_drop_is_not_taken_for_an_empty_claim(inbox: Inbox):
    inbox.drop("tone.yaml")
    [job] = inbox.scan_all(seconds=3)
    copy_spec(job)
    job.dropped.unlink()
    inbox.restart()
    inbox.scan()
    assert job.read_spec_text() == SOUND


def test_a_full_disk_leaves_drops_where_they_are_until_there_is_room(inbox: Inbox, monkeypatch):
    inbox.drop("tone.yaml")
    with monkeypatch.context() as patch:
        patch.setattr(claim, "write_record", lambda *_: no_space())
        assert inbox.scan_all(seconds=100) == []
    assert os.listdir(inbox.spool.incoming) == ["tone.yaml"]
    assert inbox.spool.jobs() == []
    assert len(inbox.scan_all(seconds=31)) == 1


def test_one_drop_that_cannot_be_claimed_does_not_hold_up_the_others(inbox: Inbox):
    with a_small_disk(inbox.spool.incoming / "a"):  # What is mounted there cannot be moved away.
        inbox.drop("b.yaml")
        assert [job.read_claim().name for job in inbox.scan_all()] == ["b.yaml"]
        assert [job.read_claim().name for job in inbox.spool.jobs()] == ["b.yaml"]


def test_a_drop_that_is_taken_back_leaves_no_job(inbox: Inbox):
    path = inbox.drop("tone.yaml")
    inbox.scan()
    path.unlink()
    assert inbox.scan_all() == []
    assert inbox.spool.jobs() == []


# The copy and the receipt


def test_the_copy_of_a_spec_is_renewed_when_the_drop_changes(inbox: Inbox):
    inbox.drop("tone.yaml")
    [job] = inbox.scan_all(seconds=3)
    copy_spec(job)
    assert not spec_changed(job)
    job.dropped.write_text(SOUND + "seed: 7\n")
    assert spec_changed(job)
    copy_spec(job)
    assert job.read_spec_text() == SOUND + "seed: 7\n"
    job.dropped.unlink()
    assert not spec_changed(job)


@pytest.mark.parametrize("job_file", ["job.yaml", "job.yml", "job.json"])
def test_the_spec_of_a_folder_is_its_job_file(inbox: Inbox, job_file: str):
    (inbox.drop_folder("tone", '{"a": 1}', job_file) / "READY").touch()
    [job] = inbox.scan()
    copy_spec(job)
    assert job.read_spec_text() == '{"a": 1}'


def test_a_receipt_tells_the_submitter_what_was_taken(inbox: Inbox):
    inbox.drop("tone.yaml")
    [job] = inbox.scan_all(seconds=3)
    copy_spec(job)
    write_receipt(inbox.spool, job, position=4)
    path = inbox.spool.receipts / f"{job.job}.json"
    receipt = Receipt.model_validate_json(path.read_text())
    assert (receipt.name, receipt.position, receipt.refusal) == ("tone.yaml", 4, None)
    assert receipt.sha256 == subprocess.check_output(["sha256sum", job.spec_file], text=True).split()[0]
    assert stat.S_IMODE(path.stat().st_mode) & 0o040


def test_the_receipt_of_a_refused_drop_says_why(inbox: Inbox):
    a_fifo(inbox.spool.incoming / "a.yaml")
    [job] = inbox.scan_all()
    write_receipt(inbox.spool, job)
    receipt = Receipt.model_validate_json((inbox.spool.receipts / f"{job.job}.json").read_text())
    assert receipt.refusal is not None
    assert receipt.sha256 is None


def an_inbox_of(parent: Path, uid: int) -> Inbox:
    """An inbox whose daemon is not root: whoever scans must `become` that user."""
    inbox = Inbox(parent)
    for path in (inbox.spool.path, *inbox.spool.path.rglob("*")):
        os.chown(path, uid, uid)
    return inbox


def crash() -> None:
    raise Crash


def no_space() -> None:
    raise OSError(28, "No space left on device")


def crash_at(patch: pytest.MonkeyPatch, step: str) -> None:
    match step:
        case "mkdir":
            patch.setattr(Path, "mkdir", lambda *_args, **_kwargs: crash())
        case "chmod":
            patch.setattr(os, "chmod", lambda *_: crash())
        case "after rename_durably":
            real = claim.rename_durably
            patch.setattr(claim, "rename_durably", lambda *paths: (real(*paths), crash()))
        case _:
            patch.setattr(claim, step, lambda *_: crash())


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Inodes whose content is on disk by now, as far as this process has seen to it."""
    inodes: set[int] = set()
    really = os.fsync

    def fsync(descriptor: int) -> None:
        inodes.add(os.fstat(descriptor).st_ino)
        really(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return inodes


def test_a_claimed_file_is_on_disk_whoever_wrote_it_and_synced_nothing(inbox, synced):
    dropped = inbox.drop("job.yaml").stat().st_ino
    inbox.scan_all()
    assert dropped in synced


def test_all_of_a_claimed_folder_is_on_disk(inbox, synced):
    folder = inbox.drop_folder("night")
    inodes = {path.stat().st_ino for path in [folder, *folder.rglob("*")]}
    inbox.scan_all()
    assert inodes <= synced
