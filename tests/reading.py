"""Sets of rows looked through and read inside a test."""

from pathlib import Path

from finetuned.core.problems import Problem
from finetuned.core.spec import Dataset
from finetuned.host.data.files import TRAINING
from finetuned.prepare.read import Content, Row, RowSet, Text, look_through, read_rows


def look(path: Path | str, **fields: object) -> RowSet:
    return look_through(Dataset.model_validate({"path": str(path)} | fields), None, TRAINING, lambda _: None)


def read_set(path: Path | str, **fields: object) -> list[Row | Problem]:
    return list(read_rows(look(path, **fields)))


def contents(path: Path | str, **fields: object) -> list[Content]:
    """What the rows say; none of them may be a problem."""
    rows = read_set(path, **fields)
    assert all(isinstance(row, Row) for row in rows), rows
    return [row.content for row in rows if isinstance(row, Row)]


def texts(rows: list[Row | Problem]) -> list[str]:
    return [row.content.text for row in rows if isinstance(row, Row) and isinstance(row.content, Text)]


def places(rows: list[Row | Problem]) -> list[str]:
    """Without the folder."""
    return [row.place.rpartition("/")[2] for row in rows]
