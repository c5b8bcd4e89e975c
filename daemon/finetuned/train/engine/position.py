"""Where training stands between two steps, and what an evaluation changes about it. Pure."""

from finetuned.core.plan import Selection
from finetuned.core.record import Record


class Position(Record):
    """The part of a checkpoint that is not tensors."""

    step: int = 0
    """Updates done."""
    evaluated_step: int = -1
    """The last step at which the evaluation that was due has been done."""
    best_step: int | None = None
    best_loss: float | None = None
    evaluations_without_gain: int = 0
    early_end: str = ""
    """Why training is over before all planned steps are done; empty while it is not."""


def after_evaluation(position: Position, loss: float, selection: Selection, total_steps: int) -> Position:
    """The position after an evaluation at its step. The one before training chooses nothing."""
    if position.step == 0:
        return position.model_copy(update={"evaluated_step": 0})
    best = position.best_loss
    has_gained = best is None or best - loss > selection.early_stopping_threshold
    without_gain = 0 if has_gained else position.evaluations_without_gain + 1
    changes: dict[str, object] = {"evaluated_step": position.step, "evaluations_without_gain": without_gain}
    # The comparison that a NaN fails.
    if loss < (float("inf") if best is None else best):
        changes |= {"best_step": position.step, "best_loss": loss}
    patience = selection.early_stopping_patience
    if 0 < patience <= without_gain and position.step < total_steps:
        changes["early_end"] = (
            f"early stopping: {without_gain} evaluations without a gain of more than "
            f"{selection.early_stopping_threshold:g} on the loss of {best:.4f} at step {position.best_step}"
        )
    return position.model_copy(update=changes)
