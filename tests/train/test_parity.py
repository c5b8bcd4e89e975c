"""Training is that of a plain loop over one example at a time, however batches are cut."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from finetuned.core.events import Stepped
from finetuned.core.plan import RunPlan
from finetuned.train.batches import Order, cut, micro_batches
from finetuned.train.engine.checkpoint import read_snapshot
from finetuned.train.fit import build_model, fit
from finetuned.train.methods.causal import sum_of_losses
from finetuned.train.rows import Rows
from training import a_job, a_plan, events_of, full_tuning, lora, open_attempt, random_rows

STEPS = 20


def plain_losses_and_norms(plan: RunPlan, rows: list[tuple[list[int], list[bool]]]) -> list[tuple[float, float]]:
    """Loss and gradient norm of each step, written without anything of the worker but the order of rows."""
    model: Any = AutoModelForCausalLM.from_pretrained(plan.model.path, dtype=torch.float32)
    torch.manual_seed(plan.seed)
    if plan.tuning.kind == "lora":
        model = get_peft_model(
            model, LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")
        )
    weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    first = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    second = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    order = Order(len(rows), plan.batches)
    found = []
    for step in range(STEPS):
        batch = [rows[number] for number in order.batch_at(step)]
        targets = sum(sum(is_target[1:]) for _, is_target in batch)
        loss = 0.0
        for ids, is_target in batch:
            labels = [token if learned else -100 for token, learned in zip(ids, is_target, strict=True)]
            mean = model(input_ids=torch.tensor([ids]), labels=torch.tensor([labels])).loss
            share = mean * sum(is_target[1:]) / targets
            share.backward()
            loss += share.item()
        norm = math.sqrt(sum(weight.grad.double().pow(2).sum().item() for weight in weights.values()))
        found.append((loss, norm))
        rate = _rate(plan, step)
        for name, weight in weights.items():
            gradient = weight.grad * min(1.0, plan.optimizer.max_grad_norm / (norm + 1e-6))
            first[name] = 0.9 * first[name] + 0.1 * gradient
            second[name] = 0.999 * second[name] + 0.001 * gradient**2
            corrected = first[name] / (1 - 0.9 ** (step + 1))
            scale = (second[name] / (1 - 0.999 ** (step + 1))).sqrt() + plan.optimizer.adam_epsilon
            decays = weight.ndim == 2 and "embed" not in name
            with torch.no_grad():
                weight -= rate * (plan.optimizer.weight_decay * weight if decays else 0.0)
                weight -= rate * corrected / scale
            weight.grad = None
    return found


def _rate(plan: RunPlan, step: int) -> float:
    peak, warmup = plan.optimizer.learning_rate, plan.schedule.warmup_steps
    if step < warmup:
        return peak * step / warmup
    return peak * (1 + math.cos(math.pi * (step - warmup) / (STEPS - warmup))) / 2


@pytest.mark.parametrize("tuning", [lora(), full_tuning()], ids=lambda tuning: tuning.kind)
def test_first_twenty_losses_and_gradient_norms_are_those_of_a_plain_loop(
    model_of: Callable[..., Path], spool: Path, tuning: Any
):
    rows = random_rows(22)
    plan = a_plan(
        model_of("llama"),
        spool,
        rows=rows,
        tuning=tuning,
        total_steps=STEPS,
        learning_rate=1e-3,
        weight_decay=0.1,
        max_grad_norm=0.5,
        eval_steps=0,
    )
    job = a_job(spool, plan)
    fit(open_attempt(job), plan)
    found = [(event.loss, event.grad_norm) for event in events_of(job, Stepped)]
    assert len(found) == STEPS
    for ours, plain in zip(found, plain_losses_and_norms(plan, rows), strict=True):
        assert ours == pytest.approx(plain, rel=1e-5)


@pytest.mark.parametrize("family", ["llama", "qwen2", "mistral", "gemma", "smollm"])
def test_gradients_do_not_depend_on_how_a_batch_is_cut(model_of: Callable[..., Path], spool: Path, family: str):
    plan = a_plan(model_of(family), spool, tuning=full_tuning())
    model = build_model(open_attempt(a_job(spool, plan)), plan)
    rows = Rows(spool / "store" / "prepared" / "rows" / "train.arrow")
    examples = [rows.example(row) for row in range(12)]

    def gradients(budget: int) -> torch.Tensor:
        model.network.zero_grad()
        for batch in micro_batches(examples, budget):
            (sum_of_losses(model.network, batch) / 100).backward()
        return torch.cat([weight.grad.flatten() for weight in model.trainable.values() if weight.grad is not None])

    one_at_a_time = gradients(0)
    for budget in (31, 48, 70, 10_000):
        assert (gradients(budget) - one_at_a_time).abs().max() < 1e-6


def test_the_gradient_of_eight_rows_is_the_same_cut_1x8_8x1_and_2x4(model_of: Callable[..., Path], tmp_path: Path):
    rows = random_rows(8)
    lengths = [len(ids) for ids, _ in rows]
    assert len(set(lengths)) > 4

    def gradient(budget: int, cut_into: list[int]) -> torch.Tensor:
        assert [len(part) for part in cut(lengths, budget)] == cut_into
        spool = tmp_path / str(budget)
        plan = a_plan(
            model_of("llama"),
            spool,
            rows=rows,
            tuning=full_tuning(),
            global_batch_size=8,
            total_steps=1,
            micro_batch_tokens=budget,
            max_grad_norm=0.0,
            eval_steps=0,
        )
        job = a_job(spool, plan)
        fit(open_attempt(job), plan)
        assert [event.micro_batches for event in events_of(job, Stepped)] == [len(cut_into)]
        # Adam's first moment after one step is a tenth of the gradient.
        states = read_snapshot(job.newest_whole_checkpoint()).optimizer
        moments = [states[name] for name in sorted(states) if name.startswith("exp_avg/")]
        return torch.cat([moment.flatten() for moment in moments]) / (1 - plan.optimizer.adam_beta1)

    together = gradient(sum(lengths), [8])
    assert together.abs().max() > 1e-2
    assert (gradient(0, [1] * 8) - together).abs().max() < 1e-6
    assert (gradient(sum(lengths) // 2 + 3, [4, 4]) - together).abs().max() < 1e-6


def test_a_run_does_not_depend_on_how_its_batches_are_cut(model_of: Callable[..., Path], tmp_path: Path):
    def losses(budget: int) -> list[float]:
        spool = tmp_path / str(budget)
        plan = a_plan(model_of("llama"), spool, micro_batch_tokens=budget, eval_micro_batch_tokens=budget)
        job = a_job(spool, plan)
        fit(open_attempt(job), plan)
        return [event.loss for event in events_of(job, Stepped)]

    assert losses(30) == pytest.approx(losses(1000), rel=1e-5)


def test_a_batch_without_targets_is_a_loss_of_zero(model_of: Callable[..., Path], spool: Path):
    rows = [(ids, [False] * len(ids)) for ids, _ in random_rows(4)]
    plan = a_plan(model_of("llama"), spool, rows=rows, total_steps=1)
    job = a_job(spool, plan)
    fit(open_attempt(job), plan)
    [step] = events_of(job, Stepped)
    assert (step.loss, step.grad_norm, step.target_tokens) == (0.0, 0.0, 0)
