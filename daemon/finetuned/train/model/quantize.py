"""The frozen base held in 4 or 8 bits by bitsandbytes, on a GPU or a CPU.

Linear layers are quantized, but for the head; it, the embeddings and the norms stay as the plan's precision says. They
are not cast to fp32 as PEFT's prepare_model_for_kbit_training does: that doubles what embeddings and head take, norms
compute in fp32 anyway, and adapters are fp32 without it.
"""

from typing import Any

import torch
from bitsandbytes.nn import Linear4bit, Linear8bitLt
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig
from transformers.quantizers.base import get_keys_to_not_convert

from finetuned.core.plan import LoraTuning, Quantization, RunPlan
from finetuned.core.problems import StageFailed


def quantization_of(plan: RunPlan) -> Quantization | None:
    return plan.tuning.quantization if isinstance(plan.tuning, LoraTuning) else None


def quantized_loading(plan: RunPlan, device: torch.device) -> dict[str, Any]:
    """What from_pretrained must be told to quantize the plan's base while loading it; nothing where it is not to.

    Raises StageFailed (no retry) for DoRA on 8 bits: on a CPU, PEFT 0.21 then loses the scales of the base's weights
    after the first forward pass, in training and for whoever loads the adapter.
    """
    quantization = quantization_of(plan)
    if quantization is None:
        return {}
    if quantization.kind == "int8" and isinstance(plan.tuning, LoraTuning) and plan.tuning.use_dora:
        raise StageFailed(
            "use_dora on a base in 8 bits makes an adapter that breaks off once it is loaded again on a CPU",
            retry=False,
            hint="write load_in_4bit: true, or train an adapter without DoRA",
        )
    # Loaded where it stays: a model of 8 bits refuses to be moved, and quantizing happens on the device.
    return {"quantization_config": _config(plan, quantization), "device_map": {"": str(device)}}


def misshapen_weights(model: Any) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """Name, stored and expected shape of quantized weights of another shape than their layer: transformers 5.24 does
    not compare those."""
    found: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = []
    for name, module in model.named_modules():
        if isinstance(module, Linear4bit | Linear8bitLt):
            state = getattr(module.weight, "quant_state", None)
            stored, expected = tuple((state or module.weight).shape), (module.out_features, module.in_features)
            if stored != expected:
                found.append((f"{name}.weight", stored, expected))
    return found


def keep_trainable(model: Any) -> None:
    """Work around what bitsandbytes 0.50 does to quantized weights between steps."""
    for module in model.modules():
        if isinstance(module, Linear4bit):
            # On a CPU with AVX512-BF16, 4-bit weights are re-packed for inference in the first forward pass in
            # evaluation mode. That form has no backward pass: most adapters would go without gradients from then on.
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
