"""What became of each key of a foreign file: taken over, changed in meaning, not needed here, or refused."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from finetuned.core.jobfile import text
from finetuned.core.jobfile.findings import place, shown_name
from finetuned.core.jobfile.text import Node, Scalar
from finetuned.core.problems import Problem
from finetuned.core.record import Record


class Note(Record):
    """A key and what became of it, for people."""

    place: str
    what: str


@dataclass(frozen=True)
class Found:
    """A key of a foreign file with what stands there. `key` is its whole path, such as datasets[0].type."""

    line: int
    key: str
    node: Node
    file: str = ""
    """The file it stands in, where that is not the one that is imported."""

    @property
    def is_empty(self) -> bool:
        """Nothing, null, "", [] or {}: in these tools the same as leaving the key out."""
        match self.node:
            case Scalar(text=written):
                return self.node.is_empty or not written.strip()
            case text.List(items=items):
                return not items
            case text.Mapping(entries=entries):
                return not entries

    @property
    def place(self) -> str:
        return f"{self.file} {place(self.line, self.key)}".strip()

    @property
    def origin(self) -> str:
        """As a comment tells it."""
        return f"{shown_name(self.key)} ({self.file + ' ' if self.file else ''}line {self.line})"


@dataclass
class Ledger:
    """Collects while a file is translated; everything comes out in the order of the file."""

    _kept: list[Found] = field(default_factory=list)
    _changed: list[tuple[Found, str]] = field(default_factory=list)
    _ignored: list[tuple[Found, str]] = field(default_factory=list)
    _problems: list[tuple[float, Problem]] = field(default_factory=list)
    _mentioned: set[tuple[str, str]] = field(default_factory=set)

    def keep(self, found: Found) -> None:
        """Taken over; the job file's comment names it."""
        self._mention(found)
        self._kept.append(found)

    def change(self, found: Found, what: str) -> None:
        """Taken over, but it does not mean quite the same."""
        self._mention(found)
        self._changed.append((found, what))

    def ignore(self, found: Found, why: str) -> None:
        """Left out without loss."""
        self._mention(found)
        self._ignored.append((found, why))

    def refuse(self, found: Found, what: str, instead: str = "") -> None:
        self._mention(found)
        self._problems.append((found.line, Problem(place=found.place, what=what, hint=instead)))

    def refuse_missing(self, key: str, what: str, instead: str = "") -> None:
        """Something that the file does not say and that cannot be left open."""
        self._problems.append((float("inf"), Problem(place=key, what=what, hint=instead)))

    def mentions(self, found: Found) -> bool:
        return (found.file, found.key) in self._mentioned

    @property
    def kept(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(found.place for found in sorted(self._kept, key=_in_order)))

    @property
    def changed(self) -> tuple[Note, ...]:
        return _notes(self._changed)

    @property
    def ignored(self) -> tuple[Note, ...]:
        return _notes(self._ignored)

    @property
    def problems(self) -> tuple[Problem, ...]:
        return tuple(dict.fromkeys(problem for _, problem in sorted(self._problems, key=lambda each: each[0])))

    def _mention(self, found: Found) -> None:
        self._mentioned.add((found.file, found.key))


def _in_order(found: Found) -> tuple[str, int]:
    return found.file, found.line


def _notes(pairs: list[tuple[Found, str]]) -> tuple[Note, ...]:
    ordered = sorted(pairs, key=lambda each: _in_order(each[0]))
    return tuple(Note(place=found.place, what=what) for found, what in ordered)


def unmentioned(keys: Mapping[str, Found], ledger: Ledger) -> Iterator[Found]:
    """The outermost keys about which nothing was said yet, in themselves or in every key below them."""
    for found in keys.values():
        if ledger.mentions(found):
            continue
        below = list(_below(found))
        if below and any(_is_mentioned_below(each, ledger) for each in below):
            for each in below:
                yield from unmentioned({each.key: each}, ledger)
        else:
            yield found


def _is_mentioned_below(found: Found, ledger: Ledger) -> bool:
    return ledger.mentions(found) or any(_is_mentioned_below(each, ledger) for each in _below(found))


def _below(found: Found) -> Iterator[Found]:
    match found.node:
        case text.Mapping(entries=entries):
            for entry in entries:
                yield Found(entry.line, f"{found.key}.{entry.key}", entry.value, found.file)
        case text.List(items=items):
            for number, item in enumerate(items):
                yield Found(item.line, f"{found.key}[{number}]", item, found.file)
