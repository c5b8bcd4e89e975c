"""What of the base model is trained: a LoRA adapter, the weights that patterns name, or all of it."""

import re
from collections.abc import Sequence
from typing import Any

import torch

from finetuned.core.plan import FreezeTuning, FullTuning, LoraTuning, RunPlan
from finetuned.core.problems import StageFailed
from finetuned.train.model.lora import with_lora
from finetuned.train.model.quantize import quantization_of
from finetuned.train.model.tokens import embeddings_of
from finetuned.train.model.tuned import TunedModel

_NAMES_SHOWN = 6


def adapt(base: Any, plan: RunPlan, device: torch.device, new_tokens: Sequence[int] = ()) -> TunedModel:
    """The base model with its trained part, in fp32, on `device`, in training mode. Draws from torch's randomness.

    `new_tokens`: ids whose embeddings are trained whatever else is. Raises StageFailed (no retry) where the tuning does
    not fit the model.
    """
    match plan.tuning:
        case LoraTuning() as tuning:
            network = with_lora(base, tuning, new_tokens)
        case FreezeTuning() as tuning:
            network = base
            _unfreeze(network, tuning, new_tokens)
        case FullTuning():
            network = base
            network.requires_grad_(True)
    if plan.gradient_checkpointing:
        # Called activation_checkpointing_enable from transformers 5.23 on; this name works in all of 5.
        base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    trainable = {name: weight for name, weight in network.named_parameters() if weight.requires_grad}
    for weight in trainable.values():
        # Parts of the base that are trained come in its type; a checkpoint must give back what was trained.
        weight.data = weight.data.float()
    if quantization_of(plan) is None:
        network.to(device)
    network.train()
    return TunedModel(network, trainable, device, plan.precision)


def _unfreeze(network: Any, tuning: FreezeTuning, new_tokens: Sequence[int]) -> None:
    """Train the weights that the patterns name, and the embeddings where they have new rows."""
    network.requires_grad_(False)
    weights = dict(network.named_parameters(remove_duplicate=False))  # Tied ones under each of their names.
    for pattern in tuning.unfrozen_parameters:
        found = [name for name in weights if re.search(pattern, name)]
        if not found:
            raise _matches_nothing(pattern, list(weights))
        for name in found:
            weights[name].requires_grad_(True)
    for module in embeddings_of(network).values() if new_tokens else ():
        module.weight.requires_grad_(True)


def _matches_nothing(pattern: str, names: Sequence[str]) -> StageFailed:
    shown = [name for name in names if re.search(r"\.0\.", name)][:_NAMES_SHOWN] or names[:_NAMES_SHOWN]
    return StageFailed(
        f"unfrozen_parameters: {pattern!r} is found in none of the {len(names)} names of this model's weights",
        retry=False,
        hint=f"they are such as {', '.join(shown)}, {names[-1]}",
    )
