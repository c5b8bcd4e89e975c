"""Proof that the artifacts are the trained model: loaded again by plain transformers and PEFT, and compared.

Legend: V vocabulary, T tokens of one probe row.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from finetuned.core.problems import StageFailed

_EXACT = 1e-4
"""The same weights on the same device: only the order of sums may differ (fp32)."""
_ROUNDED = 0.1
"""Weights or activations rounded to bf16, added up over the layers: 0.015 measured with SmolLM2-135M, 30 layers. The
weights themselves are compared exactly; this finds a network that computes something else with them."""
_ROOM = 1.2
"""A model is moved to the GPU when this much more than its weights is free there."""


@dataclass(frozen=True)
class Proof:
    """What was compared. Differences are absolute; `largest_logit` gives their scale."""

    tensors: int
    largest_logit_difference: float
    largest_logit: float
    tolerance: float
    """Relative to the largest logit."""

    @property
    def relative_difference(self) -> float:
        return self.largest_logit_difference / self.largest_logit if self.largest_logit else 0.0


def require_finite(weights: Mapping[str, Tensor]) -> None:
    """Raise StageFailed (no retry) when a trained weight is NaN or infinite."""
    broken = [name for name, weight in weights.items() if not torch.isfinite(weight).all()]
    if broken:
        raise StageFailed(
            f"{len(broken)} of {len(weights)} trained weights are not finite, the first of them {broken[0]}",
            retry=False,
            hint="a lower learning_rate or max_grad_norm keeps training stable; "
            "a model trained in fp16 may need precision that this machine's device does not have",
        )


def prove_adapter(folder: Path, model: Any, rows: Sequence[Sequence[int]], *, computes_in_bf16: bool) -> Proof:
    """Load the adapter in `folder` beside the trained one, onto the base that is already in memory, and compare.

    Every tensor as PEFT loads it must equal the trained one bit for bit; the logits of `rows` may differ by rounding.
    The base is not loaded a second time, so a large one costs nothing. Afterwards `model` is as it was.
    Raises StageFailed (no retry).
    """
    from peft import get_peft_model_state_dict

    expected = logits_of(model, rows)
    with _must_load(folder), _beside(model, folder) as other:
        tensors = _require_equal(
            folder, get_peft_model_state_dict(model), get_peft_model_state_dict(model, adapter_name=other)
        )
        found = logits_of(model, rows)
    return _compare(folder, tensors, expected, found, _ROUNDED if computes_in_bf16 else _EXACT)


def prove_model(folder: Path, model: Any, rows: Sequence[Sequence[int]], saved_dtype: torch.dtype) -> Proof:
    """Load the model in `folder` to the CPU and compare it with the trained one.

    Every weight must equal the trained one, rounded to `saved_dtype`, bit for bit. The logits of `rows` are computed in
    fp32 by both, so they differ by that rounding alone; on the trained model's device if a second copy fits there,
    else on the CPU. Main memory holds one more fp32 copy of the model meanwhile.
    Raises StageFailed (no retry).
    """
    from transformers import AutoModelForCausalLM

    expected = logits_of(model, rows)
    with _must_load(folder):
        reloaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    trained = ((name, weight.to("cpu", saved_dtype).float()) for name, weight in model.named_parameters())
    tensors = _require_equal(folder, trained, dict(reloaded.named_parameters()))
    device = device_of(model)
    reloaded.to(device if fits_on(device, reloaded) else "cpu")
    found = logits_of(reloaded, rows)
    is_exact = saved_dtype == torch.float32 and device_of(reloaded) == device
    return _compare(folder, tensors, expected, found, _EXACT if is_exact else _ROUNDED)


def prove_tokenizer(folder: Path, tokenizer: Any, chat_template: str | None, prompts: Iterable[Sequence[int]]) -> None:
    """The tokenizer in `folder` must turn the text of `prompts` (token ids) into the same ids as the one that was
    trained with, and carry the chat template that the data was rendered with, if any. Raises StageFailed (no retry)."""
    from transformers import AutoTokenizer

    with _must_load(folder):
        reloaded = AutoTokenizer.from_pretrained(folder)
    if chat_template is not None and reloaded.chat_template != chat_template:
        raise StageFailed(f"the chat template in {folder.name}/ is not the one that was trained with", retry=False)
    for prompt in prompts:
        text = tokenizer.decode(prompt, skip_special_tokens=False)
        expected = tokenizer.encode(text, add_special_tokens=False)
        found = reloaded.encode(text, add_special_tokens=False)
        if found != expected:
            raise StageFailed(
                f"the tokenizer in {folder.name}/ reads a probe as {len(found)} other tokens than the {len(expected)} "
                f"that were trained with: {text[:60]!r}",
                retry=False,
            )


def logits_of(model: Any, rows: Sequence[Sequence[int]]) -> list[Tensor]:
    """logits_TV of every row (float32, CPU), each row alone."""
    device = device_of(model)
    return [
        model(input_ids=torch.tensor([row], device=device), use_cache=False).logits[0].float().cpu() for row in rows
    ]


def device_of(model: Any) -> torch.device:
    device: torch.device = next(model.parameters()).device
    return device


def fits_on(device: torch.device, model: Any) -> bool:
    """Whether another model of this size fits beside what is on `device`; main memory is taken to suffice."""
    if device.type != "cuda":
        return True
    free_bytes, _total = torch.cuda.mem_get_info(device)
    return _ROOM * sum(weight.numel() * weight.element_size() for weight in model.parameters()) < free_bytes


@contextmanager
def _beside(model: Any, folder: Path) -> Iterator[str]:
    """While open, `model` computes with the adapter in `folder`, under the name that is given, instead of its own."""
    own, other = model.active_adapter, "reloaded"
    try:
        # Not with low_cpu_mem_usage: over a bf16 base PEFT 0.21 then rounds the adapter it loads to bf16.
        model.load_adapter(str(folder), other, torch_device=str(device_of(model)))
        # PEFT looks at the base's config once more: in the local folder, not on the hub.
        model.peft_config[other].base_model_name_or_path = model.peft_config[own].base_model_name_or_path
        model.set_adapter(other)
        yield other
    finally:
        model.set_adapter(own)
        if other in model.peft_config:
            model.delete_adapter(other)


@contextmanager
def _must_load(folder: Path) -> Iterator[None]:
    from safetensors import SafetensorError

    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise StageFailed(
            f"what was exported to {folder.name}/ cannot be loaded again: {error}", retry=False
        ) from error


def _require_equal(
    folder: Path, trained: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]], saved: Mapping[str, Tensor]
) -> int:
    """The number of tensors, all of them equal. Takes the trained ones in turn, so that they need not exist at once."""
    pairs = trained.items() if isinstance(trained, Mapping) else trained
    seen, differing = set(), []
    for name, weight in pairs:
        seen.add(name)
        if name not in saved or not torch.equal(saved[name].cpu(), weight.cpu()):
            differing.append(name)
    differing += sorted(set(saved) - seen)
    if differing:
        raise StageFailed(
            f"{len(differing)} of {len(seen)} weights in {folder.name}/ are not the trained ones, "
            f"the first of them {differing[0]}",
            retry=False,
            hint="the disk or the file system changed what was written, or a library saves this model wrongly",
        )
    return len(seen)


def _compare(
    folder: Path, tensors: int, expected: Sequence[Tensor], found: Sequence[Tensor], tolerance: float
) -> Proof:
    proof = Proof(
        tensors=tensors,
        largest_logit_difference=_largest(a - b for a, b in zip(expected, found, strict=True)),
        largest_logit=_largest(expected),
        tolerance=tolerance,
    )
    if not math.isfinite(proof.largest_logit) or not proof.relative_difference <= tolerance:
        raise StageFailed(
            f"the model in {folder.name}/ does not answer as the trained one: logits differ by "
            f"{proof.largest_logit_difference:.4g}, the largest is {proof.largest_logit:.4g}, "
            f"at most {tolerance:.0e} of it was expected",
            retry=False,
        )
    return proof


def _largest(tensors: Iterable[Tensor]) -> float:
    """Largest absolute value; NaN as soon as there is one."""
    largest = [each.abs().max() for each in tensors]
    return float(torch.stack(largest).max()) if largest else 0.0
