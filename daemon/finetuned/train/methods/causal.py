"""The objective of sft and pretrain: predict each target token from the tokens before it.

T tokens of a micro-batch, N target tokens of a micro-batch, V vocabulary.
"""

import torch
from torch import nn
from torch.nn import functional

from finetuned.train.batches import MicroBatch


def sum_of_losses(network: nn.Module, batch: MicroBatch) -> torch.Tensor:
    """Cross-entropy (nats, fp32 scalar) summed over the micro-batch's target tokens; 0 where it has none.

    Logits are computed only where they predict a target.
    """
    # Without use_cache=False packed examples see one another (transformers 5).
    logits_1NV = network(
        input_ids=batch.input_ids_1T,
        position_ids=batch.position_ids_1T,
        logits_to_keep=batch.predictors_N,
        use_cache=False,
    ).logits
    return functional.cross_entropy(logits_1NV[0].float(), batch.labels_N, reduction="sum")
