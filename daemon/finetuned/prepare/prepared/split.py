"""Which rows are trained on and how often, and which are kept for evaluation.

Chosen by what rows say, so that neither order nor duplicates matter.
"""

import numpy as np

from finetuned.core.problems import Problem, StageFailed

_AUTO_FROM_ROWS = 200
_AUTO_PART = 0.05
_AUTO_MOST = 500


def eval_count(rows: int, val_set_size: float | None) -> int:
    """How many of `rows` are for evaluation. Raises StageFailed (no retry) where none would be left to train on."""
    if val_set_size is None:
        return min(_AUTO_MOST, round(rows * _AUTO_PART)) if rows >= _AUTO_FROM_ROWS else 0
    if val_set_size <= 0:
        return 0
    count = max(1, round(rows * val_set_size)) if val_set_size < 1 else round(val_set_size)
    if count >= rows:
        problem = Problem(
            place="val_set_size",
            what=f"{val_set_size:g} keeps {count:,} rows for evaluation; there are {rows:,} rows in all",
            hint="leave it out: finetuned then keeps 5 %, from 200 rows up",
        )
        raise StageFailed("no row would be left to train on", retry=False, problems=[problem])
    return count


def choose_eval_rows(digests: np.ndarray, count: int) -> np.ndarray:
    """bool, one a row: the rows with the lowest digests, equal ones together, at most `count` in all.

    A group of equal rows that would exceed `count` stays in training.
    """
    unique, group_of_row, sizes = np.unique(digests, return_inverse=True, return_counts=True)
    is_chosen = np.zeros(len(unique), dtype=bool)
    left = count
    for group, size in enumerate(sizes):  # In order of digest.
        if left == 0:
            break
        if size <= left:
            is_chosen[group] = True
            left -= int(size)
    return is_chosen[group_of_row]


def repeated_rows(digests: np.ndarray) -> np.ndarray:
    """bool, one a row: it says exactly what an earlier one says."""
    repeated = np.ones(len(digests), dtype=bool)
    repeated[np.unique(digests, return_index=True)[1]] = False
    return repeated


def copies(digests: np.ndarray, weight: float) -> np.ndarray:
    """How often each row of a set is trained on in an epoch; the sum is the rounded `weight` times the rows.

    Which rows have one copy more than others is told by a hash of what they say: another one than the split for
    evaluation goes by, or that would have taken the same rows first.
    """
    whole = int(weight)
    counts = np.full(len(digests), whole, dtype=np.uint16)
    more = round((weight - whole) * len(digests))
    if whole == 0 and len(digests):
        more = max(1, more)
    if more:
        counts[np.argsort(_mixed(digests), kind="stable")[:more]] += 1
    return counts


def _mixed(digests: np.ndarray) -> np.ndarray:
    """splitmix64's finish: a number whose order has nothing to do with the digests'."""
    mixed = digests.astype(np.uint64)
    with np.errstate(over="ignore"):
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
