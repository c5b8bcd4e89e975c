"""The loss on evaluation rows."""

import time

import torch

from finetuned.core.events import Progressed
from finetuned.host.stage import StageRun, now
from finetuned.train.batches import micro_batches
from finetuned.train.methods.causal import sum_of_losses
from finetuned.train.model.tuned import TunedModel
from finetuned.train.rows import Rows

_ROWS_AT_ONCE = 256
_SECONDS_BETWEEN_PROGRESS = 2.0


@torch.no_grad()
def evaluate(run: StageRun, model: TunedModel, rows: Rows, budget_tokens: int) -> tuple[float, int]:
    """Mean loss (nats) over the target tokens of all rows, and how many there are.

    Without dropout, and without drawing from any random generator. Raises StopRequested between micro-batches.
    """
    model.network.eval()
    try:
        return _mean_loss(run, model, rows, budget_tokens)
    finally:
        model.network.train()


def _mean_loss(run: StageRun, model: TunedModel, rows: Rows, budget_tokens: int) -> tuple[float, int]:
    losses = torch.zeros((), dtype=torch.float64, device=model.device)
    target_tokens = 0
    said = time.monotonic()
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        numbers = range(start, min(start + _ROWS_AT_ONCE, len(rows)))
        for batch in micro_batches([rows.example(row) for row in numbers], budget_tokens):
            run.stop.raise_if_set()
            with model.computing():
                losses += sum_of_losses(model.network, batch.to(model.device))
            target_tokens += batch.target_tokens
            run.watchdog.moved()
        if time.monotonic() - said > _SECONDS_BETWEEN_PROGRESS:
            said = time.monotonic()
            run.say(Progressed(time=now(), activity="evaluating", done=numbers.stop, total=len(rows), unit="rows"))
    return losses.item() / max(1, target_tokens), target_tokens
