"""What a folder was loaded as, beside what was trained: its weights bit for bit, its logits within a tolerance.

T tokens of one probe row, V vocabulary.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import kl_div, log_softmax

from finetuned.core.problems import StageFailed
from finetuned.train.artifacts.proof import Proof, digests_of
from finetuned.train.artifacts.save import adapter_weights


def require_same_adapter(folder: Path, model: Any, expected: Mapping[str, str]) -> None:
    """Raises StageFailed (no retry) unless the file holds the trained weights, and `model` got every one of them."""
    stored = load_file(folder / "adapter_model.safetensors")
    found = {name: digest for each in stored.items() for name, digest in digests_of([each], each[1].dtype).items()}
    loaded = adapter_weights(model)
    for name, weight in stored.items():
        if name not in loaded or not torch.equal(loaded[name].cpu(), weight.to(loaded[name].dtype)):
            found[name] = "lost while it was loaded"
    _require_same(folder, found, expected)


def require_same_weights(folder: Path, model: Any, stored_dtype: str, expected: Mapping[str, str]) -> None:
    """Raises StageFailed (no retry) unless `model`, loaded in the type it is stored in, has the trained weights."""
    _require_same(folder, digests_of(model.named_parameters(), getattr(torch, stored_dtype)), expected)


def _require_same(folder: Path, found: Mapping[str, str], expected: Mapping[str, str]) -> None:
    differing = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
    if differing:
        raise StageFailed(
            f"{len(differing)} of {len(expected)} weights in {folder.name}/ are not the trained ones, "
            f"the first of them {differing[0]}",
            retry=False,
            hint="the disk or the file system changed what was written, or a library saves this model wrongly",
        )


def compared(folder: Path, logits: Sequence[Tensor], tensors: int, tolerance: float | None, scratch: Path) -> Proof:
    """How far `logits` are from the trained model's in `scratch`. Raises StageFailed (no retry) beyond `tolerance`."""
    difference = largest = divergence = 0.0
    tokens = 0
    with safe_open(scratch / "logits.safetensors", "pt") as expected:
        for row, all_TV in enumerate(logits):
            expected_TV = expected.get_tensor(str(row))
            found_TV = _of_the_trained_tokens(folder, all_TV, expected_TV)
            difference = _larger(difference, (found_TV - expected_TV).abs().max().item())
            largest = _larger(largest, expected_TV.abs().max().item())
            divergence += _divergence(expected_TV, found_TV)
            tokens += len(found_TV)
    proof = Proof(
        folder=folder.name,
        tensors=tensors,
        largest_logit_difference=difference,
        largest_logit=largest,
        tolerance=tolerance,
        mean_kl=divergence / tokens if tokens else 0.0,
        tokens=tokens,
    )
    is_finite = math.isfinite(proof.largest_logit) and math.isfinite(proof.largest_logit_difference)
    if not is_finite or (tolerance is not None and not proof.relative_difference <= tolerance):
        expected_at_most = "finite ones were" if tolerance is None else f"at most {tolerance:.0e} of it was"
        raise StageFailed(
            f"the model in {folder.name}/ does not answer as the trained one: logits differ by "
            f"{proof.largest_logit_difference:.4g}, the largest is {proof.largest_logit:.4g}, "
            f"{expected_at_most} expected (mean KL divergence {proof.mean_kl:.3g} nats over {tokens} tokens)",
            retry=False,
        )
    return proof


def _of_the_trained_tokens(folder: Path, found_TV: Tensor, expected_TV: Tensor) -> Tensor:
    """Without the columns of tokens that the model has no rows for: PEFT gives it some where its tokenizer has more."""
    found_TV = found_TV[:, : expected_TV.shape[1]]
    if found_TV.shape != expected_TV.shape:
        raise StageFailed(
            f"the model in {folder.name}/ gives logits of {found_TV.shape[0]:,} tokens over a vocabulary of "
            f"{found_TV.shape[1]:,}; the trained one gave {expected_TV.shape[0]:,} over {expected_TV.shape[1]:,}",
            retry=False,
        )
    return found_TV


def _larger(one: float, other: float) -> float:
    """The larger one, and NaN as soon as one of them is."""
    return other if math.isnan(other) or other > one else one


def _divergence(expected_TV: Tensor, found_TV: Tensor) -> float:
    """KL(expected || found), summed over tokens."""
    return kl_div(
        log_softmax(found_TV, dim=-1), log_softmax(expected_TV, dim=-1), reduction="sum", log_target=True
    ).item()
