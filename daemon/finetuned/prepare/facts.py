"""What prepare finds out about a base model, from its small files and the headers of its weights."""

import contextlib
import json
import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from finetuned.core.plan import ModelFacts, ModelFile
from finetuned.core.problems import StageFailed

_MAX_HEADER_BYTES = 100 << 20  # safetensors' own limit
_UNLIMITED_POSITIONS = 1 << 20  # Of models whose config names no limit (ALiBi, state spaces).


@dataclass(frozen=True)
class _Tensor:
    name: str
    parameters: int
    size_bytes: int


def read_config(folder: Path) -> Any:
    """The model's config as transformers reads it, with the defaults of its class. Raises StageFailed (no retry)."""
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # A config is a stranger's file, and its class checks it in its own ways.
        why = " ".join(str(error).split())[:300] or type(error).__name__
        raise StageFailed(f"{folder}/config.json cannot be used: {why}", retry=False) from error
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise StageFailed(
            f"{folder} is a {config.model_type} model, and finetuned tunes causal language models",
            retry=False,
            hint="choose a text model such as Llama, Qwen, Mistral, Gemma or SmolLM",
        )
    if quantized := getattr(config, "quantization_config", None):
        kind = quantized.get("quant_method", "quantized") if isinstance(quantized, dict) else "quantized"
        raise StageFailed(
            f"{folder} holds weights that are quantized ({kind}), which cannot be trained",
            retry=False,
            hint="use the model as it was published before quantization",
        )
    return config


def model_facts(
    name: str, folder: Path, revision: str | None, config: Any, files: tuple[ModelFile, ...], weights: Iterable[str]
) -> ModelFacts:
    """ModelFacts of a folder. Raises StageFailed (no retry) for weight files that are cut off or damaged."""
    text = config.get_text_config()
    tensors = {tensor.name: tensor for shard in weights for tensor in _read_header(folder / shard)}
    tied = bool(getattr(text, "tie_word_embeddings", False)) or not any("lm_head" in tensor for tensor in tensors)
    counted = [tensor for tensor in tensors.values() if not (tied and tensor.name == "lm_head.weight")]
    return ModelFacts(
        name=name,
        path=str(folder),
        revision=revision,
        files=files,
        architecture=(config.architectures or [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]])[0],
        parameters=sum(tensor.parameters for tensor in counted),
        weight_bytes=sum(tensor.size_bytes for tensor in counted),
        vocab_size=text.vocab_size,
        hidden_size=text.hidden_size,
        layers=text.num_hidden_layers,
        max_position_embeddings=positions_of(config),
        tied_embeddings=tied,
    )


def positions_of(config: Any) -> int:
    """The most tokens that the model can place."""
    return getattr(config.get_text_config(), "max_position_embeddings", None) or _UNLIMITED_POSITIONS


def stop_token_ids(folder: Path, config: Any, tokenizer: Any, ends_of_turns: Iterable[int]) -> tuple[int, ...]:
    """What generation must stop on, ascending: the model's ends of sequence, the tokenizer's, the template's turns'."""
    found = {*ends_of_turns, tokenizer.eos_token_id, *_ids(config.get_text_config().eos_token_id)}
    with contextlib.suppress(OSError, ValueError, AttributeError):  # A model need not have one.
        found |= _ids(json.loads((folder / "generation_config.json").read_bytes()).get("eos_token_id"))
    return tuple(sorted(found - {None}))


def _ids(value: Any) -> set[int]:
    """Nothing of what is no token id: generation_config.json is a stranger's file."""
    return {each for each in (value if isinstance(value, list) else [value]) if isinstance(each, int)}


def _read_header(path: Path) -> list[_Tensor]:
    try:
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > _MAX_HEADER_BYTES:
                raise ValueError(f"its header claims {length:,} bytes")
            header = json.loads(file.read(length))
        tensors = [
            (_Tensor(name, math.prod(entry["shape"]), entry["data_offsets"][1] - entry["data_offsets"][0]), entry)
            for name, entry in header.items()
            if name != "__metadata__"
        ]
        expected = 8 + length + max((entry["data_offsets"][1] for _, entry in tensors), default=0)
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StageFailed(f"{path} is not a readable safetensors file: {error}", retry=False) from error
    if path.stat().st_size < expected:
        raise StageFailed(
            f"{path} is cut off: it has {path.stat().st_size:,} of {expected:,} bytes",
            retry=False,
            hint="copy or download it again",
        )
    return [tensor for tensor, _ in tensors]
