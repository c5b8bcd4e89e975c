"""What an evaluation changes: the best one so far, and whether to end early."""

import pytest

from finetuned.core.plan import Selection
from finetuned.train.engine.position import Position, after_evaluation

TOTAL_STEPS = 100


def selection(patience: int = 0, threshold: float = 0.0) -> Selection:
    return Selection(load_best=True, early_stopping_patience=patience, early_stopping_threshold=threshold)


def after(losses: list[float], choice: Selection) -> Position:
    """The position after evaluations at steps 10, 20, ..."""
    position = Position()
    for number, loss in enumerate(losses, start=1):
        position = after_evaluation(position.model_copy(update={"step": 10 * number}), loss, choice, TOTAL_STEPS)
    return position


def test_the_lowest_loss_is_the_best():
    position = after([3.0, 2.0, 2.5], selection())
    assert (position.best_step, position.best_loss) == (20, 2.0)


def test_the_evaluation_before_training_is_never_the_best():
    position = after_evaluation(Position(), 1.0, selection(), TOTAL_STEPS)
    assert position == Position(evaluated_step=0)


def test_a_loss_that_is_not_a_number_is_never_the_best():
    assert after([float("nan")], selection()).best_step is None
    assert after([2.0, float("nan")], selection()).best_step == 10


@pytest.mark.parametrize(
    ("losses", "patience", "threshold", "ends"),
    [
        ([3.0, 2.0, 1.0], 1, 0.0, False),
        ([3.0, 3.0], 1, 0.0, True),
        ([3.0, 3.1, 2.9, 3.0], 2, 0.0, False),
        ([3.0, 3.1, 3.2], 2, 0.0, True),
        ([3.0, 2.95, 2.92], 2, 0.1, True),
        ([3.0, 3.1, 3.2, 3.3], 0, 0.0, False),
    ],
)
def test_training_ends_early_after_so_many_evaluations_without_gain(
    losses: list[float], patience: int, threshold: float, ends: bool
):
    assert bool(after(losses, selection(patience, threshold)).early_end) == ends


def test_an_early_end_says_why():
    assert after([3.0, 3.1, 3.2], selection(2)).early_end == (
        "early stopping: 2 evaluations without a gain of more than 0 on the loss of 3.0000 at step 10"
    )


def test_nothing_ends_early_at_the_last_step():
    position = Position(step=TOTAL_STEPS, best_step=90, best_loss=1.0)
    assert after_evaluation(position, 2.0, selection(1), TOTAL_STEPS).early_end == ""
