"""LoRA adapters and their kin on a frozen base, new or taken over from an earlier job."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, TaskType, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from safetensors.torch import load_file
from torch import nn

from finetuned.core.plan import AdapterFacts, LoraTuning
from finetuned.core.problems import StageFailed
from finetuned.train.model.tokens import embeddings_of


def with_lora(base: Any, tuning: LoraTuning, new_tokens: Sequence[int]) -> Any:
    """`base`, frozen, inside a PeftModel that trains an adapter, and of its embeddings the rows `new_tokens`.

    New rows are PEFT's trainable_token_indices: a plain AutoPeftModelForCausalLM puts them back whatever it fills its
    own new rows with, tied or not, and neither optimizer nor checkpoint holds the rest of the embeddings. An embedding
    that modules_to_save names is trained whole instead.
    Raises StageFailed (no retry) where the adapter does not fit the base.
    """
    rows = _trained_rows(base, tuning, new_tokens)
    earlier = tuning.init_adapter
    config = _config(tuning, rows) if earlier is None else _earlier_config(tuning, earlier, rows)
    try:
        network = get_peft_model(base, config)
    except (TypeError, ValueError) as error:
        raise _does_not_fit(base, tuning, str(error).splitlines()[0]) from error
    _require_whole_modules(network, config.modules_to_save or ())
    if earlier is not None:
        _go_on_from(network, Path(earlier.path))
    return network


def require_embeddings_that_load(network: Any, tokens: int) -> None:
    """Raises StageFailed (no retry) where an adapter of `network` changes embeddings that have no row for each of the
    tokenizer's `tokens`: whoever loads it by AutoPeftModelForCausalLM has them grown, and it fits no more."""
    changed = {
        name: module.weight.shape[0]
        for name, module in embeddings_of(network.get_base_model()).items()
        if isinstance(module, AuxiliaryTrainingWrapper | BaseTunerLayer)
    }
    for name, rows in changed.items():
        if rows < tokens:
            raise StageFailed(
                f"the adapter is to change {name}, which has {rows:,} rows, and the tokenizer has {tokens:,} tokens: "
                "nobody could load it again",
                retry=False,
                hint="leave the embeddings out of modules_to_save and lora_target_modules, or prepare the base model "
                "with resize_token_embeddings(len(tokenizer)) and save_pretrained first",
            )


def _config(tuning: LoraTuning, rows: dict[str, list[int]] | None) -> LoraConfig:
    return LoraConfig(
        r=tuning.r,
        lora_alpha=tuning.alpha,
        lora_dropout=tuning.dropout,
        target_modules=tuning.target_modules if isinstance(tuning.target_modules, str) else list(tuning.target_modules),
        use_dora=tuning.use_dora,
        use_rslora=tuning.use_rslora,
        init_lora_weights=True if tuning.init_lora_weights == "default" else tuning.init_lora_weights,
        modules_to_save=list(tuning.modules_to_save) or None,
        trainable_token_indices=rows,
        bias="none",
        task_type=TaskType.CAUSAL_LM,
    )


def _earlier_config(tuning: LoraTuning, adapter: AdapterFacts, rows: dict[str, list[int]] | None) -> LoraConfig:
    """The earlier adapter's own configuration, whatever else it says; of the plan only the dropout."""
    config = LoraConfig.from_pretrained(adapter.path)
    config.inference_mode = False
    config.base_model_name_or_path = None
    config.lora_dropout = tuning.dropout
    # Its weights are all taken over; how they once began is of no matter.
    config.init_lora_weights = True
    if config.trainable_token_indices and config.trainable_token_indices != rows:
        raise StageFailed(
            f"the adapter in {adapter.path} was trained with new tokens ({config.trainable_token_indices}), "
            f"and this job adds {rows or 'none'}",
            retry=False,
            hint="name the same added_tokens and added_special_tokens, in the same order, as the job that made it",
        )
    config.trainable_token_indices = rows
    return config


def _trained_rows(base: Any, tuning: LoraTuning, new_tokens: Sequence[int]) -> dict[str, list[int]] | None:
    if not new_tokens:
        return None
    embeddings = embeddings_of(base)
    rows = {name: module for name, module in embeddings.items() if not any(map(name.endswith, tuning.modules_to_save))}
    is_tied = len({id(module.weight) for module in embeddings.values()}) < len(embeddings)
    if is_tied and 0 < len(rows) < len(embeddings):
        # PEFT 0.21 would tie the rows of one to the other, which is another matrix by now.
        raise StageFailed(
            f"modules_to_save: in this model {' and '.join(embeddings)} are tied, and there are new tokens",
            retry=False,
            hint="name both of them, or neither",
        )
    # Of tied embeddings PEFT makes the second follow the first.
    names = {id(module.weight): name for name, module in reversed(rows.items())}.values()
    return {name: list(new_tokens) for name in names} or None


def _require_whole_modules(network: Any, modules_to_save: Sequence[str]) -> None:
    wrapped = [name for name, module in network.named_modules() if isinstance(module, AuxiliaryTrainingWrapper)]
    for wanted in modules_to_save:
        if not any(name.endswith(wanted) for name in wrapped):
            there = sorted({name.rsplit(".", 1)[-1] for name, _ in network.get_base_model().named_modules() if name})
            raise StageFailed(
                f"modules_to_save: this model has no module {wanted!r}",
                retry=False,
                hint=f"its modules are {', '.join(name for name in there if not name.isdigit())}",
            )


def _go_on_from(network: Any, folder: Path) -> None:
    """Set the weights of an earlier adapter. Raises StageFailed (no retry) where one is missing, odd or left over."""
    earlier = load_file(folder / "adapter_model.safetensors")
    own = get_peft_model_state_dict(network, save_embedding_layers=False)
    # New tokens that it did not know begin as they would in a new adapter.
    earlier |= {name: weight for name, weight in own.items() if name not in earlier and "token_adapter" in name}
    if odd := _differences(earlier, own):
        raise StageFailed(
            f"the adapter in {folder} does not fit this base model: {len(odd)} weights differ, among them {odd[0]}",
            retry=False,
            hint="init_adapter needs the base model that the adapter was trained on",
        )
    set_peft_model_state_dict(network, earlier)


def _differences(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> list[str]:
    names = sorted(found.keys() | expected.keys())
    shapes = {name: [_shape(weights.get(name)) for weights in (found, expected)] for name in names}
    return [f"{name} ({has} is stored, {needs} expected)" for name, (has, needs) in shapes.items() if has != needs]


def _shape(weight: torch.Tensor | None) -> str:
    return "nothing" if weight is None else str(list(weight.shape))


def _does_not_fit(base: Any, tuning: LoraTuning, why: str) -> StageFailed:
    linear = sorted({name.rsplit(".", 1)[-1] for name, module in base.named_modules() if isinstance(module, nn.Linear)})
    return StageFailed(
        f"no adapter fits lora_target_modules {tuning.target_modules!r}: {why}",
        retry=False,
        hint=f"this model's linear layers are {', '.join(linear)}; all-linear takes all but the head",
    )
