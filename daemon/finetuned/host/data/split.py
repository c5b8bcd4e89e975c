"""Splits as Hugging Face names them for files on disk, and parts of them: `train`, `validation[10%:]`, `[:1000]`."""

import re
from dataclasses import dataclass
from pathlib import PurePath

from finetuned.host.paths import Unusable

_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_MEANING = {word: split for split, words in _WORDS.items() for word in words}
_SPLIT = re.compile(r"([\w.-]*)(?:\[\s*([^\]:]*)\s*:\s*([^\]:]*)\s*\])?")
_BOUND = re.compile(r"(-?\d+)(%?)")
_SHARD = re.compile(r"(.+)-\d{5}-of-\d{5}")


@dataclass(frozen=True)
class Bound:
    """One end of a part: a number of rows or percents, from the end if negative."""

    number: int
    is_percent: bool

    def row(self, rows: int) -> int:
        at = round(rows * self.number / 100) if self.is_percent else self.number
        return min(max(at + rows if self.number < 0 else at, 0), rows)

    @property
    def needs_count(self) -> bool:
        return self.is_percent or self.number < 0


@dataclass(frozen=True)
class Split:
    """What `split` asks for: a split by name, a part of its rows, or both."""

    name: str | None = None
    start: Bound | None = None
    stop: Bound | None = None

    @property
    def needs_count(self) -> bool:
        """Which rows are meant depends on how many there are."""
        return any(bound is not None and bound.needs_count for bound in (self.start, self.stop))

    def span(self, rows: int | None) -> tuple[int, int | None]:
        """First row and the one after the last, of `rows` (None: not counted, and not needed). None: to the end."""
        assert rows is not None or not self.needs_count
        count = 1 << 62 if rows is None else rows
        start = self.start.row(count) if self.start else 0
        return start, self.stop.row(count) if self.stop else None


def read_split(text: str | None) -> Split:
    """Raises Unusable for what is no split."""
    if text is None:
        return Split()
    found = _SPLIT.fullmatch(text.strip())
    if found is None or not text.strip():
        raise Unusable(
            f'"{text}" is not a split', "expected a name, a part, or both: train, [:1000], train[10%:90%]", "split"
        )
    name, start, stop = found.groups()
    return Split(meaning(name) if name else None, _bound(start, text), _bound(stop, text))


def meaning(name: str) -> str:
    """The split that a name stands for: train, validation, test, or itself."""
    return _MEANING.get(name.lower(), name)


def split_of(path: PurePath) -> str | None:
    """The split that a file belongs to by its path inside its set; None where no part of it says so.

    The file's name counts before its folders, and those from the nearest up.
    """
    stem = path.name.split(".")[0]
    shard = _SHARD.fullmatch(stem)
    if shard and _word_in(shard[1]):
        return meaning(shard[1])  # Such as train_sft: there may be a train_gen beside it.
    for part in (path.name, *reversed(path.parts[:-1])):
        if found := _word_in(part):
            return found
    return None


def _word_in(part: str) -> str | None:
    return next((_MEANING[word] for word in re.split(r"[^a-z]+", part.lower()) if word in _MEANING), None)


def _bound(text: str | None, whole: str) -> Bound | None:
    if not text or not text.strip():
        return None
    found = _BOUND.fullmatch(text.strip())
    if found is None or (found[2] and abs(int(found[1])) > 100):
        raise Unusable(
            f'"{whole}" is not a split: {text.strip()} is neither rows nor percents',
            "such as train[:1000] or train[10%:]",
            "split",
        )
    return Bound(int(found[1]), bool(found[2]))
