"""Answers to held-out prompts before and after training, so that a person sees at a glance what the run changed.

Legend: B prompts, T tokens.
"""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from finetuned.core.plan import LoraTuning, RunPlan
from finetuned.host.stage import StageRun
from finetuned.train.probes import Probe

if TYPE_CHECKING:
    import torch
    from transformers import GenerationConfig

MAX_NEW_TOKENS = 96
BUDGET_SECONDS = 60.0
"""For all answers together: samples are a look, not an evaluation, and must not hold up a finished run."""


class AnswerEnd(StrEnum):
    """Why an answer ends where it does."""

    STOP = "the model ended it"
    LENGTH = f"cut after {MAX_NEW_TOKENS} tokens"
    TIME = "cut to save time"


@dataclass(frozen=True)
class Answer:
    text: str
    end: AnswerEnd


@dataclass(frozen=True)
class Sample:
    """One held-out prompt, the answer that the data gives, and the model's own before and after training."""

    prompt: str
    reference: str
    before: Answer
    after: Answer


def before_and_after(
    run: StageRun,
    plan: RunPlan,
    model: Any,
    tokenizer: Any,
    probes: Sequence[Probe],
    budget_seconds: float = BUDGET_SECONDS,
) -> tuple[Sample, ...]:
    """Greedy answers of the base model and of the trained one, within `budget_seconds` of generation in all.

    With LoRA the base is `model` without its adapter; after full tuning it is loaded again from the plan's folder.
    `model` must be in evaluation mode. Raises StopRequested after a token.
    """
    after = _answers(run, plan, model, tokenizer, probes, budget_seconds / 2)
    run.stop.raise_if_set()
    base, without_adapter = _base_of(plan, model)
    with without_adapter:
        before = _answers(run, plan, base, tokenizer, probes, budget_seconds / 2)
    return tuple(
        Sample(probe.prompt, probe.reference, old, new) for probe, old, new in zip(probes, before, after, strict=True)
    )


def stops_of(plan: RunPlan, tokenizer: Any) -> list[int]:
    """The token ids that generation must stop on; the tokenizer's end of sequence where the data named none."""
    if plan.data.stop_token_ids:
        return list(plan.data.stop_token_ids)
    return [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]


def pad_of(plan: RunPlan, tokenizer: Any) -> int | None:
    """The id to fill up with: the tokenizer's, else a stop, as generation never reads what follows one."""
    if tokenizer.pad_token_id is not None:
        return int(tokenizer.pad_token_id)
    return next(iter(stops_of(plan, tokenizer)), None)


def _base_of(plan: RunPlan, model: Any) -> tuple[Any, AbstractContextManager[None]]:
    """The untrained model, and what must be open while it answers."""
    if isinstance(plan.tuning, LoraTuning):
        return model, model.disable_adapter()
    import torch
    from transformers import AutoModelForCausalLM

    from finetuned.train.proof import device_of, fits_on

    dtype = torch.bfloat16 if plan.precision == "bf16" else torch.float32
    base = AutoModelForCausalLM.from_pretrained(plan.model.path, dtype=dtype).eval()
    device = device_of(model)
    return base.to(device if fits_on(device, base) else "cpu"), nullcontext()


def _answers(
    run: StageRun, plan: RunPlan, model: Any, tokenizer: Any, probes: Sequence[Probe], budget_seconds: float
) -> list[Answer]:
    """One answer a probe, all at once: on a CPU four answers take hardly longer than one."""
    import torch

    if not probes:
        return []
    deadline = time.monotonic() + budget_seconds

    def is_over(input_ids: torch.Tensor, _scores: Any, **_: Any) -> torch.Tensor:
        over = run.stop.is_set() or time.monotonic() > deadline
        return torch.full((len(input_ids),), over, device=input_ids.device)

    prompts_BT, mask_BT = _filled_on_the_left(probes, pad_of(plan, tokenizer) or 0)
    device = next(model.parameters()).device
    room_tokens = plan.model.max_position_embeddings - prompts_BT.shape[1]
    generated_BT = model.generate(
        input_ids=prompts_BT.to(device),
        attention_mask=mask_BT.to(device),
        generation_config=_greedy(plan, model, tokenizer, max_new_tokens=min(MAX_NEW_TOKENS, max(1, room_tokens))),
        stopping_criteria=[is_over],
    )
    run.stop.raise_if_set()
    is_late = time.monotonic() > deadline
    answers = generated_BT[:, prompts_BT.shape[1] :].tolist()
    return [_answer(tokenizer, ids, stops_of(plan, tokenizer), is_late=is_late) for ids in answers]


def _filled_on_the_left(probes: Sequence[Probe], pad: int) -> "tuple[torch.Tensor, torch.Tensor]":
    """Prompts of one length with `pad` in front (int64), and 1 where a token is a prompt's own."""
    import torch

    length = max(len(probe.prompt_ids) for probe in probes)
    fill = [length - len(probe.prompt_ids) for probe in probes]
    prompts = [[pad] * empty + list(probe.prompt_ids) for empty, probe in zip(fill, probes, strict=True)]
    mask = [[0] * empty + [1] * (length - empty) for empty in fill]
    return torch.tensor(prompts), torch.tensor(mask)


def _greedy(plan: RunPlan, model: Any, tokenizer: Any, max_new_tokens: int) -> "GenerationConfig":
    """The model's own generation settings without sampling. A repetition penalty stays: the model is used with it."""
    greedy = deepcopy(model.generation_config)
    greedy.update(
        do_sample=False,
        num_beams=1,
        temperature=1.0,
        top_k=50,
        top_p=1.0,
        max_length=None,
        max_new_tokens=max_new_tokens,
        use_cache=True,
        eos_token_id=stops_of(plan, tokenizer) or None,
        pad_token_id=pad_of(plan, tokenizer),
    )
    return greedy


def _answer(tokenizer: Any, ids: Sequence[int], stops: Sequence[int], *, is_late: bool) -> Answer:
    stop = next((place for place, token in enumerate(ids) if token in stops), None)
    text = tokenizer.decode(ids[:stop], skip_special_tokens=True).strip()
    if stop is not None:
        return Answer(text, AnswerEnd.STOP)
    return Answer(text, AnswerEnd.TIME if is_late else AnswerEnd.LENGTH)
