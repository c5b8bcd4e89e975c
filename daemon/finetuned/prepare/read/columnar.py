"""Records of Parquet and Arrow files, in flat memory, of the columns that are needed.

A table gives every key to every object and fills in null; inside a column such keys are dropped again, so that what a
row did not say stays unsaid.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from finetuned.host.data.container import Kind
from finetuned.host.data.records import Record

_ROWS_AT_ONCE = 128
_BUFFER_BYTES = 1 << 20

Choose = Callable[[Iterable[str]], list[str]]
"""Of the columns that are there those to read."""


def columnar_records(kind: Kind, file: BinaryIO, choose: Choose) -> Iterator[Record]:
    batches = _parquet(file, choose) if kind == "parquet" else _arrow(kind, file, choose)
    number = 0
    for batch in batches:
        for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
            for row in batch.slice(start, _ROWS_AT_ONCE).to_pylist(maps_as_pydicts="lossy"):
                number += 1
                yield Record(f":{number}", {key: _said(value) for key, value in row.items()})


def columnar_rows(kind: Kind, file: BinaryIO) -> int | None:
    """How many rows a file says it has."""
    return pq.ParquetFile(file).metadata.num_rows if kind == "parquet" else None


def _parquet(file: BinaryIO, choose: Choose) -> Iterator[pa.RecordBatch]:
    # Without a buffer of its own each column of a row group, often of the whole file, would be held at once.
    table = pq.ParquetFile(file, buffer_size=_BUFFER_BYTES, pre_buffer=False)
    names = table.schema_arrow.names
    return table.iter_batches(_ROWS_AT_ONCE, columns=choose(names) or names, use_threads=False)


def _arrow(kind: Kind, file: BinaryIO, choose: Choose) -> Iterator[pa.RecordBatch]:
    if kind == "arrow_stream":
        stream = pa.ipc.open_stream(file)
        names = choose(stream.schema.names) or stream.schema.names
        for batch in stream:
            yield batch.select(names)
        return
    table = pa.ipc.open_file(file)
    names = choose(table.schema.names) or table.schema.names
    for index in range(table.num_record_batches):
        yield table.get_batch(index).select(names)


def _said(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _said(each) for key, each in value.items() if each is not None}
    if isinstance(value, list) and value and isinstance(value[0], dict | list):
        return [_said(each) for each in value]
    return value
