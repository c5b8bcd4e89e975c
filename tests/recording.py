"""A network that costs nothing and notes what it is shown, for promises about the loop rather than about a model."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from finetuned.core.events import Event
from finetuned.core.plan import RunPlan
from finetuned.host.jobdir import JobDir
from finetuned.host.stage import StageRun
from finetuned.train.batches import Order
from finetuned.train.engine.loop import Data, Learner, Loop
from finetuned.train.engine.optimizer import build_optimizer
from finetuned.train.engine.position import Position
from finetuned.train.engine.restore import restore_newest
from finetuned.train.engine.saver import Saver
from finetuned.train.model.tuned import TunedModel
from finetuned.train.rows import open_rows
from training import open_attempt

FIRST_NAME = 100
"""The first token of row N of `named_rows` is this plus N; no other token is as large."""


def named_rows(count: int) -> list[tuple[list[int], list[bool]]]:
    """Rows of 3 to 9 tokens that tell which row they are."""
    return [
        (
            [FIRST_NAME + row, *(1 + (row + place) % 50 for place in range(2 + row % 7))],
            [False] + [True] * (2 + row % 7),
        )
        for row in range(count)
    ]


class RecordingNetwork(nn.Module):
    """A bigram model. `shown`: the rows of each micro-batch, in order."""

    def __init__(self, rows: int, look: Callable[[], None] = lambda: None):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(FIRST_NAME + rows, 8)
        self.head = nn.Linear(8, FIRST_NAME, bias=False)
        self.shown: list[list[int]] = []
        self._look = look

    def forward(self, *, input_ids: torch.Tensor, logits_to_keep: torch.Tensor, **_how: Any) -> SimpleNamespace:
        if self.training:
            self._look()
            self.shown.append([token - FIRST_NAME for token in input_ids[0].tolist() if token >= FIRST_NAME])
        return SimpleNamespace(logits=self.head(self.embedding(input_ids))[:, logits_to_keep])


def recording_model(rows: int, look: Callable[[], None] = lambda: None) -> TunedModel:
    network = RecordingNetwork(rows, look)
    return TunedModel(network, dict(network.named_parameters()), torch.device("cpu"), "fp32")


def train(
    job: JobDir, plan: RunPlan, model: TunedModel, watch: Callable[[Event, StageRun], None] | None = None
) -> Position:
    """One attempt over all rows of the plan, from its newest checkpoint on: what `fit` does, with a given model."""
    run = open_attempt(job, watch)
    train_rows, eval_rows = open_rows(job.spool / "store" / "prepared" / plan.data.prepared, plan)
    data = Data(
        train_rows,
        eval_rows,
        Order(len(train_rows), plan.batches),
        plan.batches.micro_batch_tokens,
        plan.batches.eval_micro_batch_tokens,
    )
    optimizer = build_optimizer(model, plan.optimizer)
    position = restore_newest(run, plan, model, optimizer)
    with Saver(run, plan, saved_step=position.step) as saver:
        return Loop(run, plan, Learner(model, optimizer), data, position).run_to_end(saver)


def a_quick_plan(spool: Path, rows: int, **changes: Any) -> RunPlan:
    """A plan over `named_rows`, for `recording_model`."""
    from training import a_plan

    defaults: dict[str, Any] = {"rows": named_rows(rows), "eval_rows": named_rows(3), "micro_batch_tokens": 20}
    return a_plan(Path("/no/model"), spool, **(defaults | changes))
