"""Which rows are kept for evaluation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetuned.core.problems import StageFailed
from finetuned.prepare.split import choose_eval_rows, eval_count


@pytest.mark.parametrize(
    ("rows", "val_set_size", "count"),
    [
        (199, None, 0),
        (200, None, 10),
        (9_000, None, 450),
        (100_000, None, 500),
        (100, 0.1, 10),
        (100, 0.001, 1),
        (100, 7, 7),
        (100, 0, 0),
    ],
)
def test_how_many_rows_are_kept(rows: int, val_set_size: float | None, count: int) -> None:
    assert eval_count(rows, val_set_size) == count


@pytest.mark.parametrize("val_set_size", [50, 0.999])
def test_evaluation_never_takes_every_row(val_set_size: float) -> None:
    with pytest.raises(StageFailed, match="no row would be left") as failure:
        eval_count(50, val_set_size)
    assert failure.value.problems[0].place == "val_set_size"


@given(st.lists(st.integers(0, 2**64 - 1), unique=True, min_size=5, max_size=60), st.randoms())
def test_the_choice_does_not_depend_on_the_order_of_rows(digests: list[int], random: object) -> None:
    shuffled = list(digests)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert chosen(digests, 4) == chosen(shuffled, 4)
    assert len(chosen(digests, 4)) == 4


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.integers(0, 20))
def test_exact_duplicates_land_on_the_same_side_and_the_count_is_kept(digests: list[int], count: int) -> None:
    is_eval = choose_eval_rows(np.array(digests, dtype=np.uint64), count)
    assert is_eval.sum() <= count
    for digest in set(digests):
        sides = {bool(side) for side, each in zip(is_eval, digests, strict=True) if each == digest}
        assert len(sides) == 1


def chosen(digests: list[int], count: int) -> set[int]:
    is_eval = choose_eval_rows(np.array(digests, dtype=np.uint64), count)
    return {digest for digest, kept in zip(digests, is_eval, strict=True) if kept}
