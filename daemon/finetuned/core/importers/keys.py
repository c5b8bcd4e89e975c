"""The keys of one mapping of a foreign file, read as the tools read them: YAML 1.1's truths, numbers in any form."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from finetuned.core.importers.ledger import Found, Ledger
from finetuned.core.jobfile import text
from finetuned.core.jobfile.text import Scalar
from finetuned.core.jobfile.values import found as shown_node
from finetuned.core.jobfile.values import number

T = TypeVar("T")
_TRUE = {"true", "yes", "on", "y"}
_FALSE = {"false", "no", "off", "n"}
_LARGEST_COUNT = 10**12
"""More than any run has steps, rows or tokens; products of two such are still finite as floats."""


@dataclass(frozen=True)
class Given(Generic[T]):
    """What one key says."""

    found: Found
    value: T


def as_number(given: Given[str], ledger: Ledger) -> Given[int | float] | None:
    """A finite number; None for what was refused."""
    value = number(given.value)
    if value is None:
        _refuse_kind(given.found, "a number", ledger)
        return None
    return Given(given.found, value)


def as_whole(given: Given[str], ledger: Ledger, least: int = -_LARGEST_COUNT) -> Given[int] | None:
    """A whole number from `least`, in whatever form (8, 8.0, 1e3); None for what was refused: inf, nan, 1.5, true."""
    value = number(given.value)
    if value is None or not least <= value <= _LARGEST_COUNT or value != int(value):
        expected = "a whole number" if least < 0 else f"a whole number from {least}"
        _refuse_kind(given.found, expected, ledger)
        return None
    return Given(given.found, int(value))


def _refuse_kind(found: Found, expected: str, ledger: Ledger) -> None:
    ledger.refuse(found, f"is {shown_node(found.node)}; expected {expected}")


class Keys:
    """A mapping's keys. A key given twice is refused; what is not of the kind that was asked for is refused, too."""

    def __init__(self, tree: text.Mapping, ledger: Ledger, path: str = "", file: str = ""):
        self.ledger = ledger
        self.all: dict[str, Found] = {}
        self.path = path
        self._file = file
        for entry in tree.entries:
            found = Found(entry.line, path + entry.key, entry.value, file)
            if entry.key in self.all:
                ledger.refuse(found, f"is given twice, first in line {self.all[entry.key].line}", "keep one of them")
            else:
                self.all[entry.key] = found

    @classmethod
    def empty(cls, ledger: Ledger) -> "Keys":
        return cls(text.Mapping(0, ()), ledger)

    def get(self, key: str) -> Found | None:
        """The key if it says anything; one that is empty counts as absent."""
        found = self.all.get(key)
        return None if found is None or found.is_empty else found

    def present(self, keys: Iterable[str]) -> list[Found]:
        return [found for key in keys if (found := self.get(key))]

    def text(self, key: str) -> Given[str] | None:
        found = self.get(key)
        if found is None or isinstance(found.node, Scalar):
            return Given(found, found.node.text) if found and isinstance(found.node, Scalar) else None
        self._wrong(found, "text")
        return None

    def word(self, key: str) -> Given[str] | None:
        """Text in lower case: a name of something that the tool has."""
        given = self.text(key)
        return Given(given.found, given.value.strip().casefold()) if given else None

    def truth(self, key: str) -> Given[bool] | None:
        given = self.text(key)
        if given is None:
            return None
        word = given.value.casefold()
        if word in _TRUE | _FALSE:
            return Given(given.found, word in _TRUE)
        self._wrong(given.found, "true or false")
        return None

    def is_true(self, key: str) -> bool:
        given = self.truth(key)
        return given is not None and given.value

    def number(self, key: str) -> Given[int | float] | None:
        given = self.text(key)
        return as_number(given, self.ledger) if given else None

    def whole(self, key: str) -> Given[int] | None:
        given = self.text(key)
        return as_whole(given, self.ledger) if given else None

    def count(self, key: str) -> Given[int] | None:
        """A whole number from 1."""
        given = self.text(key)
        return as_whole(given, self.ledger, least=1) if given else None

    def words(self, key: str, *, split_commas: bool = False) -> Given[tuple[str, ...]] | None:
        """A list of words, or one of them alone; `split_commas`: one text may hold several."""
        if (found := self.get(key)) is None:
            return None
        match found.node:
            case Scalar(text=written):
                parts = written.split(",") if split_commas else [written]
                return Given(found, tuple(part.strip() for part in parts if part.strip()))
            case text.List(items=items) if all(isinstance(item, Scalar) and not item.is_empty for item in items):
                return Given(found, tuple(item.text for item in items if isinstance(item, Scalar)))
        self._wrong(found, "a list of words")
        return None

    def inner(self, key: str) -> "Keys | None":
        """A mapping inside this one."""
        if (found := self.get(key)) is None:
            return None
        if isinstance(found.node, text.Mapping):
            return Keys(found.node, self.ledger, f"{found.key}.", self._file)
        self._wrong(found, "a mapping")
        return None

    def records(self, key: str) -> "list[Keys]":
        """A list of mappings."""
        if (found := self.get(key)) is None:
            return []
        if not isinstance(found.node, text.List):
            self._wrong(found, "a list of mappings")
            return []
        records: list[Keys] = []
        for position, item in enumerate(found.node.items):
            name = f"{found.key}[{position}]"
            if isinstance(item, text.Mapping):
                records.append(Keys(item, self.ledger, f"{name}.", self._file))
            else:
                self._wrong(Found(item.line, name, item, self._file), "a mapping")
        return records

    def _wrong(self, found: Found, expected: str) -> None:
        _refuse_kind(found, expected, self.ledger)
