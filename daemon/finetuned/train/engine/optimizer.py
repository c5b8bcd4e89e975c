"""AdamW over groups of weights: what decays and what does not, and LoRA+'s faster matrices.

A group's `lr_factor` says how many times the schedule's learning rate it learns at.
"""

from collections.abc import Iterable
from typing import Any

import bitsandbytes
import torch
from torch import nn
from torch.optim import AdamW

from finetuned.core.plan import Optimizer
from finetuned.train.model.tuned import TunedModel


def build_optimizer(model: TunedModel, settings: Optimizer) -> torch.optim.Optimizer:
    """Fused AdamW, or one of bitsandbytes'; its learning rates are set before each update."""
    groups = list(_groups(model, settings))
    common: dict[str, Any] = {
        "lr": settings.learning_rate,
        "betas": (settings.adam_beta1, settings.adam_beta2),
        "eps": settings.adam_epsilon,
        "weight_decay": settings.weight_decay,
    }
    if settings.optim == "adamw_torch":
        return AdamW(groups, **common, fused=True)
    optimizer: torch.optim.Optimizer = _BlockwiseAdamW(groups, **common, is_paged=is_paged(settings, model.device))
    return optimizer


def is_paged(settings: Optimizer, device: torch.device) -> bool:
    """Whether the states move between the memories of GPU and host; on a CPU there is nothing to move."""
    return settings.optim.startswith("paged") and device.type == "cuda"


def _groups(model: TunedModel, settings: Optimizer) -> Iterable[dict[str, Any]]:
    decaying = decaying_weights(model)
    bits = 8 if settings.optim.endswith("8bit") else 32
    for decays in (True, False):
        for is_fast in (False, True):
            weights = [
                weight
                for name, weight in model.trainable.items()
                if (name in decaying) == decays and _is_b_matrix(name) == is_fast
            ]
            if weights:
                yield {
                    "params": weights,
                    "weight_decay": settings.weight_decay if decays else 0.0,
                    "lr_factor": settings.loraplus_lr_ratio if is_fast else 1.0,
                    # As in transformers' Trainer, embeddings keep fp32 states.
                    "optim_bits": bits if decays else 32,
                }


def _is_b_matrix(name: str) -> bool:
    """LoRA+ makes B matrices learn faster; not those on embeddings, to which it gives a small rate of their own."""
    return ".lora_B." in name


def decaying_weights(model: TunedModel) -> frozenset[str]:
    """Names of the trained matrices: not biases, norms or embeddings or rows of them, nor a head tied to them."""
    embeddings = {id(module.weight) for module in model.network.modules() if isinstance(module, nn.Embedding)}
    return frozenset(
        name
        for name, weight in model.trainable.items()
        if weight.ndim >= 2 and id(weight) not in embeddings and "trainable_tokens_delta" not in name
    )


class _BlockwiseAdamW(bitsandbytes.optim.AdamW):  # type: ignore[misc]  # bitsandbytes is untyped
    """A group's `optim_bits` count for its weights; those below 4,096 elements have fp32 states in any case."""

    def get_config(self, gindex: int, pindex: int, group: dict[str, Any]) -> dict[str, Any]:
        # Not through bitsandbytes' own register of exceptions, which is one for the process and goes by id().
        config: dict[str, Any] = super().get_config(gindex, pindex, group)
        return config | {"optim_bits": group["optim_bits"]}
