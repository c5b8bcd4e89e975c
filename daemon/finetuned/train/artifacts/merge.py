"""An adapter merged into its base: a model that stands alone, in the base's own 16 bits, never in quantized weights."""

import shutil
from pathlib import Path
from typing import Any

from safetensors import safe_open

from finetuned.core.plan import RunPlan
from finetuned.core.problems import StageFailed
from finetuned.train.artifacts.save import save_model, untie
from finetuned.train.model.tokens import embeddings_of

_NOT_COPIED = ("README.md", "adapter_config.json", "adapter_model.safetensors")


def merge_adapter(plan: RunPlan, adapter: Path, into: Path) -> dict[str, str]:
    """Load the base anew in main memory, as it is stored, merge `adapter` by PEFT's own code and write the whole model.

    The folder gets the adapter's tokenizer, template and generation settings. Returns the digest of each weight.
    Raises StageFailed (no retry) for a base that is stored quantized, and for weights that become infinite.
    """
    from peft import PeftModel
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    if getattr(AutoConfig.from_pretrained(plan.model.path), "quantization_config", None):
        raise StageFailed(
            f"{plan.model.name} is stored quantized; merging into rounded weights would lose the tuning",
            retry=False,
            hint="name the 16-bit model as base_model (finetuning_type: qlora quantizes it), or leave out export.merge",
        )
    base = AutoModelForCausalLM.from_pretrained(plan.model.path, dtype="auto", local_files_only=True)
    dtype = base.dtype
    if _changes_embeddings(base, adapter):
        # One tensor for both would change the embedding with the head; they are tied again where they turn out equal.
        untie(base)
    tokenizer = AutoTokenizer.from_pretrained(adapter)
    is_grown = bool(plan.added_tokens or plan.added_special_tokens)
    if is_grown and len(tokenizer) > base.get_input_embeddings().weight.shape[0]:
        base.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    try:
        merged = PeftModel.from_pretrained(base, adapter).merge_and_unload(safe_merge=True)
    except ValueError as error:
        raise StageFailed(f"the adapter cannot be merged: {error}", retry=False) from error
    merged.generation_config = GenerationConfig.from_pretrained(adapter)
    shutil.rmtree(into, ignore_errors=True)
    digests = save_model(plan, merged, tokenizer, into, dtype)
    for file in adapter.iterdir():
        if file.is_file() and file.name not in _NOT_COPIED:
            shutil.copyfile(file, into / file.name)
    return digests


def _changes_embeddings(base: Any, adapter: Path) -> bool:
    """Whether the adapter changes embedding or head, other than by rows of new tokens, which PEFT keeps tied itself."""
    with safe_open(adapter / "adapter_model.safetensors", "pt") as weights:
        changed = [name for name in weights.keys() if "token_adapter" not in name]  # noqa: SIM118 - not a mapping
    return any(f".{embedding}." in name for embedding in embeddings_of(base) for name in changed)
