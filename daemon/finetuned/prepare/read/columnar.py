"""Records of Parquet and Arrow files, in flat memory, of the columns that are needed.

A table gives every key to every object and fills in null; inside a column such keys are dropped again, so that what a
row did not say stays unsaid.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from finetuned.host.data.container import Kind
from finetuned.host.data.jsontext import Malformed
from finetuned.host.data.records import Record

_ROWS_AT_ONCE = 128
_BUFFER_BYTES = 1 << 20
_UNREADABLE = (KeyError, ValueError, OverflowError)
"""What pyarrow raises for values that Python cannot hold: a key twice, no UTF-8, a date before year 1."""
_KEY_TWICE = re.compile(r"duplicate key was '(.*)'\)")

Choose = Callable[[Iterable[str]], list[str]]
"""Of the columns that are there those to read."""


def columnar_records(kind: Kind, file: BinaryIO, choose: Choose) -> Iterator[Record]:
    """Raises pyarrow's errors, and EOFError, for a file that is cut off or damaged."""
    number = 0
    try:
        for batch in _parquet(file, choose) if kind == "parquet" else _arrow(kind, file, choose):
            for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
                for value in _values(batch.slice(start, _ROWS_AT_ONCE)):
                    number += 1
                    yield Record(f":{number}", value)
    except Malformed as error:
        yield Record(f":{number + 1}", error)


def _values(rows: pa.RecordBatch) -> Iterator[dict[str, Any] | Malformed]:
    try:
        found = rows.to_pylist(maps_as_pydicts="strict")
    except _UNREADABLE as error:
        if rows.num_rows == 1:
            yield _malformed(error)
            return
        # One by one, to tell the row that cannot be read from those that can.
        for index in range(rows.num_rows):
            yield from _values(rows.slice(index, 1))
        return
    for row in found:
        yield {key: _said(value) for key, value in row.items()}


def _malformed(error: Exception) -> Malformed:
    if twice := _KEY_TWICE.search(str(error)):
        return Malformed(f"says the key {json.dumps(twice[1][:60])} twice in one object")
    return Malformed(f"holds a value that cannot be read: {error}")


def columnar_rows(kind: Kind, file: BinaryIO) -> int | None:
    """How many rows a file says it has."""
    return pq.ParquetFile(file).metadata.num_rows if kind == "parquet" else None


def _parquet(file: BinaryIO, choose: Choose) -> Iterator[pa.RecordBatch]:
    # Without a buffer of its own each column of a row group, often of the whole file, would be held at once.
    table = pq.ParquetFile(file, buffer_size=_BUFFER_BYTES, pre_buffer=False)
    names = _names(table.schema_arrow, choose)
    return table.iter_batches(_ROWS_AT_ONCE, columns=names, use_threads=False)


def _arrow(kind: Kind, file: BinaryIO, choose: Choose) -> Iterator[pa.RecordBatch]:
    if kind == "arrow_stream":
        yield from _arrow_stream(file, choose)
        return
    table = pa.ipc.open_file(file)
    names = _names(table.schema, choose)
    for index in range(table.num_record_batches):
        yield table.get_batch(index).select(names)


def _arrow_stream(file: BinaryIO, choose: Choose) -> Iterator[pa.RecordBatch]:
    """A stream may by its specification end without a mark, and one that was cut between two batches looks like that.

    `datasets` and pyarrow always write the mark.
    """
    bytes_seen = _Watched(file)
    stream = pa.ipc.open_stream(pa.PythonFile(bytes_seen, "r"))
    names = _names(stream.schema, choose)
    for batch in stream:
        yield batch.select(names)
    if bytes_seen.is_at_end:
        raise EOFError("the stream has no mark at its end")
    if file.read(1):
        raise EOFError("the stream has more behind the mark at its end, as when files are joined with cat")


class _Watched:
    """A file that knows whether more was asked of it than it has."""

    closed = False

    def __init__(self, file: BinaryIO):
        self._file = file
        self.is_at_end = False

    def read(self, count: int) -> bytes:
        found = self._file.read(count)
        self.is_at_end = self.is_at_end or len(found) < count
        return found

    def close(self) -> None:
        """Closed by who opened it."""


def _names(schema: pa.Schema, choose: Choose) -> list[str]:
    """The columns to read. Raises Malformed for two of one name, also inside a column."""
    if twice := _twice(list(schema), ""):
        raise Malformed(f'the table has two columns "{twice}"', "rename or drop one of them")
    return choose(schema.names) or schema.names


def _twice(fields: Iterable[pa.Field], above: str) -> str:
    names: set[str] = set()
    for field in fields:
        if field.name in names:
            return above + field.name
        names.add(field.name)
        inner = field.type
        while pa.types.is_list(inner) or pa.types.is_large_list(inner) or pa.types.is_fixed_size_list(inner):
            inner = inner.value_type
        if pa.types.is_struct(inner) and (found := _twice(list(inner), f"{above}{field.name}.")):
            return found
    return ""


def _said(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _said(each) for key, each in value.items() if each is not None}
    if isinstance(value, list) and value and isinstance(value[0], dict | list):
        return [_said(each) for each in value]
    return value
