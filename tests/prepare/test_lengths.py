"""What becomes of rows that are too long, or from which nothing is learned."""

import numpy as np
import pytest

from finetuned.core.problems import StageFailed
from finetuned.prepare.lengths import LengthGate
from finetuned.prepare.render import Example


def an_example(tokens: int, targets: int | None = None, line: int = 1) -> Example:
    """Its last `targets` tokens are learned."""
    is_target = np.arange(tokens) >= tokens - (tokens - 1 if targets is None else targets)
    return Example(f"data.jsonl:{line}", line, np.arange(tokens, dtype=np.int32), is_target)


def a_gate(strategy: str = "drop", *, cuts_text: bool = False, positions: int = 512) -> LengthGate:
    return LengthGate(10, strategy, cuts_text, positions)  # type: ignore[arg-type]


def test_a_row_that_fits_is_let_through() -> None:
    assert [example.tokens for example in a_gate().admit(an_example(10))] == [10]


def test_a_few_over_long_rows_are_dropped_and_listed() -> None:
    gate = a_gate()
    for line in range(1, 100):
        gate.admit(an_example(5, line=line))
    assert gate.admit(an_example(11, line=100)) == []
    gate.close()
    [note] = gate.all_notes()
    assert (note.place, note.what) == ("data.jsonl:100", "dropped: 11 tokens are more than max_seq_length 10")


def test_more_than_one_percent_of_over_long_rows_is_a_persons_choice() -> None:
    gate = a_gate()
    for line in range(1, 99):
        gate.admit(an_example(line // 20 + 2, line=line))
    gate.admit(an_example(11))
    gate.admit(an_example(40))
    with pytest.raises(StageFailed) as failure:
        gate.close()
    assert str(failure.value) == (
        "2 of 100 rows (2.0%) are longer than max_seq_length 10; at most 1 % may be dropped. "
        "Tokens a row: p50 4, p99 11, max 40"
    )
    assert failure.value.hint.startswith("set max_seq_length (up to 40 keeps every row")
    assert not failure.value.retry


@pytest.mark.parametrize(
    ("positions", "advice"),
    [
        (40, "set max_seq_length (up to 40 keeps every row; more needs more memory), or"),
        (39, "set max_seq_length (up to 39, the model's positions; more needs more memory), or"),
        (10, "the model has 10 positions: shorten the rows, or"),
    ],
)
def test_no_max_seq_length_is_advised_that_the_model_does_not_have(positions: int, advice: str) -> None:
    gate = a_gate(positions=positions)
    gate.admit(an_example(40))
    with pytest.raises(StageFailed) as failure:
        gate.close()
    assert failure.value.hint == f"{advice} excess_length_strategy: truncate"


def test_truncated_rows_keep_their_beginning_and_are_listed() -> None:
    gate = a_gate("truncate")
    [short] = gate.admit(an_example(25))
    gate.close()
    assert short.input_ids.tolist() == list(range(10))
    assert gate.all_notes()[0].what == "truncated: 25 tokens are more than max_seq_length 10"


def test_a_row_whose_answer_is_cut_off_by_truncation_is_dropped() -> None:
    gate = a_gate("truncate")
    assert gate.admit(an_example(25, targets=5)) == []
    assert "nothing learned is among the first" in gate.all_notes()[0].what


def test_over_long_rows_as_errors_are_all_told_at_once() -> None:
    gate = a_gate("error")
    for line in range(1, 31):
        gate.admit(an_example(11, line=line))
    with pytest.raises(StageFailed, match="30 rows are longer than max_seq_length 10") as failure:
        gate.close()
    assert [problem.place for problem in failure.value.problems[:2]] == ["data.jsonl:1", "data.jsonl:2"]
    assert failure.value.problems[-1].what == "and 10 more over-long rows"
    assert len(failure.value.problems) == 21


def test_pretraining_cuts_long_text_instead() -> None:
    gate = a_gate(cuts_text=True)
    assert [part.tokens for part in gate.admit(an_example(25))] == [10, 10, 5]
    gate.close()
    assert gate.all_notes() == ()


def test_a_row_without_anything_to_learn_is_dropped_and_listed() -> None:
    gate = a_gate()
    assert gate.admit(an_example(5, targets=0)) == []
    assert gate.all_notes()[0].what.startswith("dropped: nothing in it is learned")


def test_the_list_of_notes_does_not_grow_with_the_data() -> None:
    gate = a_gate()
    for line in range(1500):
        gate.admit(an_example(5, targets=0, line=line))
    assert len(gate.all_notes()) == 1001
    assert gate.all_notes()[-1].what == "and 500 more rows"
