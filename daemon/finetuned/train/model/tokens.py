"""Room in the embeddings for a job's new tokens, and what their rows begin as."""

from collections.abc import Sequence
from typing import Any

import torch

_NOISE = 0.1
"""Of a dimension's standard deviation: rows that begin alike, but not the same, stay near what the model knows."""


@torch.no_grad()
def grow_embeddings(model: Any, ids: Sequence[int], seed: int) -> None:
    """Give input and output embeddings of `model` rows for the new tokens `ids`, a function of the model and `seed`.

    A new row is the mean of those before the first of `ids`, with a little noise. Embeddings that are padded far enough
    keep their size; they never shrink. Tied ones stay tied.
    """
    if not ids:
        return
    if max(ids) >= model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(max(ids) + 1, mean_resizing=False)
    generator = torch.Generator().manual_seed(seed)
    for weight_VH in {id(module.weight): module.weight for module in embeddings_of(model).values()}.values():
        known_VH = weight_VH[: min(ids)]
        mean_H = known_VH.mean(0, dtype=torch.float32)
        square_H = torch.linalg.vector_norm(known_VH, dim=0, dtype=torch.float32) ** 2 / len(known_VH)
        noise_NH = torch.randn(len(ids), weight_VH.shape[1], generator=generator).to(weight_VH.device)
        rows_NH = mean_H + _NOISE * noise_NH * (square_H - mean_H**2).clamp(min=0).sqrt()
        weight_VH[list(ids)] = rows_NH.to(weight_VH.dtype)


def with_unknown_ones(model: Any, ids: Sequence[int]) -> list[int]:
    """`ids` of new tokens, after those before them that `model` has no rows for either: a tokenizer may have more
    tokens than its model, and once the embeddings grow, theirs are new rows like any other."""
    return [*range(min(model.get_input_embeddings().weight.shape[0], *ids), min(ids)), *ids] if ids else []


def embeddings_of(model: Any) -> dict[str, Any]:
    """The modules that have a row for each token, by full name: input embeddings, and the head where there is one."""
    wanted = {
        id(module) for module in (model.get_input_embeddings(), model.get_output_embeddings()) if module is not None
    }
    return {name: module for name, module in model.named_modules() if id(module) in wanted}
