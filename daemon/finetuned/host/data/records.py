"""Records of text files, one after another in flat memory, each with its place; a Malformed where one cannot be read.

Lines end at a newline byte and nowhere else (U+2028 inside a string is text), a byte-order mark and carriage returns
are dropped, blank lines skipped. What a record does not say stays unsaid.
"""

import csv
import gzip
import io
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from finetuned.host.data.container import Kind, bare_suffix
from finetuned.host.data.jsontext import MAX_ROW_BYTES, Malformed, parse_bytes, values

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Record:
    where: str
    """Behind the file's name: ":12", or ":1, row 7" where a line holds several."""
    value: dict[str, Any] | Malformed


def records(path: Path, kind: Kind, file: BinaryIO) -> Iterator[Record]:
    """The records of a text file; `file` gives its bytes, unpacked."""
    match kind:
        case "jsonl":
            return _jsonl(file)
        case "json":
            return _json(file)
        case "csv":
            return _csv(file, "\t" if bare_suffix(path) == ".tsv" else None)
        case "text":
            return _text(file)
        case _:
            raise AssertionError(kind)


def open_text(path: Path, is_gzip: bool) -> BinaryIO:
    return gzip.open(path) if is_gzip else open(path, "rb")  # type: ignore[return-value]


def _jsonl(file: BinaryIO) -> Iterator[Record]:
    for number, line in _lines(file):
        if isinstance(line, Malformed):
            yield Record(f":{number}", line)
            return
        try:
            yield Record(f":{number}", _object(parse_bytes(line)))
        except Malformed as error:
            yield Record(f":{number}", error)


def _json(file: BinaryIO) -> Iterator[Record]:
    last_line = 0
    for line, number, value in values(file):
        # Of rows that share a line the number tells them apart.
        where = f":{line}" if (line != last_line and number <= 1) or line > last_line else f":{line}, row {number}"
        last_line = line
        try:
            yield Record(where, value if isinstance(value, Malformed) else _object(value))
        except Malformed as error:
            yield Record(where, error)


def _text(file: BinaryIO) -> Iterator[Record]:
    """A row a line, as Hugging Face's `text` loader has it: not one a file, and not one a paragraph."""
    for number, line in _lines(file):
        if isinstance(line, Malformed):
            yield Record(f":{number}", line)
            return
        try:
            yield Record(f":{number}", {"text": line.rstrip(b"\r\n").decode()})
        except UnicodeDecodeError as error:
            what = f"is not UTF-8 at byte {error.start + 1} of the line"
            yield Record(f":{number}", Malformed(what, "iconv -t utf-8 mends it"))


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes | Malformed]]:
    for number, line in enumerate(iter(lambda: file.readline(MAX_ROW_BYTES + 1), b""), 1):
        if len(line) > MAX_ROW_BYTES:
            yield number, Malformed(f"is longer than {MAX_ROW_BYTES:,} bytes", "is this one row a line?")
            return
        plain = line.removeprefix(_BOM) if number == 1 else line
        if plain.strip():
            yield number, plain


def _csv(file: BinaryIO, delimiter: str | None) -> Iterator[Record]:
    csv.field_size_limit(MAX_ROW_BYTES)
    lines = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    try:
        first = lines.readline()
        reader = csv.reader(_chained(first, lines), delimiter=delimiter or _delimiter(first), strict=True)
        yield from _csv_rows(reader)
    except UnicodeDecodeError as error:
        hint = "iconv -f latin1 -t utf-8 mends it, if that is what it is"
        yield Record(
            ":1", Malformed(f"the file is not UTF-8: {error.reason} (byte {error.object[error.start]:#x})", hint)
        )


def _csv_rows(reader: Any) -> Iterator[Record]:
    header: list[str] | None = None
    line = 1
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield Record(f":{line}", Malformed(f"is not CSV: {error}", "is a quotation mark missing or too many?"))
            return
        if not any(cell.strip() for cell in cells):
            continue
        if header is None:
            header = [cell.strip() for cell in cells]
            if wrong := _wrong_header(header):
                yield Record(f":{line}", wrong)
                return
            continue
        if len(cells) != len(header):
            what = f"expected {len(header)} columns ({', '.join(header[:8])}), got {len(cells)}"
            yield Record(f":{line}", Malformed(what, "quote cells that hold the separator or a newline"))
            continue
        yield Record(f":{line}", dict(zip(header, cells, strict=True)))


def _wrong_header(header: list[str]) -> Malformed | None:
    if twice := [name for name, count in Counter(header).items() if count > 1 and name]:
        return Malformed(f"the header names the column {twice[0]} twice")
    # An unnamed first column is the row number that pandas writes.
    if "" in header[1:]:
        return Malformed(f"the header has no name for column {header.index('', 1) + 1}")
    return None


def _chained(first: str, rest: Iterator[str]) -> Iterator[str]:
    if first:
        yield first
    yield from rest


def _delimiter(header: str) -> str:
    """A comma, unless the header has none and semicolons or tabs instead."""
    return "," if "," in header else max(",;\t", key=header.count)


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Malformed(f"expected a JSON object, got {kind_of(value)}")
    return value


def kind_of(value: Any) -> str:
    """What a value is, for a message."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"the number {value}"[:60]
        case str():
            return 'the string "' + value[:40].replace("\n", "\\n") + '"'
        case list() | tuple():
            return f"a list of {len(value)}" if value else "an empty list"
        case dict():
            return f"an object with the keys {keys_of(value)}"
        case _:
            return f"a {type(value).__name__}"


def keys_of(row: Any) -> str:
    return ", ".join(sorted(map(str, row))[:8]) or "none"
