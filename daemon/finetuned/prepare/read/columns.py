"""Records under our names, where `columns` says that they have others."""

from collections.abc import Mapping
from typing import Any

from finetuned.core.problems import Problem, StageFailed
from finetuned.host.data.rowkind import INNER_NAMES, KEYS, RowKind
from finetuned.prepare.read.formats.values import structure

_HOLDERS = ("messages", "conversations", "prompt", "completion")
"""What holds messages."""


class Columns:
    """Renames the records of one set, and knows afterwards which of the names none of them had."""

    def __init__(self, kind: RowKind, columns: Mapping[str, str]):
        self._outer = {their: our for our, their in columns.items() if our not in INNER_NAMES}
        self._inner = {their: our for our, their in columns.items() if our in INNER_NAMES}
        self._holders = [key for key in _HOLDERS if key in KEYS[kind].needed]
        self._unseen = dict(columns)

    def rename(self, row: dict[str, Any]) -> dict[str, Any]:
        renamed = self._under_our_names(row, self._outer)
        if self._inner:
            for holder in self._holders:
                messages = structure(holder, renamed.get(holder))
                if isinstance(messages, list):
                    renamed = renamed | {holder: [self._message(message) for message in messages]}
        return renamed

    def require_seen(self, shown: str) -> None:
        """Raise StageFailed (no retry) where a name was never there: a mistyped one would lose what it stands for."""
        if not self._unseen:
            return
        raise StageFailed(
            f"columns of {shown} names what no row has",
            retry=False,
            problems=[
                Problem(place=f"columns.{our}", what=f'no row of {shown} has "{their}"')
                for our, their in self._unseen.items()
            ],
        )

    def _message(self, message: Any) -> Any:
        return self._under_our_names(message, self._inner) if isinstance(message, dict) else message

    def _under_our_names(self, row: dict[str, Any], ours: Mapping[str, str]) -> dict[str, Any]:
        if not ours:
            return row
        for their, our in ours.items():
            if their in row:
                self._unseen.pop(our, None)
        taken = {our for their, our in ours.items() if their in row}
        return {ours.get(key, key): value for key, value in row.items() if key in ours or key not in taken}
