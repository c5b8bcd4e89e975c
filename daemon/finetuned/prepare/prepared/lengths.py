"""What happens to rows that are too long or teach nothing, and what is noted of rows that are dropped or changed."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from finetuned.core.problems import Problem, StageFailed
from finetuned.prepare.prepared.touched import TouchedRows
from finetuned.prepare.render.renderer import Example, cut

_MOST_PROBLEMS = 20


@dataclass
class LengthGate:
    """Lets through what fits and teaches something. One for all rows of a job; `close` after the last."""

    max_seq_length: int
    strategy: Literal["drop", "truncate", "error"]
    cuts_text: bool
    """Pretraining: a long row becomes several examples instead of being over-long."""
    positions: int
    """The most that max_seq_length could be for this model."""
    max_dropped_ratio: float
    touched: TouchedRows
    over_long: int = 0
    dropped: int = 0
    truncated: int = 0
    without_targets: int = 0
    """Of the dropped: those in which nothing is learned, in the row itself or in what truncation leaves."""
    _first: list[Problem] = field(default_factory=list)
    """The first rows that were dropped, or that are errors."""
    _lengths: "array[int]" = field(default_factory=lambda: array("I"))

    @property
    def rows(self) -> int:
        return len(self._lengths)

    def admit(self, example: Example) -> list[Example]:
        """What becomes of one row: itself, shortened, in parts, or nothing (then noted)."""
        self._lengths.append(example.tokens)
        if example.targets == 0:
            self.without_targets += 1
            return self._drop(example, "nothing in it is learned (no turn of roles_to_train, weight 0, or no text)")
        if example.tokens <= self.max_seq_length:
            return [example]
        if self.cuts_text:
            return cut(example, self.max_seq_length)
        self.over_long += 1
        return self._shorten(example)

    def close(self) -> None:
        """Raise StageFailed (no retry) when more rows were dropped than may be, or any was too long under `error`."""
        if self.strategy == "error" and self.over_long:
            self._fail(f"{self.over_long:,} rows are longer than max_seq_length {self.max_seq_length:,}")
        if self.dropped == self.rows > 0:
            self._fail(f"no row is left to train on: all {self.rows:,} were dropped")
        if self.dropped > self.max_dropped_ratio * self.rows:
            too_long = self.dropped - self.without_targets
            self._fail(
                f"{self.dropped:,} of {self.rows:,} rows ({self.dropped / self.rows:.1%}) would be dropped: "
                f"{too_long:,} longer than max_seq_length {self.max_seq_length:,}, "
                f"{self.without_targets:,} with nothing to learn; "
                f"max_dropped_ratio {self.max_dropped_ratio:g} allows {self.max_dropped_ratio:.1%}"
            )

    def _shorten(self, example: Example) -> list[Example]:
        found = f"{example.tokens:,} tokens are more than max_seq_length {self.max_seq_length:,}"
        if self.strategy == "drop":
            return self._drop(example, found)
        if self.strategy == "error":
            self._remember(example, found)
            return []
        kept = slice(0, self.max_seq_length)
        short = Example(example.source, example.digest, example.input_ids[kept], example.is_target[kept])
        if short.targets == 0:
            self.without_targets += 1
            return self._drop(example, f"{found}, and nothing learned is among the first of them")
        self.truncated += 1
        self.touched.note(example.source, f"truncated: {found}")
        return [short]

    def _drop(self, example: Example, why: str) -> list[Example]:
        self.dropped += 1
        self.touched.note(example.source, f"dropped: {why}")
        self._remember(example, why)
        return []

    def _remember(self, example: Example, what: str) -> None:
        if len(self._first) < _MOST_PROBLEMS:
            self._first.append(Problem(place=example.source, what=what))

    def _fail(self, what: str) -> None:
        count = self.over_long if self.strategy == "error" and self.over_long else self.dropped
        problems = list(self._first)
        if (more := count - len(problems)) > 0:
            problems.append(Problem(place="…", what=f"and {more:,} more rows like these"))
        raise StageFailed(
            f"{what}. Tokens a row: p50 {percentile(self._lengths, 50):,}, p99 {percentile(self._lengths, 99):,}, "
            f"max {max(self._lengths):,}",
            retry=False,
            hint=self._advice(),
            problems=problems,
        )

    def _advice(self) -> str:
        ways = []
        if self.over_long:
            ways += self._ways_for_length()
        if self.without_targets:
            ways.append("look at roles_to_train, at weight in the rows, and at columns")
        if self.strategy != "error" or not self.over_long:
            ways.append("max_dropped_ratio where that many may go")
        return "; or ".join(ways)

    def _ways_for_length(self) -> list[str]:
        longest = max(self._lengths)
        ways = []
        if self.max_seq_length >= self.positions:
            ways.append(f"shorten the rows: the model has {self.positions} positions")
        else:
            enough = (
                f"up to {longest} keeps every row"
                if longest <= self.positions
                else f"up to {self.positions}, the model's positions"
            )
            ways.append(f"set max_seq_length ({enough}; more needs more memory)")
        if self.strategy != "truncate":
            ways.append("excess_length_strategy: truncate")
        return ways


def percentile(lengths: "array[int] | Sequence[int] | np.ndarray", percent: int) -> int:
    """The smallest length that at least `percent` % of `lengths` do not exceed; 0 of none."""
    if not len(lengths):
        return 0
    rank = max(0, -(-len(lengths) * percent // 100) - 1)
    return int(np.partition(np.asarray(lengths, dtype=np.uint32), rank)[rank])
