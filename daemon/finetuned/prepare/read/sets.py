"""A set of rows: looked through once (its files hashed, its format seen), then read as often as needed."""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetuned.core.problems import Problem, StageFailed
from finetuned.core.spec import Dataset
from finetuned.host.data.container import COLUMNAR, Container
from finetuned.host.data.files import SetFile, files_of
from finetuned.host.data.jsontext import Malformed
from finetuned.host.data.records import Record, records
from finetuned.host.data.rowkind import RowKind, check_header, columns_used, kind_of_rows
from finetuned.host.paths import Unusable
from finetuned.prepare.read.columnar import columnar_records, columnar_rows
from finetuned.prepare.read.columns import Columns
from finetuned.prepare.read.content import Conversation, Row, digest_of
from finetuned.prepare.read.formats import READERS
from finetuned.prepare.read.formats.prompt_completion import is_chat
from finetuned.prepare.read.unpacked import see_inside, unpacked, unpacked_whole

_CHUNK_BYTES = 4 << 20
_CHATS = ("chat", "sharegpt", "alpaca")


@dataclass(frozen=True)
class DataFile:
    """A file of rows as it was when it was looked through."""

    shown: str
    """The path as the job file has it: the file part of every file:line."""
    path: Path
    container: Container
    sha256: str
    stamp: tuple[int, ...]
    """Inode, size and times: what changes when the file does."""
    rows: int | None
    """About how many, where that is known without reading them."""


@dataclass(frozen=True)
class RowSet:
    """One entry of `datasets`, looked through."""

    dataset: Dataset
    files: tuple[DataFile, ...]
    kind: RowKind
    are_chats: bool
    start: int
    stop: int | None
    """The part of its rows that `split` asks for: from `start` to before `stop`, None: to the end."""
    notices: tuple[str, ...] = ()

    @property
    def rows(self) -> int | None:
        """About how many, where that is known."""
        known = [file.rows for file in self.files if file.rows is not None]
        if len(known) < len(self.files):
            return None
        return max(0, min(sum(known), sum(known) if self.stop is None else self.stop) - self.start)

    @property
    def key(self) -> list[object]:
        """All of it that shapes the rows."""
        dataset = self.dataset
        files = [[file.shown, file.container.kind, file.sha256] for file in self.files]
        return [files, self.kind, self.are_chats, dataset.columns, self.start, self.stop, dataset.weight]


def look_through(
    dataset: Dataset, folder: Path | None, prefers: tuple[str, ...], on_bytes: Callable[[int], None] | None
) -> RowSet:
    """Hash the files of a set and see what its rows are; `on_bytes` is told of every few MB read.

    Without it nothing is hashed or counted, and a part whose place depends on the count is taken from the beginning.

    Raises Unusable, and StageFailed for files that are damaged or change meanwhile.
    """
    found = files_of(dataset, folder, prefers)
    files = tuple(_look_through_file(file, on_bytes) for file in found.files)
    first = files[0]
    record = next(_records(first, list), None)
    if record is None:
        raise Unusable(f"{first.shown} holds no rows")
    row = record.value
    if isinstance(row, Malformed):
        raise Unusable(f"{first.shown}{record.where} {row}", row.hint)
    kind = kind_of_rows(dataset, row, first.shown)
    if first.container.kind in ("csv", *COLUMNAR):
        check_header(dataset, kind, row, first.shown)
    split = found.split
    needs_count = split.needs_count and on_bytes is not None
    count = sum(1 for file in files for _ in _records(file, list)) if needs_count else None
    start, stop = (0, None) if split.needs_count and count is None else split.span(count)
    return RowSet(dataset, files, kind, _are_chats(kind, dataset, row), start, stop, found.notices)


