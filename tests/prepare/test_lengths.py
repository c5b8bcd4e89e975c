"""What becomes of rows that are too long, or from which nothing is learned."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
import pytest

from finetuned.core.problems import StageFailed
from finetuned.prepare.prepared.lengths import LengthGate
from finetuned.prepare.prepared.touched import TouchedRows
from finetuned.prepare.render.renderer import Example


class NewGate(Protocol):
    def __call__(
        self, strategy: str = "drop", *, cuts_text: bool = False, positions: int = 512, ratio: float = 0.01
    ) -> LengthGate: ...


@pytest.fixture
def a_gate(tmp_path: Path) -> Iterator[NewGate]:
    with TouchedRows(tmp_path / "touched.jsonl") as touched:

        def new(
            strategy: str = "drop", *, cuts_text: bool = False, positions: int = 512, ratio: float = 0.01
        ) -> LengthGate:
            return LengthGate(10, strategy, cuts_text, positions, ratio, touched)  # type: ignore[arg-type]

        yield new


def an_example(tokens: int, targets: int | None = None, line: int = 1) -> Example:
    """Its last `targets` tokens are learned."""
    is_target = np.arange(tokens) >= tokens - (tokens - 1 if targets is None else targets)
    return Example(f"data.jsonl:{line}", line, np.arange(tokens, dtype=np.int32), is_target)


def test_a_row_that_fits_is_let_through(a_gate: NewGate) -> None:
    assert [example.tokens for example in a_gate().admit(an_example(10))] == [10]


def test_a_few_over_long_rows_are_dropped_and_listed(a_gate: NewGate) -> None:
    gate = a_gate()
    for line in range(1, 100):
        gate.admit(an_example(5, line=line))
    assert gate.admit(an_example(11, line=100)) == []
    gate.close()
    [note] = gate.touched.first()
    assert (note.place, note.what) == ("data.jsonl:100", "dropped: 11 tokens are more than max_seq_length 10")


def test_more_than_one_percent_of_over_long_rows_is_a_persons_choice(a_gate: NewGate) -> None:
    gate = a_gate()
    for line in range(1, 99):
        gate.admit(an_example(line // 20 + 2, line=line))
    gate.admit(an_example(11))
    gate.admit(an_example(40))
    with pytest.raises(StageFailed) as failure:
        gate.close()
    assert str(failure.value) == (
        "2 of 100 rows (2.0%) would be dropped: 2 longer than max_seq_length 10, 0 with nothing to learn; "
        "max_dropped_ratio 0.01 allows 1.0%. Tokens a row: p50 4, p99 11, max 40"
    )
    assert [problem.place for problem in failure.value.problems] == ["data.jsonl:1", "data.jsonl:1"]
    assert failure.value.hint.startswith("set max_seq_length (up to 40 keeps every row")
    assert not failure.value.retry


@pytest.mark.parametrize(
    ("positions", "advice"),
    [
        (40, "set max_seq_length (up to 40 keeps every row; more needs more memory)"),
        (39, "set max_seq_length (up to 39, the model's positions; more needs more memory)"),
        (10, "shorten the rows: the model has 10 positions"),
    ],
)
def test_no_max_seq_length_is_advised_that_the_model_does_not_have(
    a_gate: NewGate, positions: int, advice: str
) -> None:
    gate = a_gate(positions=positions)
    gate.admit(an_example(5))
    gate.admit(an_example(40))
    with pytest.raises(StageFailed) as failure:
        gate.close()
    ratio = "max_dropped_ratio where that many may go"
    assert failure.value.hint == f"{advice}; or excess_length_strategy: truncate; or {ratio}"


def test_truncated_rows_keep_their_beginning_and_are_listed(a_gate: NewGate) -> None:
    gate = a_gate("truncate")
    [short] = gate.admit(an_example(25))
    gate.close()
    assert short.input_ids.tolist() == list(range(10))
    assert gate.touched.first()[0].what == "truncated: 25 tokens are more than max_seq_length 10"


def test_a_row_whose_answer_is_cut_off_by_truncation_is_dropped(a_gate: NewGate) -> None:
    gate = a_gate("truncate")
    assert gate.admit(an_example(25, targets=5)) == []
    assert "nothing learned is among the first" in gate.touched.first()[0].what


def test_over_long_rows_as_errors_are_all_told_at_once(a_gate: NewGate) -> None:
    gate = a_gate("error")
    for line in range(1, 31):
        gate.admit(an_example(11, line=line))
    with pytest.raises(StageFailed, match="30 rows are longer than max_seq_length 10") as failure:
        gate.close()
    assert [problem.place for problem in failure.value.problems[:2]] == ["data.jsonl:1", "data.jsonl:2"]
    assert failure.value.problems[-1].what == "and 10 more rows like these"
    assert len(failure.value.problems) == 21


def test_pretraining_cuts_long_text_instead(a_gate: NewGate) -> None:
    gate = a_gate(cuts_text=True)
    assert [part.tokens for part in gate.admit(an_example(25))] == [10, 10, 5]
    gate.close()
    assert gate.touched.first() == ()


def test_a_row_without_anything_to_learn_is_dropped_and_listed(a_gate: NewGate) -> None:
    gate = a_gate()
    assert gate.admit(an_example(5, targets=0)) == []
    assert gate.touched.first()[0].what.startswith("dropped: nothing in it is learned")


def test_every_touched_row_is_listed_however_many_and_the_first_are_facts(a_gate: NewGate, tmp_path: Path) -> None:
    gate = a_gate("truncate", ratio=1)  # frameworks.md, row 18
    for line in range(1500):
        gate.admit(an_example(5, targets=0, line=line))
    gate.admit(an_example(20, line=1500))
    gate.admit(an_example(20, targets=5, line=1501))
    gate.admit(an_example(5, line=1502))
    gate.close()
    gate.touched.__exit__(None, None, None)
    lines = [json.loads(line) for line in (tmp_path / "touched.jsonl").read_text().splitlines()]
    assert [line["place"] for line in lines] == [f"data.jsonl:{line}" for line in range(1502)]
    assert {line["what"].split(":")[0] for line in lines} == {"dropped", "truncated"}
    assert (gate.dropped, gate.truncated, gate.without_targets, gate.over_long) == (1501, 1, 1501, 2)
    assert len(gate.touched.first()) == 1001
    assert gate.touched.first()[-1].what == "and 502 more rows, all listed in touched.jsonl"


@pytest.mark.parametrize(
    ("dropped", "ratio", "passes"), [(1, 0.01, True), (2, 0.01, False), (2, 0.02, True), (0, 0, True), (1, 0, False)]
)
def test_rows_with_nothing_to_learn_fail_a_job_like_rows_that_are_too_long(
    a_gate: NewGate, dropped: int, ratio: float, passes: bool
) -> None:
    gate = a_gate(ratio=ratio)
    for line in range(100):
        gate.admit(an_example(5, targets=0 if line < dropped else None, line=line))
    if passes:
        gate.close()
        return
    with pytest.raises(StageFailed, match=f"{dropped} of 100 rows") as failure:
        gate.close()
    assert len(failure.value.problems) == dropped
    assert "roles_to_train" in failure.value.hint


def test_truncation_that_empties_too_many_answers_fails_the_job(a_gate: NewGate) -> None:
    gate = a_gate("truncate")  # frameworks.md, rows 16 and 17
    for line in range(50):
        gate.admit(an_example(9, line=line))
    gate.admit(an_example(40, targets=5, line=50))
    with pytest.raises(StageFailed, match="1 with nothing to learn") as failure:
        gate.close()
    assert failure.value.problems[0].place == "data.jsonl:50"
    assert "set max_seq_length (up to 40 keeps every row" in failure.value.hint


def test_truncated_rows_do_not_count_as_dropped(a_gate: NewGate) -> None:
    gate = a_gate("truncate", ratio=0)
    for line in range(10):
        assert gate.admit(an_example(25, line=line))[0].tokens == 10
    gate.close()
    assert (gate.truncated, gate.dropped) == (10, 0)


def test_data_of_which_nothing_is_learned_are_an_error_whatever_may_be_dropped(a_gate: NewGate) -> None:
    gate = a_gate(ratio=1)  # frameworks.md, row 16
    gate.admit(an_example(5, targets=0))
    with pytest.raises(StageFailed, match="no row is left to train on: all 1 were dropped"):
        gate.close()
