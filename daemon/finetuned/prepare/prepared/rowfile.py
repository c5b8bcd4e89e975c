"""The Arrow files of prepared rows: written in flat memory, dealt out to training and evaluation, previewed."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa

from finetuned.prepare.render.renderer import Example

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


def deal_rows(rows: Path, copies: np.ndarray, is_eval: np.ndarray, train: Path, held_out: Path) -> None:
    """Deal the rows of one file out to two, in flat memory and about in order.

    `copies`, one a row: how often it is trained on; `is_eval` is bool, one a row. No file of evaluation rows is made
    where there are none.
    """
    start = 0
    # Not mapped: the pages of the file would count as this process's memory.
    with pa.OSFile(str(rows)) as source, ExitStack() as stack:
        train_rows = stack.enter_context(_writer(train))
        eval_rows = stack.enter_context(_writer(held_out)) if is_eval.any() else None
        reader = pa.ipc.open_file(source)
        for index in range(reader.num_record_batches):
            batch = reader.get_batch(index)
            part = slice(start, start + batch.num_rows)
            start += batch.num_rows
            if eval_rows is not None:
                eval_rows.write_batch(batch.filter(pa.array(is_eval[part])))
            for times in range(int(copies[part].max(initial=0))):
                train_rows.write_batch(batch.filter(pa.array(copies[part] > times)))


def places(path: Path, chosen: np.ndarray) -> Iterator[str]:
    """The source of each row of a file that `chosen` (bool, one a row) is true of, in flat memory."""
    start = 0
    with pa.OSFile(str(path)) as source:
        reader = pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(included_fields=[2]))
        for index in range(reader.num_record_batches):
            batch = reader.get_batch(index)
            yield from batch.column(0).filter(pa.array(chosen[start : start + batch.num_rows])).to_pylist()
            start += batch.num_rows


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
