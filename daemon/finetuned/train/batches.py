"""Which examples make a batch, and how a batch is laid into micro-batches without padding.

T tokens of a micro-batch, N target tokens of a micro-batch.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from finetuned.core.plan import Batches
from finetuned.train.rows import Example


class Order:
    """The order of examples: a pure function of (seed, epoch), so that a position is one integer, the step."""

    def __init__(self, rows: int, batches: Batches):
        self._rows = rows
        self._size = batches.global_batch_size
        self._seed = batches.seed
        self._steps_per_epoch = math.ceil(rows / self._size)
        self._epoch = -1
        self._shuffled = np.empty(0, dtype=np.int64)

    def batch_at(self, step: int) -> list[int]:
        """Row numbers of the batch that comes after `step` steps. The last batch of an epoch may be smaller."""
        epoch, place = divmod(step, self._steps_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._shuffled = epoch, shuffled(self._rows, self._seed, epoch)
        return [int(row) for row in self._shuffled[place * self._size : (place + 1) * self._size]]

    def epoch_at(self, step: int) -> float:
        """How often the data has been seen after `step` steps."""
        return step / self._steps_per_epoch


def shuffled(rows: int, seed: int, epoch: int) -> np.ndarray:
    """A permutation of range(rows), the same in every release.

    numpy promises the raw stream of a bit generator for ever, but not what `permutation` makes of it.
    """
    keys = np.random.Philox(np.random.SeedSequence([seed, epoch])).random_raw(rows)
    return np.argsort(keys, kind="stable")


def cut(lengths: Sequence[int], budget_tokens: int) -> list[list[int]]:
    """Parts of at most `budget_tokens`, as few and then as equal as can be found quickly.

    Each part lists indices into `lengths` in ascending order, and parts are ordered by their first. A longer example
    stands alone, so a budget of 0 puts every example alone.
    """
    alone = [[index] for index, tokens in enumerate(lengths) if tokens > budget_tokens]
    longest_first = sorted(
        (index for index, tokens in enumerate(lengths) if tokens <= budget_tokens),
        key=lambda index: (-lengths[index], index),
    )
    parts = [*alone, *_packed(longest_first, lengths, budget_tokens)]
    return sorted(sorted(part) for part in parts)


def _packed(longest_first: Sequence[int], lengths: Sequence[int], budget_tokens: int) -> list[list[int]]:
    tight = _first_fit(longest_first, lengths, budget_tokens)
    even = _spread(longest_first, lengths, len(tight))
    if all(sum(lengths[index] for index in part) <= budget_tokens for part in even):
        return even
    return tight


def _first_fit(longest_first: Sequence[int], lengths: Sequence[int], budget_tokens: int) -> list[list[int]]:
    parts: list[list[int]] = []
    room: list[int] = []
    for index in longest_first:
        place = next((place for place, free in enumerate(room) if free >= lengths[index]), None)
        if place is None:
            parts.append([])
            room.append(budget_tokens)
            place = len(parts) - 1
        parts[place].append(index)
        room[place] -= lengths[index]
    return parts


def _spread(longest_first: Sequence[int], lengths: Sequence[int], count: int) -> list[list[int]]:
    parts: list[list[int]] = [[] for _ in range(count)]
    loads = [(0, place) for place in range(count)]
    for index in longest_first:
        load, lightest = loads[0]
        parts[lightest].append(index)
        heapq.heapreplace(loads, (load + lengths[index], lightest))
    return [part for part in parts if part]


@dataclass(frozen=True)
class MicroBatch:
    """Examples laid end to end. Positions restart with each example, which is also what keeps them apart."""

    input_ids_1T: torch.Tensor
    position_ids_1T: torch.Tensor
    predictors_N: torch.Tensor
    """Positions whose logits predict a target: each stands one before it, in the same example."""
    labels_N: torch.Tensor

    @property
    def tokens(self) -> int:
        return self.input_ids_1T.shape[1]

    @property
    def target_tokens(self) -> int:
        return self.labels_N.shape[0]

    def to(self, device: torch.device) -> "MicroBatch":
        return replace(self, **{name: tensor.to(device) for name, tensor in vars(self).items()})


def lay_out(examples: Sequence[Example]) -> MicroBatch:
    """One micro-batch of these examples; all tensors int64 on the CPU."""
    input_ids_T = np.concatenate([example.input_ids for example in examples]).astype(np.int64)
    position_ids_T = np.concatenate([np.arange(example.tokens) for example in examples])
    targets_N = np.flatnonzero(np.concatenate([example.is_target for example in examples]))
    return MicroBatch(
        input_ids_1T=torch.from_numpy(input_ids_T)[None],
        position_ids_1T=torch.from_numpy(position_ids_T)[None],
        predictors_N=torch.from_numpy(targets_N - 1),
        labels_N=torch.from_numpy(input_ids_T[targets_N]),
    )


def micro_batches(examples: Sequence[Example], budget_tokens: int) -> list[MicroBatch]:
    """`examples` cut by the token budget and laid out."""
    parts = cut([example.tokens for example in examples], budget_tokens)
    return [lay_out([examples[index] for index in part]) for part in parts]
