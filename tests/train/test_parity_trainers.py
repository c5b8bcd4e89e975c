"""Losses, gradient norms and rates are those of TRL's SFTTrainer and of transformers' Trainer: same model, rows, order.

Both pad where the worker lays examples end to end, and cut batches otherwise, so sums are taken in other orders. Equal
means to 5e-6 of each value, in fp32 and in every step; the largest difference was 4e-7 (trl 1.16.0, transformers
5.24.0, torch 2.13.0 on a CPU).
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from torch.utils.data import Sampler
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForSeq2Seq, Trainer, TrainingArguments
from trl import SFTConfig, SFTTrainer

from finetuned.core.events import Stepped
from finetuned.core.plan import RunPlan
from finetuned.train.batches import shuffled
from finetuned.train.engine.checkpoint import copied_weights
from finetuned.train.engine.optimizer import decaying_weights
from finetuned.train.fit import build_model, fit
from training import a_job, a_plan, events_of, full_tuning, lora, open_attempt, random_rows

pytestmark = pytest.mark.slow

ROWS = 22
EPOCHS = 3
STEPS = 12
"""Of three micro-batches of two rows; the last step of an epoch, of two."""
TOLERANCE = 5e-6

Step = tuple[float, float, float]
"""Loss, gradient norm before clipping, learning rate."""


class OurOrder(Sampler[int]):
    """The order of the worker, epoch by epoch."""

    def __init__(self, rows: int, seed: int):
        self._rows, self._seed, self._epoch = rows, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __len__(self) -> int:
        return self._rows

    def __iter__(self) -> Iterator[int]:
        return iter(shuffled(self._rows, self._seed, self._epoch).tolist())


class InOurOrder:
    """Of a Trainer: everything else is its own."""

    decaying: frozenset[str] | None = None
    """What decays, where it is not what the Trainer says."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        return OurOrder(ROWS, 42)

    def get_decay_parameter_names(self, model: Any) -> list[str]:
        return sorted(self.decaying or super().get_decay_parameter_names(model))  # type: ignore[misc]


class PlainTrainer(InOurOrder, Trainer):
    pass


class TrlTrainer(InOurOrder, SFTTrainer):
    pass


def arguments(kind: type[Any], plan: RunPlan, into: Path, **more: Any) -> Any:
    return kind(
        output_dir=str(into),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=3,
        num_train_epochs=EPOCHS,
        learning_rate=plan.optimizer.learning_rate,
        lr_scheduler_type=plan.schedule.lr_scheduler_type,
        warmup_steps=plan.schedule.warmup_steps,
        weight_decay=plan.optimizer.weight_decay,
        max_grad_norm=plan.optimizer.max_grad_norm,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
        **more,
    )


def masked(ids: list[int], is_target: list[bool]) -> list[int]:
    return [token if learned else -100 for token, learned in zip(ids, is_target, strict=True)]


def plain_trainer(plan: RunPlan, rows: list[tuple[list[int], list[bool]]], into: Path) -> Trainer:
    model = AutoModelForCausalLM.from_pretrained(plan.model.path, dtype=torch.float32)
    if (adapter := lora_config(plan)) is not None:
        model = get_peft_model(model, adapter)
    tokenizer = AutoTokenizer.from_pretrained(plan.model.path)
    dataset = Dataset.from_list([{"input_ids": ids, "labels": masked(ids, is_target)} for ids, is_target in rows])
    return PlainTrainer(
        model=model,
        args=arguments(TrainingArguments, plan, into),
        train_dataset=dataset,
        data_collator=DataCollatorForSeq2Seq(tokenizer),
    )


def trl_trainer(plan: RunPlan, rows: list[tuple[list[int], list[bool]]], into: Path) -> SFTTrainer:
    """Its own labels, collator, loss and adapter."""
    more = {"max_length": None, "completion_only_loss": True, "activation_checkpointing": False}
    dataset = [{"input_ids": ids, "completion_mask": [int(learned) for learned in targets]} for ids, targets in rows]
    return TrlTrainer(
        model=AutoModelForCausalLM.from_pretrained(plan.model.path, dtype=torch.float32),
        args=arguments(SFTConfig, plan, into, **more),
        train_dataset=Dataset.from_list(dataset),
        processing_class=AutoTokenizer.from_pretrained(plan.model.path),
        peft_config=lora_config(plan),
    )


def lora_config(plan: RunPlan) -> LoraConfig | None:
    if plan.tuning.kind != "lora":
        return None
    return LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")


def steps_of_trainer(trainer: Any, initial: Mapping[str, torch.Tensor]) -> list[Step]:
    weights = {name: weight for name, weight in trainer.model.named_parameters() if weight.requires_grad}
    assert weights.keys() == initial.keys()
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(initial[name])
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "grad_norm" in entry]
    return [(entry["loss"], entry["grad_norm"], entry["learning_rate"]) for entry in logged]


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
    theirs = steps_of_trainer(trainer, copied_weights(ours))

    fit(open_attempt(job), plan)
    steps = events_of(job, Stepped)
    assert len(steps) == len(theirs) == STEPS
    assert all(step.micro_batches > 1 for step in steps)
    assert sum(norm > plan.optimizer.max_grad_norm for _, norm, _ in theirs) > STEPS // 2
    for event, expected in zip(steps, theirs, strict=True):
        found = (event.loss, event.grad_norm, event.learning_rate)
        assert found == pytest.approx(expected, rel=TOLERANCE)


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
