"""Which rows are kept for evaluation: chosen by what they say, so that neither order nor duplicates matter."""

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
