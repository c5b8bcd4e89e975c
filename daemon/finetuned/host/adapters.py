"""A folder with an adapter to go on from, looked at in milliseconds."""

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetuned.host.paths import Unusable, look_at, not_readable, require_file

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")

_STARTS_BESIDE_THE_BASE = (True, False, None, "gaussian", "orthogonal", "eva")
_PLAIN = {"bias": ("none", None), "task_type": ("CAUSAL_LM", None), "init_lora_weights": _STARTS_BESIDE_THE_BASE}
_MUST_BE_EMPTY = (
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "layer_replication",
    "lora_bias",
    "monteclora_config",
    "target_parameters",
    "use_bdlora",
    "use_qalora",
    "velora_config",
)
"""Kinds of LoRA that compute something else, or train something else. What PEFT knows beside these carries over:
rank_pattern, alpha_pattern, layers_to_transform, exclude_modules, trainable_token_indices."""


@dataclass(frozen=True)
class EarlierAdapter:
    """adapter_config.json, as far as others need to know."""

    base_model: str
    r: int
    alpha: int
    target_modules: str | tuple[str, ...]
    """A list in alphabetical order: PEFT writes it in another one each time."""
    use_dora: bool
    use_rslora: bool
    modules_to_save: tuple[str, ...]
    has_new_tokens: bool
    fan_in_fan_out: bool


def read_adapter(folder: Path) -> EarlierAdapter:
    """Raises Unusable unless `folder` holds a LoRA adapter that can be read, and gone on from as it is."""
    if not stat.S_ISDIR(look_at(folder).st_mode):
        raise Unusable(f"{folder} is not a folder", f"name the folder that holds {' and '.join(ADAPTER_FILES)}")
    if not os.access(folder, os.R_OK | os.X_OK, effective_ids=True):
        raise Unusable(*not_readable(folder))
    if not (folder / "adapter_config.json").exists():
        if (folder / "config.json").exists():
            raise Unusable(f"{folder} is a whole model, not an adapter", "name it as base_model to tune it further")
        raise Unusable(f"{folder} is not an adapter: it has no adapter_config.json", _where_it_is(folder))
    if not (folder / "adapter_model.safetensors").exists() and (folder / "adapter_model.bin").exists():
        raise Unusable(
            f"{folder} has its weights only as a pickle (.bin), which could run code when loaded",
            "convert it once: PeftModel.from_pretrained(BASE, OLD).save_pretrained(NEW)",
        )
    for name in ADAPTER_FILES:
        require_file(folder / name, "a file of the adapter")
    return _checked(folder / "adapter_config.json")


def _where_it_is(folder: Path) -> str:
    """Artifacts of a job hold the adapter one level down."""
    inner = folder / "adapter"
    return f"did you mean {inner}?" if (inner / "adapter_config.json").exists() else ""


def _checked(path: Path) -> EarlierAdapter:
    try:
        config: dict[str, Any] = dict(json.loads(path.read_bytes()))
        kind = config["peft_type"]
        if kind != "LORA":
            raise Unusable(f"{path.parent} is a {kind} adapter, and finetuned goes on from LoRA (peft_type: LORA)")
        _refuse_other_kinds(path.parent, config)
        targets = config["target_modules"]
        return EarlierAdapter(
            base_model=str(config.get("base_model_name_or_path") or ""),
            r=int(config["r"]),
            alpha=round(config["lora_alpha"]),
            target_modules=targets if isinstance(targets, str) else tuple(sorted(map(str, targets))),
            use_dora=bool(config.get("use_dora")),
            use_rslora=bool(config.get("use_rslora")),
            modules_to_save=tuple(map(str, config.get("modules_to_save") or ())),
            has_new_tokens=bool(config.get("trainable_token_indices")),
            fan_in_fan_out=bool(config.get("fan_in_fan_out")),
        )
    except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
        raise Unusable(f"{path} cannot be read: {type(error).__name__}: {error}") from error


def _refuse_other_kinds(folder: Path, config: dict[str, Any]) -> None:
    odd = [f"{key}: {config[key]}" for key, plain in _PLAIN.items() if config.get(key, plain[0]) not in plain]
    odd += [key for key in _MUST_BE_EMPTY if config.get(key)]
    if odd:
        raise Unusable(
            f"{folder} is a LoRA of a kind that cannot be gone on from: its adapter_config.json says {', '.join(odd)}",
            "merge it into its base model, and name the result as base_model",
        )
