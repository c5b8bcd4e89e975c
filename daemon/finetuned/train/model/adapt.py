"""What of the base model is trained: a LoRA adapter, or all of it."""

from typing import Any

import torch
from peft import LoraConfig, TaskType, get_peft_model
from torch import nn

from finetuned.core.plan import FullTuning, LoraTuning, RunPlan
from finetuned.core.problems import StageFailed
from finetuned.train.model.tuned import TunedModel


def adapt(base: Any, plan: RunPlan, device: torch.device) -> TunedModel:
    """The base model with its trained part, on `device`, in training mode. Draws from torch's randomness.

    Raises StageFailed (no retry) where nothing in the model answers to lora_target_modules.
    """
    match plan.tuning:
        case LoraTuning() as tuning:
            network = _with_lora(base, tuning)
        case FullTuning():
            network = base
            network.requires_grad_(True)
    if plan.gradient_checkpointing:
        # Called activation_checkpointing_enable from transformers 5.23 on; this name works in all of 5.
        base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    network.to(device).train()
    trainable = {name: weight for name, weight in network.named_parameters() if weight.requires_grad}
    return TunedModel(network, trainable, device, plan.precision)


def _with_lora(base: Any, tuning: LoraTuning) -> Any:
    targets = tuning.target_modules if isinstance(tuning.target_modules, str) else list(tuning.target_modules)
    config = LoraConfig(
        r=tuning.r,
        lora_alpha=tuning.alpha,
        lora_dropout=tuning.dropout,
        target_modules=targets,
        bias="none",
        task_type=TaskType.CAUSAL_LM,
    )
    try:
        return get_peft_model(base, config)
    except ValueError as error:
        linear = sorted({name.rsplit(".", 1)[-1] for name, module in base.named_modules() if type(module) is nn.Linear})
        raise StageFailed(
            f"no adapter fits lora_target_modules {tuning.target_modules!r}: {str(error).splitlines()[0]}",
            retry=False,
            hint=f"this model's linear layers are {', '.join(linear)}; all-linear takes all but the head",
        ) from error
