"""Which rows make a batch, how they are cut, and how they are laid out."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetuned.core.plan import Batches
from finetuned.core.problems import StageFailed
from finetuned.train.batches import Order, cut, lay_out, micro_batches, shuffled
from finetuned.train.rows import Example, Rows, open_rows
from training import a_plan, random_rows, write_rows


def batches_of(size: int, seed: int = 42) -> Batches:
    return Batches(
        global_batch_size=size, steps_per_epoch=1, micro_batch_tokens=1, eval_micro_batch_tokens=1, seed=seed
    )


def an_example(*tokens: int, learned_from: int = 1) -> Example:
    return Example(np.array(tokens, dtype=np.int32), np.arange(len(tokens)) >= learned_from)


def test_an_epoch_shows_every_row_once_and_its_last_batch_may_be_smaller():
    order = Order(22, batches_of(4))
    epoch = [order.batch_at(step) for step in range(6)]
    assert [len(batch) for batch in epoch] == [4, 4, 4, 4, 4, 2]
    assert sorted(row for batch in epoch for row in batch) == list(range(22))


def test_epochs_and_seeds_have_orders_of_their_own():
    assert not np.array_equal(shuffled(50, 42, 0), shuffled(50, 42, 1))
    assert not np.array_equal(shuffled(50, 42, 0), shuffled(50, 43, 0))


def test_a_batch_depends_on_nothing_but_the_step():
    forward = Order(22, batches_of(4))
    in_order = [forward.batch_at(step) for step in range(20)]
    assert [Order(22, batches_of(4)).batch_at(step) for step in reversed(range(20))] == in_order[::-1]


def test_the_order_never_changes_between_releases():
    assert shuffled(10, 42, 0).tolist() == [0, 1, 4, 2, 6, 8, 5, 9, 7, 3]
    assert shuffled(10, 42, 3).tolist() == [3, 4, 5, 0, 1, 6, 2, 7, 8, 9]


def test_position_in_epochs_is_fractional():
    assert Order(22, batches_of(4)).epoch_at(9) == 1.5


@given(st.lists(st.integers(1, 120), max_size=40), st.integers(0, 100))
def test_cut_loses_nothing_and_keeps_the_budget(lengths: list[int], budget: int):
    parts = cut(lengths, budget)
    assert sorted(index for part in parts for index in part) == list(range(len(lengths)))
    assert all(len(part) == 1 or sum(lengths[index] for index in part) <= budget for part in parts)
    assert all(part == sorted(part) for part in parts)
    assert parts == sorted(parts)


@given(st.lists(st.integers(1, 100), max_size=40))
def test_cut_never_leaves_two_parts_that_fit_in_one(lengths: list[int]):
    loads = sorted(sum(lengths[index] for index in part) for part in cut(lengths, 100))
    assert len(loads) < 2 or loads[0] + loads[1] > 100


@pytest.mark.parametrize(
    ("lengths", "budget", "parts"),
    [
        ([], 10, []),
        ([5, 5], 10, [[0, 1]]),
        ([30, 5, 5], 10, [[0], [1, 2]]),
        ([3, 3, 3, 3], 6, [[0, 2], [1, 3]]),
        ([5, 1, 1, 1, 4], 7, [[0, 2], [1, 3, 4]]),
        ([6, 5, 4, 3, 2], 10, [[0, 2], [1, 3, 4]]),
        ([2, 2, 2], 0, [[0], [1], [2]]),
    ],
)
def test_cut_makes_few_and_equal_parts(lengths: list[int], budget: int, parts: list[list[int]]):
    assert cut(lengths, budget) == parts


def test_positions_restart_and_no_prediction_crosses_a_border():
    batch = lay_out([an_example(10, 11, 12), an_example(20, 21, learned_from=0), an_example(30, 31, 32, 33)])
    assert batch.input_ids_1T.tolist() == [[10, 11, 12, 20, 21, 30, 31, 32, 33]]
    assert batch.position_ids_1T.tolist() == [[0, 1, 2, 0, 1, 0, 1, 2, 3]]
    assert batch.labels_N.tolist() == [11, 12, 20, 21, 31, 32, 33]


def test_the_first_token_of_a_row_is_never_a_target(tmp_path: Path):
    write_rows(tmp_path / "train.arrow", [([7, 8, 9], [True, True, True])])
    batch = lay_out([Rows(tmp_path / "train.arrow").example(0)])
    assert batch.predictors_N.tolist() == [0, 1]
    assert batch.labels_N.tolist() == [8, 9]


def test_micro_batches_hold_every_target_once():
    examples = [an_example(*range(length), learned_from=2) for length in (9, 4, 7, 3)]
    batches = micro_batches(examples, 12)
    assert sum(batch.target_tokens for batch in batches) == 7 + 2 + 5 + 1
    assert all(batch.tokens <= 12 for batch in batches)


def test_rows_are_read_from_file_and_stream_format_alike(tmp_path: Path):
    rows = random_rows(20)
    write_rows(tmp_path / "file.arrow", rows)
    with pa.ipc.open_file(str(tmp_path / "file.arrow")) as reader:
        table = reader.read_all()
    with pa.OSFile(str(tmp_path / "stream.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    for name in ("file.arrow", "stream.arrow"):
        found = Rows(tmp_path / name)
        assert len(found) == 20
        assert found.example(13).input_ids.tolist() == rows[13][0]
        assert found.example(13).is_target.tolist() == rows[13][1]
        assert found.source(13) == "data.jsonl:14"


def test_rows_that_are_not_what_was_planned_are_refused(spool: Path):
    plan = a_plan(Path("/nowhere"), spool)
    folder = spool / "store" / "prepared" / "rows"
    write_rows(folder / "train.arrow", random_rows(3))
    with pytest.raises(StageFailed, match="holds 3 rows and the plan says 22"):
        open_rows(folder, plan)


def test_missing_and_broken_rows_are_refused_by_name(tmp_path: Path):
    with pytest.raises(StageFailed, match=r"absent\.arrow cannot be read") as pruned:
        Rows(tmp_path / "absent.arrow")
    assert pruned.value.retry, "they are prepared again"
    (tmp_path / "broken.arrow").write_bytes(b"not arrow" * 100)
    with pytest.raises(StageFailed, match=r"broken\.arrow cannot be read"):
        Rows(tmp_path / "broken.arrow")
