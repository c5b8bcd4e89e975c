"""What happens to rows longer than max_seq_length, and what is noted of rows that are dropped or changed."""

from array import array
from dataclasses import dataclass, field
from typing import Literal

from finetuned.core.plan import RowNote
from finetuned.core.problems import Problem, StageFailed
from finetuned.prepare.render import Example, cut

_MOST_NOTES = 1000
_MOST_PROBLEMS = 20
_DROPPED_PART = 0.01  # More than this is not a few odd rows any more but a choice that a person should make.


@dataclass
class LengthGate:
    """Lets through what fits. One for all rows of a job; `close` after the last."""

    max_seq_length: int
    strategy: Literal["drop", "truncate", "error"]
    cuts_text: bool
    """Pretraining: a long row becomes several examples instead of being over-long."""
    positions: int
    """The most that max_seq_length could be for this model."""
    notes: list[RowNote] = field(default_factory=list)
    over_long: int = 0
    _left_out: int = 0
    _too_long: list[Problem] = field(default_factory=list)
    _lengths: "array[int]" = field(default_factory=lambda: array("I"))

    def admit(self, example: Example) -> list[Example]:
        """What becomes of one row: itself, shortened, in parts, or nothing (then noted)."""
        self._lengths.append(example.tokens)
        if example.targets == 0:
            self._note(example, "dropped: nothing in it is learned (no assistant turn, weight 0, or no text)")
            return []
        if example.tokens <= self.max_seq_length:
            return [example]
        if self.cuts_text:
            return cut(example, self.max_seq_length)
        self.over_long += 1
        return self._shorten(example)

    def close(self) -> None:
        """Raise StageFailed (no retry) when too many rows were too long, or any was and that is an error."""
        if self._too_long:
            self._too_long += _and_more(self.over_long - len(self._too_long), "over-long rows")
            raise StageFailed(
                self._summary(f"{self.over_long:,} rows are longer than max_seq_length {self.max_seq_length:,}"),
                retry=False,
                hint=self._advice(),
                problems=self._too_long,
            )
        rows = len(self._lengths)
        if self.strategy == "drop" and self.over_long > _DROPPED_PART * rows:
            raise StageFailed(
                self._summary(
                    f"{self.over_long:,} of {rows:,} rows ({self.over_long / rows:.1%}) are longer than "
                    f"max_seq_length {self.max_seq_length:,}; at most 1 % may be dropped"
                ),
                retry=False,
                hint=self._advice(),
            )

    def all_notes(self) -> tuple[RowNote, ...]:
        if self._left_out == 0:
            return tuple(self.notes)
        return (*self.notes, RowNote(place="…", what=f"and {self._left_out:,} more rows"))

    def _shorten(self, example: Example) -> list[Example]:
        found = f"{example.tokens:,} tokens are more than max_seq_length {self.max_seq_length:,}"
        if self.strategy == "drop":
            self._note(example, f"dropped: {found}")
            return []
        if self.strategy == "error":
            if len(self._too_long) < _MOST_PROBLEMS:
                self._too_long.append(Problem(place=example.source, what=found))
            return []
        kept = slice(0, self.max_seq_length)
        short = Example(example.source, example.digest, example.input_ids[kept], example.is_target[kept])
        if short.targets == 0:
            self._note(example, f"dropped: {found}, and nothing learned is among the first of them")
            return []
        self._note(example, f"truncated: {found}")
        return [short]

    def _note(self, example: Example, what: str) -> None:
        if len(self.notes) < _MOST_NOTES:
            self.notes.append(RowNote(place=example.source, what=what))
        else:
            self._left_out += 1

    def _summary(self, what: str) -> str:
        return (
            f"{what}. Tokens a row: p50 {percentile(self._lengths, 50):,}, p99 {percentile(self._lengths, 99):,}, "
            f"max {max(self._lengths):,}"
        )

    def _advice(self) -> str:
        longest = max(self._lengths)
        if self.max_seq_length >= self.positions:
            return f"the model has {self.positions} positions: shorten the rows, or excess_length_strategy: truncate"
        enough = (
            f"up to {longest} keeps every row"
            if longest <= self.positions
            else f"up to {self.positions}, the model's positions"
        )
        return f"set max_seq_length ({enough}; more needs more memory), or excess_length_strategy: truncate"


def percentile(lengths: "array[int]", percent: int) -> int:
    """The smallest length that at least `percent` % of `lengths` do not exceed; 0 of none."""
    if not lengths:
        return 0
    return sorted(lengths)[max(0, -(-len(lengths) * percent // 100) - 1)]


def _and_more(count: int, of_what: str) -> list[Problem]:
    return [Problem(place="…", what=f"and {count:,} more {of_what}")] if count > 0 else []
