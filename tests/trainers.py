"""The trainers that people know, on the rows and in the order of a plan: what the worker is compared with."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from torch.utils.data import Sampler
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForSeq2Seq, Trainer, TrainingArguments
from trl import SFTConfig, SFTTrainer

from finetuned.core.plan import RunPlan
from finetuned.train.batches import shuffled

Step = tuple[float, float, float]
"""Loss, gradient norm before clipping, learning rate."""

Row = tuple[Sequence[int], Sequence[bool]]
"""Token ids, and which of them are targets."""


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

    order: OurOrder
    decaying: frozenset[str] | None = None
    """What decays, where it is not to be what the Trainer says."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        return self.order

    def get_decay_parameter_names(self, model: Any) -> list[str]:
        return sorted(self.decaying or super().get_decay_parameter_names(model))  # type: ignore[misc]


class PlainTrainer(InOurOrder, Trainer):
    pass


class TrlTrainer(InOurOrder, SFTTrainer):
    pass


def plain_trainer(plan: RunPlan, rows: Sequence[Row], into: Path, micro_batch_rows: int = 2) -> PlainTrainer:
    """transformers' Trainer."""
    model = AutoModelForCausalLM.from_pretrained(plan.model.path, dtype=torch.float32)
    if (adapter := _lora_config(plan)) is not None:
        model = get_peft_model(model, adapter)
    tokenizer = AutoTokenizer.from_pretrained(plan.model.path)
    dataset = Dataset.from_list([{"input_ids": ids, "labels": labels_of(ids, targets)} for ids, targets in rows])
    trainer = PlainTrainer(
        model=model,
        args=arguments(TrainingArguments, plan, into, micro_batch_rows),
        train_dataset=dataset,
        data_collator=DataCollatorForSeq2Seq(tokenizer),
    )
    trainer.order = OurOrder(len(rows), plan.batches.seed)
    return trainer


def trl_trainer(plan: RunPlan, rows: Sequence[Row], into: Path, micro_batch_rows: int = 2) -> TrlTrainer:
    """TRL's SFTTrainer, with its own labels, collator, loss and adapter."""
    more = {"max_length": None, "completion_only_loss": True, "activation_checkpointing": False}
    dataset = [{"input_ids": ids, "completion_mask": [int(learned) for learned in targets]} for ids, targets in rows]
    trainer = TrlTrainer(
        model=AutoModelForCausalLM.from_pretrained(plan.model.path, dtype=torch.float32),
        args=arguments(SFTConfig, plan, into, micro_batch_rows, **more),
        train_dataset=Dataset.from_list(dataset),
        processing_class=AutoTokenizer.from_pretrained(plan.model.path),
        peft_config=_lora_config(plan),
    )
    trainer.order = OurOrder(len(rows), plan.batches.seed)
    return trainer


def arguments(kind: type[Any], plan: RunPlan, into: Path, micro_batch_rows: int = 2, **more: Any) -> Any:
    return kind(
        output_dir=str(into),
        per_device_train_batch_size=micro_batch_rows,
        gradient_accumulation_steps=plan.batches.global_batch_size // micro_batch_rows,
        num_train_epochs=plan.schedule.total_steps / plan.batches.steps_per_epoch,
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


def labels_of(ids: Sequence[int], targets: Sequence[bool]) -> list[int]:
    return [token if learned else -100 for token, learned in zip(ids, targets, strict=True)]


def _lora_config(plan: RunPlan) -> LoraConfig | None:
    if plan.tuning.kind != "lora":
        return None
    targets = plan.tuning.target_modules
    return LoraConfig(
        r=plan.tuning.r,
        lora_alpha=plan.tuning.alpha,
        lora_dropout=plan.tuning.dropout,
        target_modules=targets if isinstance(targets, str) else list(targets),
        task_type="CAUSAL_LM",
    )


def steps_of(trainer: Any, initial: Mapping[str, torch.Tensor]) -> list[Step]:
    """Train from these weights on."""
    weights = {name: weight for name, weight in trainer.model.named_parameters() if weight.requires_grad}
    assert weights.keys() == initial.keys()
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(initial[name])
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "grad_norm" in entry]
    return [(entry["loss"], entry["grad_norm"], entry["learning_rate"]) for entry in logged]
