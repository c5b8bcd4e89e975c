"""What is remembered of prepared rows while they are written, a few bytes each; and what becomes of them then."""

import heapq
from array import array
from dataclasses import dataclass, field

import numpy as np

from finetuned.prepare.prepared.split import choose_eval_rows, copies, eval_count, repeated_rows
from finetuned.prepare.read import Row
from finetuned.prepare.render.renderer import Example

_PROBE_CANDIDATES = 16


@dataclass
class Tally:
    """The examples of one file of prepared rows, in order."""

    digests: "array[int]" = field(default_factory=lambda: array("Q"))
    tokens: "array[int]" = field(default_factory=lambda: array("I"))
    targets: "array[int]" = field(default_factory=lambda: array("I"))
    rows: "array[int]" = field(default_factory=lambda: array("I"))
    """Which row each is (part) of, from 0."""
    candidates: list[tuple[int, int, Row]] = field(default_factory=list)
    """The rows of the lowest digests, of which the probes are taken: a heap of (-digest, -order, row)."""
    _row_count: int = 0

    def count(self, row: Row, examples: list[Example]) -> None:
        """One row, as one example or cut into several."""
        if not examples:
            return
        self._consider(row)
        for example in examples:
            self.digests.append(example.digest)
            self.tokens.append(example.tokens)
            self.targets.append(example.targets)
            self.rows.append(self._row_count)
        self._row_count += 1

    def all_digests(self) -> np.ndarray:
        return np.frombuffer(self.digests, dtype=np.uint64) if self.digests else np.zeros(0, dtype=np.uint64)

    def _consider(self, row: Row) -> None:
        if any(-candidate[0] == row.digest for candidate in self.candidates):
            return
        heapq.heappush(self.candidates, (-row.digest, -len(self.digests), row))
        if len(self.candidates) > _PROBE_CANDIDATES:
            heapq.heappop(self.candidates)


@dataclass(frozen=True)
class Deal:
    """One entry an example: how often it is trained on, is it for evaluation, and does an earlier one say the same?"""

    copies: np.ndarray
    is_eval: np.ndarray
    is_repeated: np.ndarray
    duplicate_rows: int
    weighted_out_rows: int
    eval_wanted: int = 0
    """How many were to be kept for evaluation."""
    smallest_group: int = 1
    """The fewest examples that stay on one side together: those that say the same, and the parts of one row."""

    @property
    def leaves_as_is(self) -> bool:
        return bool((self.copies == 1).all())


def deal(tally: Tally, weights: list[tuple[int, float]], val_set_size: float | None, *, deduplicate: bool) -> Deal:
    """`weights` has the number of examples of each set, in order, and its weight.

    First duplicates go, then rows for evaluation, then weights are applied to what is left for training.
    """
    digests = tally.all_digests()
    rows = np.frombuffer(tally.rows, dtype=np.uint32) if tally.rows else np.zeros(0, dtype=np.uint32)
    is_first_part = np.ones(len(rows), dtype=bool)
    is_first_part[1:] = rows[1:] != rows[:-1]
    repeated = repeated_rows(digests[is_first_part])
    is_repeated = repeated[rows]
    is_kept = ~is_repeated if deduplicate else np.ones(len(rows), dtype=bool)

    is_eval = np.zeros(len(rows), dtype=bool)
    eval_wanted = eval_count(int(is_kept.sum()), val_set_size)
    is_eval[is_kept] = choose_eval_rows(digests[is_kept], eval_wanted)

    is_trained = is_kept & ~is_eval
    times = np.zeros(len(rows), dtype=np.uint16)
    start = 0
    for count, weight in weights:
        part = slice(start, start + count)
        start += count
        trained = is_trained[part]
        times[part][trained] = copies(digests[part][trained], weight)
    weighted_out = is_first_part & is_trained & (times == 0)
    smallest_group = int(np.unique(digests[is_kept], return_counts=True)[1].min(initial=len(rows)))
    return Deal(times, is_eval, is_repeated, int(repeated.sum()), int(weighted_out.sum()), eval_wanted, smallest_group)
