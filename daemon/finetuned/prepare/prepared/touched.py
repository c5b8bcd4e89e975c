"""touched.jsonl: every row that was dropped or cut, and why, one a line; and what is told of them in the facts."""

import json
from pathlib import Path
from types import TracebackType

from finetuned.core.plan import RowNote

_MOST_NOTES = 1000


class TouchedRows:
    """Writes as rows come, in flat memory; keeps the first thousand."""

    def __init__(self, path: Path):
        self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115
        self._first: list[RowNote] = []
        self._count = 0

    def note(self, place: str, what: str) -> None:
        self._count += 1
        self._file.write(json.dumps({"place": place, "what": what}, ensure_ascii=False) + "\n")
        if len(self._first) < _MOST_NOTES:
            self._first.append(RowNote(place=place, what=what))

    def first(self) -> tuple[RowNote, ...]:
        """The first notes, and how many more there are."""
        if (more := self._count - len(self._first)) == 0:
            return tuple(self._first)
        return (*self._first, RowNote(place="…", what=f"and {more:,} more rows, all listed in touched.jsonl"))

    def __enter__(self) -> "TouchedRows":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()
