"""Losses, gradient norms and rates are those of TRL's SFTTrainer and of transformers' Trainer: same model, rows, order.

Both pad where the worker lays examples end to end, and cut batches otherwise, so sums are taken in other orders. Equal
means to 5e-6 of each value, in fp32 and in every step; the largest difference was 4e-7 (trl 1.16.0, transformers
5.24.0, torch 2.13.0 on a CPU).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import Trainer, TrainingArguments

from finetuned.core.events import Stepped
from finetuned.train.engine.checkpoint import copied_weights
from finetuned.train.engine.optimizer import decaying_weights
from finetuned.train.fit import build_model, fit
from trainers import arguments, plain_trainer, steps_of, trl_trainer
from training import a_job, a_plan, events_of, full_tuning, lora, open_attempt, random_rows

pytestmark = pytest.mark.slow

TOLERANCE = 5e-6
ROWS = 22
STEPS = 12
"""Of six rows, in micro-batches of two; the last step of each of the three epochs, of four."""


@pytest.mark.parametrize("build", [plain_trainer, trl_trainer], ids=["transformers", "trl"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("tuning", [lora(), full_tuning()], ids=lambda tuning: tuning.kind)
def test_every_step_is_that_of_the_trainers_people_know(
    model_of: Callable[..., Path], spool: Path, tuning: Any, weight_decay: float, build: Callable[..., Any]
):
    rows = random_rows(ROWS)
    plan = a_plan(
        model_of("llama"),
        spool,
        rows=rows,
        tuning=tuning,
        total_steps=STEPS,
        global_batch_size=6,
        learning_rate=1e-2 if tuning.kind == "lora" else 1e-3,
        weight_decay=weight_decay,
        max_grad_norm=0.3,
        eval_steps=0,
        save_steps=0,
    )
    job = a_job(spool, plan)
    ours = build_model(open_attempt(job), plan)
    trainer = build(plan, rows, spool / "trainer")
    trainer.decaying = decaying_weights(ours)
    theirs = steps_of(trainer, copied_weights(ours))

    fit(open_attempt(job), plan)
    steps = events_of(job, Stepped)
    assert len(steps) == len(theirs) == STEPS
    assert all(step.micro_batches > 1 for step in steps)
    assert sum(norm > plan.optimizer.max_grad_norm for _, norm, _ in theirs) > STEPS // 2
    for event, expected in zip(steps, theirs, strict=True):
        assert (event.loss, event.grad_norm, event.learning_rate) == pytest.approx(expected, rel=TOLERANCE)


@pytest.mark.parametrize(
    ("family", "tuning", "embeddings"),
    [
        ("llama", lora(), set()),
        ("llama", full_tuning(), {"model.embed_tokens.weight"}),
        ("smollm", full_tuning(), {"model.embed_tokens.weight"}),
    ],
    ids=["lora", "full", "full, tied"],
)
def test_what_decays_is_what_decays_in_the_trainers_but_for_embeddings(
    model_of: Callable[..., Path], spool: Path, family: str, tuning: Any, embeddings: set[str]
):
    """Decay draws rare tokens, which get no gradient, to zero; the Trainer leaves out norms and biases alone."""
    plan = a_plan(model_of(family), spool, tuning=tuning)
    ours = build_model(open_attempt(a_job(spool, plan)), plan)
    trainer = Trainer(model=ours.network, args=arguments(TrainingArguments, plan, spool / "trainer"))
    theirs = set(trainer.get_decay_parameter_names(ours.network)) & set(ours.trainable)
    assert theirs - decaying_weights(ours) == embeddings
    assert decaying_weights(ours) <= theirs
