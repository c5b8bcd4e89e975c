"""The Arrow files of prepared rows: written row by row in flat memory, split by a mask, read for the preview."""

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa

from finetuned.prepare.render import Example

_SCHEMA = pa.schema([("input_ids", pa.list_(pa.int32())), ("is_target", pa.list_(pa.bool_())), ("source", pa.string())])
_BATCH_TOKENS = 1 << 20


class RowWriter:
    """Appends examples to an Arrow IPC file (file format, uncompressed: it can be memory-mapped)."""

    def __init__(self, path: Path):
        self._file = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_file(self._file, _SCHEMA)
        self._waiting: list[Example] = []
        self._waiting_tokens = 0

    def add(self, example: Example) -> None:
        self._waiting.append(example)
        self._waiting_tokens += example.tokens
        if self._waiting_tokens >= _BATCH_TOKENS:
            self._flush()

    def __enter__(self) -> "RowWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self._flush()
        self._writer.close()
        self._file.close()

    def _flush(self) -> None:
        if not self._waiting:
            return
        offsets = np.cumsum([0, *(example.tokens for example in self._waiting)], dtype=np.int32)
        columns = [
            pa.ListArray.from_arrays(offsets, np.concatenate([example.input_ids for example in self._waiting])),
            pa.ListArray.from_arrays(offsets, np.concatenate([example.is_target for example in self._waiting])),
            pa.array([example.source for example in self._waiting], pa.string()),
        ]
        self._writer.write_batch(pa.record_batch(columns, schema=_SCHEMA))
        self._waiting, self._waiting_tokens = [], 0


def split_rows(rows: Path, is_eval: np.ndarray, train: Path, held_out: Path) -> None:
    """Deal the rows of one file out to two, in order; `is_eval` is bool, one a row."""
    start = 0
    with pa.memory_map(str(rows)) as source, _writer(train) as train_rows, _writer(held_out) as eval_rows:
        reader = pa.ipc.open_file(source)
        for index in range(reader.num_record_batches):
            batch = reader.get_batch(index)
            mask = is_eval[start : start + batch.num_rows]
            start += batch.num_rows
            eval_rows.write_batch(batch.filter(pa.array(mask)))
            train_rows.write_batch(batch.filter(pa.array(~mask)))


def first_rows(path: Path, count: int) -> Iterator[tuple[str, list[int], list[bool]]]:
    """source, input_ids and is_target of the first rows of a file."""
    with pa.memory_map(str(path)) as source:
        reader = pa.ipc.open_file(source)
        for index in range(reader.num_record_batches):
            batch = reader.get_batch(index).slice(0, count)
            for row in batch.to_pylist():
                yield row["source"], row["input_ids"], row["is_target"]
            count -= batch.num_rows
            if count <= 0:
                return


def _writer(path: Path) -> pa.RecordBatchFileWriter:
    return pa.ipc.new_file(str(path), _SCHEMA)
