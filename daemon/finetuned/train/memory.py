"""What a person is told when the device runs out of memory."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from finetuned.core.plan import LoraTuning, RunPlan
from finetuned.core.problems import StageFailed


@contextmanager
def explained_memory_errors(plan: RunPlan) -> Iterator[None]:
    """Raises StageFailed (no retry) in place of torch's own error."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        kind = "LoRA" if isinstance(plan.tuning, LoraTuning) else "full"
        smaller = "" if isinstance(plan.tuning, LoraTuning) else "finetuning_type: lora, "
        raise StageFailed(
            f"the device ran out of memory: {kind} tuning of {plan.model.name} with micro-batches of "
            f"{plan.batches.micro_batch_tokens:,} tokens (longest example {plan.data.longest_tokens:,}); "
            f"{str(error).splitlines()[0]}",
            retry=False,
            hint=f"{smaller}a smaller max_seq_length or a smaller model; a smaller global_batch_size does not help",
        ) from error
