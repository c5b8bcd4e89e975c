"""What a person is told when the device runs out of memory."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from finetuned.core.plan import FreezeTuning, FullTuning, LoraTuning, Quantization, RunPlan, Tuning
from finetuned.core.problems import StageFailed


@contextmanager
def explained_memory_errors(plan: RunPlan) -> Iterator[None]:
    """Raises StageFailed (no retry) in place of torch's own error."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        kind, smaller = _kind(plan.tuning)
        raise StageFailed(
            f"the device ran out of memory: {kind} tuning of {plan.model.name} with micro-batches of "
            f"{plan.batches.micro_batch_tokens:,} tokens (longest example {plan.data.longest_tokens:,}); "
            f"{str(error).splitlines()[0]}",
            retry=False,
            hint=f"{smaller}a smaller max_seq_length or a smaller model; a smaller global_batch_size does not help",
        ) from error


def _kind(tuning: Tuning) -> tuple[str, str]:
    """How a person calls the tuning, and what of it would take less."""
    match tuning:
        case FullTuning():
            return "full", "finetuning_type: lora, "
        case FreezeTuning():
            return "freeze", "fewer unfrozen_parameters, finetuning_type: lora, "
        case LoraTuning(quantization=Quantization(kind="int8")):
            return "QLoRA", "load_in_4bit: true, "
        case LoraTuning(quantization=Quantization()):
            return "QLoRA", ""
        case LoraTuning():
            return "LoRA", "finetuning_type: qlora, "
