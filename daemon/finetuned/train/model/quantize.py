"""The frozen base held in 4 or 8 bits by bitsandbytes, on a GPU or a CPU.

Linear layers are quantized, but for the head; it, the embeddings and the norms stay as the plan's precision says. They
are not cast to fp32 as PEFT's prepare_model_for_kbit_training does: that doubles what embeddings and head take, norms
compute in fp32 anyway, and adapters are fp32 without it.
"""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig
from transformers.quantizers.base import get_keys_to_not_convert

from finetuned.core.plan import LoraTuning, Quantization, RunPlan


def quantization_of(plan: RunPlan) -> Quantization | None:
    return plan.tuning.quantization if isinstance(plan.tuning, LoraTuning) else None


def quantized_loading(plan: RunPlan, device: torch.device) -> dict[str, Any]:
    """What from_pretrained must be told to quantize the plan's base while loading it; nothing where it is not to."""
    quantization = quantization_of(plan)
    if quantization is None:
        return {}
    # Loaded where it stays: a model of 8 bits refuses to be moved, and quantizing happens on the device.
    return {"quantization_config": _config(plan, quantization), "device_map": {"": str(device)}}


def keep_trainable(model: Any) -> None:
    """Keep bitsandbytes from re-packing 4-bit weights for inference when the model evaluates between steps.

    On a CPU with AVX512-BF16, bitsandbytes 0.50 does so in the first forward pass in evaluation mode; the packed form
    has no backward pass, and training that goes on with it would leave most adapters without gradients.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def _config(plan: RunPlan, quantization: Quantization) -> BitsAndBytesConfig:
    kept = _kept_modules(plan)
    if quantization.kind == "int8":
        return BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=kept)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        llm_int8_skip_modules=kept,
        bnb_4bit_quant_type=quantization.kind,
        bnb_4bit_use_double_quant=quantization.double_quant,
        bnb_4bit_compute_dtype=torch.bfloat16 if plan.precision == "bf16" else torch.float32,
    )


def _kept_modules(plan: RunPlan) -> list[str] | None:
    """What is not quantized: the head (None: as transformers finds it), and what is trained whole."""
    trained = plan.tuning.modules_to_save if isinstance(plan.tuning, LoraTuning) else ()
    if not trained:
        return None
    with torch.device("meta"):
        shell = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(plan.model.path, local_files_only=True))
    return [*get_keys_to_not_convert(shell), *trained]
