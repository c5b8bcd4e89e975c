"""Answers to held-out prompts before and after training, so that a person sees at a glance what the run changed."""

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
    `model` must be in evaluation mode. Raises StopRequested between two answers.
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
    """One answer a probe. What an answer leaves of its share of the time, the later ones may use."""
    end = time.monotonic() + budget_seconds
    greedy = _greedy(plan, model, tokenizer)
    answers = []
    for number, probe in enumerate(probes):
        run.stop.raise_if_set()
        share_seconds = (end - time.monotonic()) / (len(probes) - number)
        answers.append(_answer(run, model, tokenizer, probe, greedy, time.monotonic() + share_seconds))
    run.stop.raise_if_set()
    return answers


def _greedy(plan: RunPlan, model: Any, tokenizer: Any) -> "GenerationConfig":
    """The model's own generation settings without sampling. A repetition penalty stays: the model is used with it."""
    greedy = deepcopy(model.generation_config)
    greedy.update(
        do_sample=False,
        num_beams=1,
        temperature=1.0,
        top_k=50,
        top_p=1.0,
        max_length=None,
        use_cache=True,
        eos_token_id=stops_of(plan, tokenizer) or None,
        pad_token_id=pad_of(plan, tokenizer),
    )
    return greedy


def _answer(
    run: StageRun, model: Any, tokenizer: Any, probe: Probe, greedy: "GenerationConfig", deadline: float
) -> Answer:
    import torch

    def is_over(input_ids: torch.Tensor, _scores: Any, **_: Any) -> torch.Tensor:
        over = run.stop.is_set() or time.monotonic() > deadline
        return torch.full((len(input_ids),), over, device=input_ids.device)

    prompt = torch.tensor([probe.prompt_ids], device=next(model.parameters()).device)
    generated = model.generate(
        input_ids=prompt,
        attention_mask=torch.ones_like(prompt),
        generation_config=greedy,
        max_new_tokens=min(MAX_NEW_TOKENS, max(1, model.config.max_position_embeddings - prompt.shape[1])),
        stopping_criteria=[is_over],
    )
    ids = generated[0, prompt.shape[1] :].tolist()
    text = tokenizer.decode(ids, skip_special_tokens=True).strip()
    return Answer(text, _end_of(ids, greedy.eos_token_id or [], is_late=time.monotonic() > deadline))


def _end_of(ids: Sequence[int], stops: Sequence[int], *, is_late: bool) -> AnswerEnd:
    if ids and ids[-1] in stops:
        return AnswerEnd.STOP
    return AnswerEnd.TIME if is_late else AnswerEnd.LENGTH
