"""Prepared rows: memory-mapped Arrow files of token ids and targets, read by row number."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from finetuned.core.plan import RunPlan
from finetuned.core.problems import StageFailed

_COLUMNS = ("input_ids", "is_target", "source")


@dataclass(frozen=True)
class Example:
    """One row. `is_target[i]`: token i is learned, predicted from the tokens before it; never true of the first."""

    input_ids: np.ndarray
    """int32, one a token."""
    is_target: np.ndarray
    """bool, one a token."""

    @property
    def tokens(self) -> int:
        return len(self.input_ids)


class Rows:
    """The rows of one Arrow IPC file (file or stream format); nothing is read before it is asked for."""

    def __init__(self, path: Path):
        """Raises StageFailed where the file is missing or not what prepare writes: it will be prepared again."""
        try:
            self._table = _map_table(path)
        except (OSError, pa.ArrowInvalid) as error:
            raise StageFailed(
                f"prepared rows {path} cannot be read: {error}",
                retry=True,
            ) from error
        if missing := [name for name in _COLUMNS if name not in self._table.column_names]:
            raise StageFailed(f"prepared rows {path} lack the columns {', '.join(missing)}", retry=False)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def example(self, row: int) -> Example:
        input_ids = self._table["input_ids"][row].values.to_numpy(zero_copy_only=False)
        is_target = np.array(self._table["is_target"][row].values.to_numpy(zero_copy_only=False), dtype=bool)
        is_target[:1] = False
        return Example(input_ids, is_target)

    def source(self, row: int) -> str:
        """Where the row came from: file:line."""
        return str(self._table["source"][row].as_py())


def open_rows(folder: Path, plan: RunPlan) -> tuple[Rows, Rows | None]:
    """The plan's training rows, and its evaluation rows where it has any. Raises StageFailed (no retry)."""
    train = _counted(Rows(folder / "train.arrow"), plan.data.train_rows, folder / "train.arrow")
    if plan.data.eval_rows == 0:
        return train, None
    return train, _counted(Rows(folder / "eval.arrow"), plan.data.eval_rows, folder / "eval.arrow")


def _counted(rows: Rows, planned: int, path: Path) -> Rows:
    if len(rows) != planned:
        raise StageFailed(f"{path} holds {len(rows):,} rows and the plan says {planned:,}", retry=False)
    return rows


def _map_table(path: Path) -> pa.Table:
    source = pa.memory_map(str(path))
    try:
        return pa.ipc.open_file(source).read_all()
    except pa.ArrowInvalid:
        source.seek(0)
        return pa.ipc.open_stream(source).read_all()
