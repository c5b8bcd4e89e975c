"""Event files: what is appended is read, what was torn is cut, and an ending always finds room."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from finetuned.core.events import Finished, Noticed, Started
from finetuned.host.journal import HistoryReader, Journal, JournalReader, read_events
from spools import a_small_disk, fill

NOW = datetime(2026, 11, 30, 22, 15, tzinfo=UTC)
STARTED = Started(time=NOW, launch=1, attempt=1, pid=1, boot_id="b")


def noticed(text: str) -> Noticed:
    return Noticed(time=NOW, text=text)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events" / "train.jsonl"


def test_events_are_read_as_they_were_written(path: Path):
    written = [STARTED, noticed("ünïcode \n and a newline"), Finished(time=NOW, step=7)]
    journal = Journal(path)
    for event in written:
        journal.append(event)
    assert read_events(path) == written


def test_a_torn_last_line_is_not_read_and_is_cut_by_the_next_attempt(path: Path):
    Journal(path).append(STARTED)
    with path.open("ab") as file:
        file.write(b'{"event":"noticed","te')
    assert read_events(path) == [STARTED]
    Journal(path).append(noticed("after"))
    assert read_events(path) == [STARTED, noticed("after")]


def test_a_torn_line_longer_than_any_buffer_is_cut_too(path: Path):
    Journal(path).append(STARTED)
    with path.open("ab") as file:
        file.write(b"x" * 200_000)
    Journal(path)
    assert read_events(path) == [STARTED]


def test_a_file_of_nothing_but_a_torn_line_becomes_empty(path: Path):
    path.parent.mkdir()
    path.write_bytes(b"x" * 70_000)
    Journal(path)
    assert path.read_bytes() == b""


def test_a_damaged_line_and_an_event_of_a_newer_release_are_skipped(path: Path):
    journal = Journal(path)
    journal.append(STARTED)
    with path.open("ab") as file:
        file.write(b'garbage\n[]\n"x"\n{"event":"teleported","time":"2026-11-30T22:15:00Z"}\n\xff\xfe\n')
    journal.append(noticed("after"))
    assert read_events(path) == [STARTED, noticed("after")]


def test_a_reader_gets_only_what_was_added(path: Path):
    reader = JournalReader(path)
    assert reader.read_new() == ([], False)
    journal = Journal(path)
    journal.append(STARTED)
    assert reader.read_new() == ([STARTED], True)
    assert reader.read_new() == ([], False)
    journal.append(noticed("more"))
    assert reader.read_new() == ([noticed("more")], False)


def test_a_reader_starts_over_when_the_file_was_replaced(path: Path):
    reader = JournalReader(path)
    Journal(path).append(STARTED)
    reader.read_new()
    path.rename(path.with_name("away"))
    Journal(path).append(noticed("another file"))
    assert reader.read_new() == ([noticed("another file")], True)
    path.unlink()
    assert reader.read_new() == ([], True)


def test_a_history_is_the_same_read_at_once_or_piece_by_piece(path: Path):
    journal, follower = Journal(path), HistoryReader(path)
    for event in (STARTED, noticed("a"), noticed("b"), Finished(time=NOW, step=3)):
        journal.append(event)
        followed = follower.read()
    assert followed == HistoryReader(path).read()
    assert followed.attempts[0].ending == Finished(time=NOW, step=3)
    assert followed.progress.notices == ("a", "b")


def test_an_ending_gives_back_the_room_that_was_kept_for_it(path: Path):
    journal = Journal(path)
    journal.append(STARTED)
    assert path.stat().st_blocks * 512 >= 256 << 10
    journal.append(Finished(time=NOW))
    assert path.stat().st_blocks * 512 <= 8192


def test_an_ending_is_written_on_a_disk_that_has_filled_up(tmp_path: Path):
    with a_small_disk(tmp_path / "disk", "2m") as disk:
        path = disk / "events" / "train.jsonl"
        journal = Journal(path)
        journal.append(STARTED)
        fill(disk)
        with pytest.raises(OSError, match="no space left"):
            append_for_ever(journal)
        journal.append(Finished(time=NOW))
        written = read_events(path)
        assert written[-1] == Finished(time=NOW)
        assert set(written[1:-1]) <= {noticed("x" * 1000)}


def append_for_ever(journal: Journal) -> None:
    while True:
        journal.append(noticed("x" * 1000))
