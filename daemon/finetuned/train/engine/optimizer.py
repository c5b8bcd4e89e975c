"""AdamW over two groups: matrices, which decay, and everything else, which does not."""

from typing import Any

from torch import nn
from torch.optim import AdamW

from finetuned.core.plan import Optimizer
from finetuned.train.model.tuned import TunedModel


def build_optimizer(model: TunedModel, settings: Optimizer) -> AdamW:
    """Fused AdamW; its learning rate is set before each update."""
    decaying = decaying_weights(model)
    groups: list[dict[str, Any]] = [
        {"params": [weight for name, weight in model.trainable.items() if name in decaying]},
        {"params": [weight for name, weight in model.trainable.items() if name not in decaying], "weight_decay": 0.0},
    ]
    return AdamW(
        [group for group in groups if group["params"]],
        lr=settings.learning_rate,
        betas=(settings.adam_beta1, settings.adam_beta2),
        eps=settings.adam_epsilon,
        weight_decay=settings.weight_decay,
        fused=True,
    )


def decaying_weights(model: TunedModel) -> frozenset[str]:
    """Names of the trained matrices: not biases, norms or embeddings, nor a head that is tied to them."""
    embeddings = {id(module.weight) for module in model.network.modules() if isinstance(module, nn.Embedding)}
    return frozenset(
        name for name, weight in model.trainable.items() if weight.ndim >= 2 and id(weight) not in embeddings
    )
