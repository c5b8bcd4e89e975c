"""All sets of rows that a job names, looked through; and what a person should know of what became of their rows."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from finetuned.core.plan import DataFacts
from finetuned.core.problems import Problem, StageFailed
from finetuned.core.spec import Dataset, JobSpec
from finetuned.host.data.files import EVALUATION, TRAINING, files_of
from finetuned.host.data.look import require_plain
from finetuned.host.paths import Unusable
from finetuned.host.stage import StageRun
from finetuned.prepare.progress import Progress
from finetuned.prepare.read import RowSet, look_through


@dataclass(frozen=True)
class Sets:
    train: tuple[RowSet, ...]
    held_out: tuple[RowSet, ...]

    @property
    def have_chats(self) -> bool:
        return any(rows.are_chats for rows in (*self.train, *self.held_out))


def look_through_all(spec: JobSpec, folder: Path | None, run: StageRun) -> Sets:
    """`folder` is the dropped folder. Raises StageFailed, without retry where the data cannot be used."""
    train = [_look_through(spec, "datasets", index, folder, run) for index in range(len(spec.datasets))]
    held_out = [_look_through(spec, "eval_datasets", index, folder, run) for index in range(len(spec.eval_datasets))]
    return Sets(tuple(train), tuple(held_out))


def _look_through(spec: JobSpec, field: str, index: int, folder: Path | None, run: StageRun) -> RowSet:
    prefers = TRAINING if field == "datasets" else EVALUATION
    dataset: Dataset = getattr(spec, field)[index]
    try:
        size_bytes = sum(file.path.stat().st_size for file in files_of(dataset, folder, prefers).files)
        progress = Progress(run, "reading", "bytes", size_bytes)
        rows = look_through(dataset, folder, prefers, progress.advance)
        if spec.method == "pretrain":
            require_plain(rows.kind, dataset.path)
    except Unusable as error:
        problem = Problem(place=f"{field}[{index}].{error.field}", what=str(error), hint=error.hint)
        raise StageFailed("the data cannot be used", retry=False, problems=[problem]) from error
    return rows


def data_notices(sets: Sets, data: DataFacts) -> tuple[str, ...]:
    return (*(notice for rows in (*sets.train, *sets.held_out) for notice in rows.notices), *_fates(sets, data))


def _fates(sets: Sets, data: DataFacts) -> Iterator[str]:
    limit = f"max_seq_length {data.max_seq_length:,}"
    listed = f"store/prepared/{data.prepared}/touched.jsonl lists them"
    if data.truncated_rows:
        yield f"{_rows(data.truncated_rows, 'was', 'were')} cut to {limit}; {listed}"
    if too_long := data.dropped_rows - data.rows_without_targets:
        yield f"{_rows(too_long, 'was', 'were')} dropped for being longer than {limit}; {listed}"
    if data.rows_without_targets:
        yield f"{_rows(data.rows_without_targets, 'was', 'were')} dropped for having nothing to learn; {listed}"
    if data.duplicate_rows:
        yield f"{_rows(data.duplicate_rows, 'says', 'say')} exactly what an earlier one says"
    if data.weighted_out_rows:
        yield f"{_rows(data.weighted_out_rows, 'is', 'are')} left out for the weight of their set"
    for rows in sets.held_out:
        if rows.dataset.weight != 1:
            yield f"{rows.dataset.path}: weight {rows.dataset.weight:g} has no effect on rows for evaluation"


def _rows(count: int, one: str, many: str) -> str:
    return f"1 row {one}" if count == 1 else f"{count:,} rows {many}"
