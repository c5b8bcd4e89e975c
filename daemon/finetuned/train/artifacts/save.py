"""Weights, configuration, tokenizer and generation settings, written so that plain transformers and PEFT load them."""

import json
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetuned.core.plan import FreezeTuning, RunPlan
from finetuned.train.artifacts.samples import pad_of, stops_of
from finetuned.train.report.model_card import hub_name

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_SHARD_SIZE = "5GB"


def save_adapter(plan: RunPlan, model: Any, folder: Path) -> None:
    """The adapter of a PeftModel; its configuration names the base by hub name and revision, else by its folder."""
    from peft import PeftConfig

    # While saving, PEFT looks at the base's config: it must find the local folder, not ask the hub.
    model.peft_config[model.active_adapter].base_model_name_or_path = plan.model.path
    model.save_pretrained(str(folder), save_embedding_layers=False)
    config = PeftConfig.from_pretrained(str(folder))
    config.base_model_name_or_path = hub_name(plan.model) or plan.model.path
    config.revision = plan.model.revision
    config.save_pretrained(str(folder))


def adapter_weights(model: Any) -> "dict[str, Tensor]":
    """What `save_adapter` writes. Rows of new tokens are in it by themselves, without the embeddings they belong to."""
    from peft import get_peft_model_state_dict

    found: dict[str, Tensor] = get_peft_model_state_dict(model, save_embedding_layers=False)
    return found


def save_model(plan: RunPlan, model: Any, tokenizer: Any, folder: Path, dtype: "torch.dtype") -> dict[str, str]:
    """A whole model in `dtype`, with its base's configuration and what training changed of it.

    Where embedding and head differ, both are written and the configuration says that they are not tied. Returns the
    digest of each parameter (proof.py). Raises StageFailed (no retry) for a weight that is not finite.
    """
    from finetuned.train.artifacts.proof import digests_of, require_finite

    is_tied = _is_tied(plan, model)
    model.config.tie_word_embeddings = is_tied
    weights = _in_dtype(model, dtype, is_tied)
    weights |= {name: weight for name, weight in _never_touched(plan, model, dtype).items() if name in weights}
    require_finite(weights)
    model.generation_config = generation_settings(plan, model, tokenizer)
    model.save_pretrained(folder, state_dict=weights, max_shard_size=_SHARD_SIZE)
    config = _configuration(plan, model, tokenizer, dtype, is_tied)
    config.save_pretrained(folder)
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return digests_of(((name, weight) for name, weight in weights.items() if name in parameters), dtype)


def save_tokenizer(plan: RunPlan, model: Any, tokenizer: Any, folder: Path) -> None:
    """Tokenizer with the template that was trained on, and generation settings that stop where training stopped."""
    tokenizer = deepcopy(tokenizer)
    tokenizer.chat_template = plan.data.chat_template or tokenizer.chat_template
    tokenizer.save_pretrained(folder)
    generation_settings(plan, model, tokenizer).save_pretrained(folder)


def generation_settings(plan: RunPlan, model: Any, tokenizer: Any) -> Any:
    settings = deepcopy(model.generation_config)
    settings.eos_token_id = stops_of(plan, tokenizer) or None
    settings.pad_token_id = pad_of(plan, model, tokenizer)
    # Else a loader may take them for a copy of the model's configuration and derive them anew, without these stops.
    settings._from_model_config = False
    try:
        settings.validate(strict=True)
    except ValueError:
        # Many bases set a temperature and forget do_sample; transformers then refuses to save what it has loaded.
        settings.do_sample = True
    return settings


def stored_dtype(folder: Path) -> str:
    """Of the weights in an exported folder, as in "bfloat16"."""
    from safetensors import safe_open

    adapter = folder / "adapter_model.safetensors"
    if not adapter.exists():
        return str(json.loads((folder / "config.json").read_bytes())["dtype"])
    with safe_open(adapter, "pt") as weights:
        return str(weights.get_tensor(next(iter(weights.keys()))).dtype).removeprefix("torch.")


def untie(model: Any) -> None:
    """Give the head weights of its own, so that changing it leaves the embedding as it is, and the other way round."""
    import torch

    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if head is not None and head.weight.data_ptr() == embedding.weight.data_ptr():
        head.weight = torch.nn.Parameter(head.weight.detach().clone(), requires_grad=head.weight.requires_grad)
    model.config.tie_word_embeddings = False


def _is_tied(plan: RunPlan, model: Any) -> bool:
    """Whether the base's configuration ties head and embedding, and they hold the same numbers."""
    import torch

    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if head is None or not getattr(_base_config(plan, model), "tie_word_embeddings", False):
        return False
    return head.weight.shape == embedding.weight.shape and torch.equal(head.weight, embedding.weight)


def _base_config(plan: RunPlan, model: Any) -> Any:
    """The configuration in the base's folder; of a model for several kinds of input the part that is this one."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(plan.model.path)
    return config if type(config) is type(model.config) else config.get_text_config()


def _in_dtype(model: Any, dtype: "torch.dtype", is_tied: bool) -> "dict[str, Tensor]":
    """The model's weights on the CPU; what shares memory there shares it here, and tied weights are there once."""
    found: dict[str, Tensor] = {}
    casts: dict[tuple[int, tuple[int, ...]], Tensor] = {}
    left_out = set(model.get_expanded_tied_weights_keys(all_submodels=True)) if is_tied else set()
    for name, weight in model.state_dict().items():
        if name in left_out:
            continue
        key = (weight.data_ptr(), tuple(weight.shape))
        if key not in casts:
            casts[key] = weight.detach().to("cpu", dtype if weight.is_floating_point() else weight.dtype)
        found[name] = casts[key]
    return found


def _never_touched(plan: RunPlan, model: Any, dtype: "torch.dtype") -> "dict[str, Tensor]":
    """Weights that stayed frozen and that a run in bf16 holds rounded, as the base's own files have them."""
    import torch
    from transformers import AutoModelForCausalLM

    is_rounded = plan.precision == "bf16" and dtype != torch.bfloat16
    if not (isinstance(plan.tuning, FreezeTuning) and is_rounded):
        return {}
    frozen = {name for name, weight in model.named_parameters(remove_duplicate=False) if not weight.requires_grad}
    base = AutoModelForCausalLM.from_pretrained(plan.model.path, dtype=dtype, local_files_only=True)
    return {name: weight for name, weight in base.state_dict().items() if name in frozen}


def _configuration(plan: RunPlan, model: Any, tokenizer: Any, dtype: "torch.dtype", is_tied: bool) -> Any:
    """The base's own: what training changed in memory (cache, dtype) is none of the user's business."""
    config = _base_config(plan, model)
    config.dtype = dtype
    config.architectures = [type(model).__name__]
    config.tie_word_embeddings = is_tied
    config.vocab_size = model.get_input_embeddings().weight.shape[0]
    stops = stops_of(plan, tokenizer)
    config.eos_token_id = stops[0] if len(stops) == 1 else (stops or None)
    config.pad_token_id = pad_of(plan, model, tokenizer)
    return config
