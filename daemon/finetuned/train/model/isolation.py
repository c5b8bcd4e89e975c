"""Whether examples that share a micro-batch see one another.

T tokens, V vocabulary.
"""

from collections.abc import Sequence

import torch

from finetuned.train.batches import MicroBatch, lay_out
from finetuned.train.model.tuned import TunedModel
from finetuned.train.rows import Example, Rows

_LONGEST_TOKENS = 64
_TOLERANCE = {"fp32": 1e-4, "bf16": 5e-2}
"""Relative L2 difference of logits. Rounding alone gives about 1e-6 and 1e-2; one example that sees another, 1e-1."""


def is_isolated(model: TunedModel, rows: Rows) -> bool:
    """Whether the logits of examples laid into one micro-batch are those of each alone."""
    examples = [_shortened(rows.example(row % len(rows))) for row in range(3)]
    return largest_difference(model, examples) <= _TOLERANCE[model.precision]


def largest_difference(model: TunedModel, examples: Sequence[Example]) -> float:
    """Largest relative L2 difference between an example's logits in a micro-batch of all, and alone."""
    together_TV = _logits(model, lay_out(examples))
    start, largest = 0, 0.0
    for example in examples:
        alone_TV = _logits(model, lay_out([example]))
        shared_TV = together_TV[start : start + example.tokens]
        largest = max(largest, ((shared_TV - alone_TV).norm() / alone_TV.norm()).item())
        start += example.tokens
    return largest


@torch.no_grad()
def _logits(model: TunedModel, batch: MicroBatch) -> torch.Tensor:
    batch = batch.to(model.device)
    was_training = model.network.training
    model.network.eval()
    try:
        with model.computing():
            logits_1TV = model.network(
                input_ids=batch.input_ids_1T, position_ids=batch.position_ids_1T, use_cache=False
            ).logits
    finally:
        model.network.train(was_training)
    return logits_1TV[0].float()


def _shortened(example: Example) -> Example:
    return Example(example.input_ids[:_LONGEST_TOKENS], example.is_target[:_LONGEST_TOKENS])
