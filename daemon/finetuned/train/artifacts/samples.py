"""Answers to held-out prompts before and after training, so that a person sees at a glance what the run changed.

Legend: B prompts, T tokens.
"""

import time
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from finetuned.core.plan import LoraTuning, RunPlan
from finetuned.host.stage import StageRun
from finetuned.train.artifacts.probes import Probe

if TYPE_CHECKING:
    import torch
    from transformers import GenerationConfig

MAX_NEW_TOKENS = 96
BUDGET_SECONDS = 30.0
"""For all answers of one model: samples are a look, not an evaluation, and must not hold up a finished run."""


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


def answers_after(
    run: StageRun,
    plan: RunPlan,
    model: Any,
    tokenizer: Any,
    probes: Sequence[Probe],
    budget_seconds: float = BUDGET_SECONDS,
) -> list[Answer]:
    """Greedy answers of the trained model, which must be in evaluation mode, within `budget_seconds` for all.

    Raises StopRequested after a token.
    """
    return _answers(run, plan, model, tokenizer, probes, budget_seconds)


def answers_before(
    run: StageRun,
    plan: RunPlan,
    model: Any | None,
    tokenizer: Any,
    probes: Sequence[Probe],
    budget_seconds: float = BUDGET_SECONDS,
) -> list[Answer] | None:
    """The same of what training began with. With a new adapter that is `model` without it; of any other `model` the
    answer is None, and with no model at all the one that training began with is loaded anew.
    """
    run.stop.raise_if_set()
    if model is None:
        return _answers(run, plan, _first_model(plan, tokenizer), tokenizer, probes, budget_seconds)
    if not isinstance(plan.tuning, LoraTuning) or plan.tuning.init_adapter is not None:
        return None
    with model.disable_adapter():
        return _answers(run, plan, model, tokenizer, probes, budget_seconds)


def in_pairs(probes: Sequence[Probe], before: Sequence[Answer], after: Sequence[Answer]) -> tuple[Sample, ...]:
    return tuple(
        Sample(probe.prompt, probe.reference, old, new) for probe, old, new in zip(probes, before, after, strict=True)
    )


def stops_of(plan: RunPlan, tokenizer: Any) -> list[int]:
    """The token ids that generation must stop on; the tokenizer's end of sequence where the data named none."""
    if plan.data.stop_token_ids:
        return list(plan.data.stop_token_ids)
    return [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]


def pad_of(plan: RunPlan, model: Any, tokenizer: Any) -> int | None:
    """The id to fill up with: the tokenizer's, else a stop, as generation never reads what follows one.

    Always one that `model` has a row for: to many bases somebody added a padding token and left the model as it was.
    """
    wanted = [tokenizer.pad_token_id, *stops_of(plan, tokenizer)]
    rows = model.get_input_embeddings().weight.shape[0]
    return next((token for token in wanted if token is not None and token < rows), None)


def _first_model(plan: RunPlan, tokenizer: Any) -> Any:
    """The base model as it was loaded for training, with the earlier adapter that training went on from, if any."""
    import torch

    from finetuned.host.tokenizer import token_ids
    from finetuned.train.model.load import load_base
    from finetuned.train.model.tokens import grow_embeddings, with_unknown_ones

    device = torch.device(plan.device)
    model = load_base(plan, device)
    new_tokens = token_ids(tokenizer, (*plan.added_tokens, *plan.added_special_tokens))
    grow_embeddings(model, with_unknown_ones(model, new_tokens), plan.seed)
    earlier = plan.tuning.init_adapter if isinstance(plan.tuning, LoraTuning) else None
    if earlier is not None:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, earlier.path)
    elif plan.precision == "bf16":
        model = model.to(torch.bfloat16)
    if not getattr(model, "is_quantized", False):
        model = model.to(device)
    return model.eval()


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

    prompts_BT, mask_BT = _filled_on_the_left(probes, pad_of(plan, model, tokenizer) or 0)
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
        pad_token_id=pad_of(plan, model, tokenizer),
    )
    return greedy


def _answer(tokenizer: Any, ids: Sequence[int], stops: Sequence[int], *, is_late: bool) -> Answer:
    stop = next((place for place, token in enumerate(ids) if token in stops), None)
    text = tokenizer.decode(ids[:stop], skip_special_tokens=True).strip()
    if stop is not None:
        return Answer(text, AnswerEnd.STOP)
    return Answer(text, AnswerEnd.TIME if is_late else AnswerEnd.LENGTH)
