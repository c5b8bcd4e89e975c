"""Whether the best checkpoint is axolotl's result, or the last weights: by its own rule."""

from finetuned.core.importers.trainer import TrainerWords
from finetuned.core.importers.work import Work

_BEST = "load_best_model_at_end"
_RULE = "axolotl takes the best only where save_steps is a multiple of eval_steps"


def translate_best(work: Work, words: TrainerWords) -> None:
    """The best where that is asked for and each save falls on an evaluation, and with early stopping; else the last.

    Since 0.4.1 its schema has false where the key is missing. An empty key replaces that: it asks for the best.
    """
    keys, draft = work.keys, work.draft
    given, written = keys.truth(_BEST), keys.all.get(_BEST)
    origins = [written] if written else []
    if draft.has("early_stopping_patience"):
        # Steps that do not divide are refused there beside it.
        draft.put(_BEST, True, *origins, why="early stopping takes the best there")
        if given and not given.value:
            work.ledger.change(given.found, "is false, which has no effect there beside early_stopping_patience")
    elif written is None:
        draft.put(_BEST, False, why="axolotl's default: the last weights are the result")
    elif given and not given.value:
        draft.put(_BEST, False, given.found)
    elif _saves_fall_on_evaluations(work, words):
        draft.put(_BEST, True, written)
    else:
        draft.put(_BEST, False, written, why=_RULE)
        work.ledger.change(written, f"has no effect there: {_RULE}; so the last weights are the result")


def _saves_fall_on_evaluations(work: Work, words: TrainerWords) -> bool:
    """In floats, as there: a fifth of an epoch does not divide one, by a hair's breadth."""
    save = _steps(work, words, "save_steps", "saves_per_epoch")
    every = _steps(work, words, "eval_steps", "evals_per_epoch")
    return save is not None and every is not None and save % every == 0


def _steps(work: Work, words: TrainerWords, key: str, per_epoch: str) -> int | float | None:
    """Steps, or below 1 a part of the run, also from times per epoch; None where the file leaves it to each epoch."""
    times, epochs = work.keys.whole(per_epoch), work.keys.number(words.epochs)
    a_run = (times.value if times else 0) * (epochs.value if epochs else words.default_epochs)
    if a_run > 1:
        return 1.0 / a_run
    steps = work.keys.number(key)
    return steps.value if steps and steps.value > 0 else None
