"""A model that is being tuned, as the engine sees it."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn


@dataclass(frozen=True)
class TunedModel:
    """A network and what of it is trained."""

    network: Any
    """A transformers or PEFT model."""
    trainable: Mapping[str, nn.Parameter]
    """By name, in the order of the optimizer; tied weights once."""
    device: torch.device
    precision: Literal["bf16", "fp32"]

    def computing(self) -> AbstractContextManager[Any]:
        """The context for forward passes: bf16 products where the plan says so, whatever the weights are stored in."""
        if self.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)
