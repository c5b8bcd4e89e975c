"""Which rows are kept for evaluation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetuned.core.problems import StageFailed
from finetuned.prepare.prepared.split import choose_eval_rows, copies, eval_count, repeated_rows
from finetuned.prepare.prepared.tally import Tally, deal
from finetuned.prepare.read import Row, Text
from finetuned.prepare.render.renderer import Example


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


@pytest.mark.parametrize(
    ("weight", "total", "values"),
    [(1.0, 100, {1}), (2.0, 200, {2}), (0.5, 50, {0, 1}), (2.25, 225, {2, 3}), (0.001, 1, {0, 1})],
)
def test_a_weight_is_how_often_each_row_is_seen(weight: float, total: int, values: set[int]) -> None:
    counts = copies(np.arange(100, dtype=np.uint64), weight)
    assert counts.sum() == total
    assert set(counts.tolist()) == values


def test_which_rows_a_weight_keeps_depends_on_what_they_say_alone() -> None:
    digests = np.random.default_rng(0).integers(0, 2**63, 200, dtype=np.uint64)
    order = np.random.default_rng(1).permutation(200)
    assert (copies(digests, 0.5)[order] == copies(digests[order], 0.5)).all()


def test_a_weight_does_not_keep_the_rows_that_the_split_would_have_taken_next() -> None:
    digests = np.sort(np.random.default_rng(0).integers(0, 2**63, 2000, dtype=np.uint64))
    kept = copies(digests, 0.5) > 0
    assert 400 < kept[:1000].sum() < 600


def test_of_rows_that_say_the_same_all_but_the_first_are_repeats() -> None:
    assert repeated_rows(np.array([7, 3, 7, 7, 3], dtype=np.uint64)).tolist() == [False, False, True, True, True]


def a_tally(*rows: tuple[int, int]) -> Tally:
    """Of rows of (digest, parts)."""
    tally = Tally()
    for digest, parts in rows:
        example = Example("x", digest, np.zeros(5, dtype=np.int32), np.ones(5, dtype=bool))
        tally.count(Row("x", Text("x"), digest), [example] * parts)
    return tally


def test_parts_of_one_row_are_no_duplicates_of_one_another() -> None:
    dealt = deal(a_tally((1, 3), (2, 1), (1, 3)), [(7, 1.0)], 0, deduplicate=True)
    assert dealt.duplicate_rows == 1
    assert dealt.copies.tolist() == [1, 1, 1, 1, 0, 0, 0]


def test_duplicates_go_before_the_split_and_weights_come_after_it() -> None:
    tally = a_tally(*((digest % 40, 1) for digest in range(80)))
    dealt = deal(tally, [(20, 3.0), (60, 0.5)], 10, deduplicate=True)
    assert dealt.duplicate_rows == 40
    assert dealt.is_eval.sum() == 10
    assert (dealt.copies[dealt.is_eval] == 0).all()
    assert dealt.copies[:20].sum() == 3 * (20 - dealt.is_eval[:20].sum())
    assert dealt.copies[20:40].sum() == round(0.5 * (20 - dealt.is_eval[20:40].sum()))
    assert dealt.copies[40:].sum() == 0
    assert dealt.weighted_out_rows == 20 - dealt.is_eval[20:40].sum() - dealt.copies[20:40].sum()