def read_rows(rows: RowSet) -> Iterator[Row | Problem]:
    """The rows of a set in order, a Problem in place of each that cannot be used.

    Raises StageFailed: with retry when a file is no longer what `look_through` saw, without when one is damaged.
    """
    columns = Columns(rows.kind, rows.dataset.columns)
    number = 0
    for file in rows.files:
        for record in _unchanged_records(file, lambda names: columns_used(rows.kind, rows.dataset.columns, names)):
            if rows.stop is not None and number >= rows.stop:
                break
            number += 1
            if number > rows.start:
                yield _row(f"{file.shown}{record.where}", record, rows, columns)
    columns.require_seen(rows.dataset.path)


def _row(place: str, record: Record, rows: RowSet, columns: Columns) -> Row | Problem:
    try:
        if isinstance(record.value, Malformed):
            raise record.value
        content = READERS[rows.kind](columns.rename(record.value))
        if isinstance(content, Conversation) != rows.are_chats:
            kinds = ("text", "messages") if rows.are_chats else ("messages", "text")
            raise Malformed(f"holds {kinds[0]}, and the first row of the set {kinds[1]}")
        return Row(place, content, digest_of(content))
    except Malformed as error:
        return Problem(place=place, what=str(error), hint=error.hint)


def _unchanged_records(file: DataFile, choose: Callable[[Iterable[str]], list[str]]) -> Iterator[Record]:
    try:
        yield from _records(file, choose)
    finally:
        # A file that changes under the reader looks damaged, or has odd rows: this is what is wrong with it then.
        _require_unchanged(file)


def _records(file: DataFile, choose: Callable[[Iterable[str]], list[str]]) -> Iterator[Record]:
    container = file.container
    assert container.kind is not None
    if container.kind in COLUMNAR:
        is_read_once = container.kind == "arrow_stream"
        opened = (unpacked if is_read_once else unpacked_whole)(file.shown, file.path, container.compression)
        with opened as stream:
            yield from columnar_records(container.kind, stream, choose)
        return
    with unpacked(file.shown, file.path, container.compression) as stream:
        yield from records(file.path, container.kind, stream)


def _look_through_file(file: SetFile, on_bytes: Callable[[int], None] | None) -> DataFile:
    container = see_inside(file.shown, file.path)
    digest = hashlib.sha256()
    lines, last = 0, b"\n"
    with open(file.path, "rb") as opened:
        stamp = _stamp(os.fstat(opened.fileno()))
        while on_bytes is not None and (chunk := opened.read(_CHUNK_BYTES)):
            digest.update(chunk)
            lines += chunk.count(b"\n")
            last = chunk[-1:]
            on_bytes(len(chunk))
    found = DataFile(file.shown, file.path, container, digest.hexdigest(), stamp, None)
    _require_unchanged(found)
    if container.compression != "none" or on_bytes is None:
        return found
    if container.kind in ("jsonl", "text"):
        return _with_rows(found, lines + (last != b"\n"))
    if container.kind == "parquet":
        with unpacked_whole(file.shown, file.path, "none") as opened:
            return _with_rows(found, columnar_rows("parquet", opened))
    return found


def _with_rows(file: DataFile, rows: int | None) -> DataFile:
    return DataFile(file.shown, file.path, file.container, file.sha256, file.stamp, rows)


def _require_unchanged(file: DataFile) -> None:
    try:
        found = os.stat(file.path)
    except OSError as error:
        raise StageFailed(f"{file.shown} went away while it was being read: {error.strerror}", retry=True) from error
    if _stamp(found) != file.stamp:
        raise StageFailed(
            f"{file.shown} was changed while it was being read (now {found.st_size:,} bytes)",
            retry=True,
            hint="leave data files alone until the job is prepared",
        )


def _stamp(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _are_chats(kind: RowKind, dataset: Dataset, first: dict[str, Any]) -> bool:
    if kind != "prompt_completion":
        return kind in _CHATS
    try:
        return is_chat(Columns(kind, dataset.columns).rename(first))
    except Malformed:
        return False  # Told with its place when the rows are read.
