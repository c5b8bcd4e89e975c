"""A set of rows looked at in milliseconds: are its files there and, as far as can be seen, whole; what do they hold?"""

import zlib
from pathlib import Path

from finetuned.core.spec import Dataset
from finetuned.host.data.container import Container, see_container
from finetuned.host.data.files import SetFiles, files_of
from finetuned.host.data.jsontext import Malformed
from finetuned.host.data.records import open_text, records
from finetuned.host.data.rowkind import PLAIN, RowKind, check_columns, check_header, kind_of_rows
from finetuned.host.paths import Unusable

_MOST_LOOKS = 20
"""Files of one set whose first bytes are looked at; prepare reads all."""
_ENDS = {"parquet": b"PAR1", "arrow_file": b"ARROW1", "arrow_stream": b"\xff\xff\xff\xff\0\0\0\0"}


def look_at_set(dataset: Dataset, folder: Path | None, prefers: tuple[str, ...]) -> RowKind | None:
    """The kind of rows in a set; None where only prepare can see it (Parquet, Arrow, zstd). Raises Unusable."""
    found = files_of(dataset, folder, prefers)
    try:
        return _look_at(dataset, found)
    except OSError as error:
        raise Unusable(f"{error.filename or dataset.path}: {error.strerror or error}") from error


def _look_at(dataset: Dataset, found: SetFiles) -> RowKind | None:
    containers = [see_container(file.path) for file in found.files[:_MOST_LOOKS]]
    for file, container in zip(found.files, containers, strict=False):
        _require_end(file.path, container)
    first, container = found.files[0].path, containers[0]
    if container.kind is None or container.kind in _ENDS:
        if dataset.format == "auto":
            return None
        check_columns(dataset, dataset.format)
        return dataset.format
    row = _first_row(first, container)
    kind = kind_of_rows(dataset, row, str(first))
    if container.kind == "csv":
        check_header(dataset, kind, row, str(first))
    return kind


def require_plain(kind: RowKind, shown: str) -> None:
    """Raise Unusable for rows that `method: pretrain` does not learn."""
    if kind not in PLAIN:
        what = "chats" if kind in ("chat", "sharegpt") else f"{kind} rows"
        raise Unusable(
            f"{shown} holds {what}, and method: pretrain learns plain text", "use method: sft, or `text` rows"
        )


def _first_row(path: Path, container: Container) -> dict[str, object]:
    assert container.kind is not None
    try:
        with open_text(path, container.compression == "gzip") as file:
            record = next(records(path, container.kind, file), None)
    except (EOFError, zlib.error) as error:
        raise Unusable(f"{path} is a gzip file that is cut off or damaged", "copy or download it again") from error
    if record is None:
        raise Unusable(f"{path} holds no rows")
    if isinstance(record.value, Malformed):
        raise Unusable(f"{path}{record.where} {record.value}", record.value.hint)
    return record.value


def _require_end(path: Path, container: Container) -> None:
    if container.compression != "none" or container.kind not in _ENDS:
        return
    mark = _ENDS[container.kind]
    with open(path, "rb") as file:
        file.seek(-min(len(mark), path.stat().st_size), 2)
        if file.read() != mark:
            raise Unusable(f"{path} is cut off: its end is missing", "copy or download it again")
