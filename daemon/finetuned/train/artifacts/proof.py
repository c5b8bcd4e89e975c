"""What is proven of exported folders, in plain records: what they must show (Task), and what they did (Verdict).

Both are files: the trained model is measured here, and compared by a fresh process (verify.py) that has never seen it.
T tokens of one probe row, V vocabulary.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from finetuned.core.plan import RunPlan
from finetuned.core.problems import StageFailed
from finetuned.core.record import Record

EXACT = 1e-4
"""The same weights on the same device: only the order of sums may differ (fp32)."""
ROUNDED = 0.1
"""Weights or activations rounded to bf16, added up over the layers: 0.015 measured with SmolLM2-135M, 30 layers. The
weights themselves are compared exactly; this finds a network that computes something else with them."""
MERGED = 1e-3
"""An fp32 base with the adapter added to its weights: the same sums, rounded at other places."""


class Chat(Record):
    """What a chat must be rendered and encoded as, up to the model's turn."""

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] | None
    chat_template: str | None
    """To be rendered with; None = the saved one."""
    ids: tuple[int, ...]


class Text(Record):
    text: str
    ids: tuple[int, ...]


class Task(Record):
    """task.json: what the fresh process is to look at, and what it must find."""

    plan: RunPlan
    artifacts: str
    """Folder that holds adapter/ or model/."""
    scratch: str
    """Folder of logits.safetensors (logits_TV of each row, named "0", "1", …), hub/, and verdict.json, the answer."""
    proves: Literal["adapter", "model"] | None
    merges_into: str | None
    """Where to write the adapter merged into its 16-bit base; None = nowhere."""
    weights: dict[str, str]
    """sha256 of every trained weight as it is stored, under the name it has in the file or the model."""
    compute_dtype: str
    """What the base (of an adapter) or the whole model is loaded in to compute the logits."""
    tolerance: float
    rows: tuple[tuple[int, ...], ...]
    prompt: tuple[int, ...]
    """What the model is asked to go on from; empty = it is not asked."""
    chats: tuple[Chat, ...]
    texts: tuple[Text, ...]
    stops: tuple[int, ...]


class Proof(Record):
    """What was compared of one folder. Differences are absolute; `largest_logit` gives their scale."""

    folder: str
    tensors: int
    largest_logit_difference: float
    largest_logit: float
    tolerance: float | None
    """Relative to the largest logit; None = reported, whatever it is."""
    mean_kl: float = 0.0
    """Of the folder's next-token distributions from the trained model's, in nats."""
    tokens: int = 0
    """Over which both were compared."""
    chats: int = 0
    """Probe chats that its tokenizer and template turned into the very ids that were trained on."""
    answer_tokens: int = 0
    answer_stopped: bool = False
    """The model's own answer to a probe ended with one of the ids that generation stops on."""
    dtype: str = ""
    """The weights are stored in."""

    @property
    def relative_difference(self) -> float:
        return self.largest_logit_difference / self.largest_logit if self.largest_logit else 0.0


class Verdict(Record):
    """verdict.json: what the fresh process found."""

    proofs: tuple[Proof, ...] = ()
    failure: str = ""
    """What differs, in words; empty = proven."""
    trouble: str = ""
    """Why it could not be told, such as too little memory: another attempt may fare better."""
    hint: str = ""


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


def digests_of(weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype) -> dict[str, str]:
    """sha256 of each weight as it is, or will be, in `dtype`."""
    return {name: _digest(weight.detach().to("cpu", dtype)) for name, weight in weights}


def _digest(weight: Tensor) -> str:
    content = weight.contiguous().view(-1).view(torch.uint8).numpy().data
    return hashlib.sha256(content).hexdigest()


def logits_of(model: Any, rows: Sequence[Sequence[int]]) -> list[Tensor]:
    """logits_TV of every row (float32, CPU), each row alone."""
    device = device_of(model)
    return [
        model(input_ids=torch.tensor([row], device=device), use_cache=False).logits[0].float().cpu() for row in rows
    ]


def device_of(model: Any) -> torch.device:
    device: torch.device = next(model.parameters()).device
    return device


def write_logits(logits: Sequence[Tensor], scratch: Path) -> None:
    from safetensors.torch import save_file

    save_file({str(row): each_TV.contiguous() for row, each_TV in enumerate(logits)}, scratch / "logits.safetensors")
