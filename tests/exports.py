"""Finished runs for the tests of export and report: a plan, events and a job directory that state only what matters."""

import json
import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from finetuned.core.events import Evaluated, Event, Noticed, Restored, Started, Stepped
from finetuned.core.job import Stage
from finetuned.core.plan import (
    Batches,
    Cadence,
    DataFacts,
    DataSource,
    Exports,
    FreezeTuning,
    FullTuning,
    LoraTuning,
    ModelFacts,
    Optimizer,
    RowNote,
    RunPlan,
    Schedule,
    Selection,
)
from finetuned.host.jobdir import JobDir
from finetuned.host.journal import Journal
from finetuned.host.stage import StageRun

EVENING = datetime(2026, 11, 30, 22, 15, tzinfo=UTC)
LORA = LoraTuning(r=4, alpha=8, dropout=0.0, target_modules="all-linear")
JOB = "20261130-221500-support-tone-7f3a09c1"


def a_plan(
    tuning: LoraTuning | FullTuning | FreezeTuning = LORA, model_path: str = "/models/tiny", **changes: object
) -> RunPlan:
    """A plan of 12 steps; changes go to the plan, or to `model` and `data` where those have a field of that name.

    `merge` and `gguf` are its exports.
    """
    model = {
        "name": model_path,
        "path": model_path,
        "files": (),
        "architecture": "LlamaForCausalLM",
        "parameters": 123_456,
        "weight_bytes": 493_824,
        "vocab_size": 600,
        "hidden_size": 64,
        "layers": 2,
        "max_position_embeddings": 512,
        "tied_embeddings": False,
    }
    data = {
        "prepared": "prepared-1",
        "sources": (DataSource(path="/srv/data/support.jsonl", sha256="ab" * 32, rows=60),),
        "train_rows": 48,
        "eval_rows": 10,
        "train_tokens": 2400,
        "train_target_tokens": 800,
        "eval_tokens": 500,
        "eval_target_tokens": 170,
        "longest_tokens": 90,
        "p50_tokens": 44,
        "p99_tokens": 88,
        "max_seq_length": 512,
        "dropped": (RowNote(place="support.jsonl:7", what="no assistant turn"),),
    }
    for facts, kind in ((model, ModelFacts), (data, DataFacts)):
        facts |= {name: changes.pop(name) for name in list(changes) if name in kind.model_fields}
    exports = {name: changes.pop(name) for name in ("merge", "gguf") if name in changes}
    fields: dict[str, object] = {
        "exports": Exports.model_validate(exports),
        "method": "sft",
        "tuning": tuning,
        "model": ModelFacts.model_validate(model),
        "data": DataFacts.model_validate(data),
        "optimizer": Optimizer(
            learning_rate=2e-4,
            weight_decay=0,
            adam_beta1=0.9,
            adam_beta2=0.999,
            adam_epsilon=1e-8,
            max_grad_norm=1.0,
        ),
        "schedule": Schedule(lr_scheduler_type="cosine", warmup_steps=1, total_steps=12),
        "batches": Batches(
            global_batch_size=12, steps_per_epoch=4, micro_batch_tokens=256, eval_micro_batch_tokens=512, seed=42
        ),
        "cadence": Cadence(logging_steps=1, eval_steps=4, save_steps=4, save_minutes=10, save_total_limit=2),
        "selection": Selection(load_best=True, early_stopping_patience=0, early_stopping_threshold=0),
        "seed": 42,
        "precision": "fp32",
        "gradient_checkpointing": False,
        "device": "cpu",
        "digest": "0123456789abcdef" * 4,
    }
    return RunPlan.model_validate(fields | changes)


def started(attempt: int = 1, after_minutes: float = 0) -> Started:
    time = EVENING + timedelta(minutes=after_minutes)
    return Started(time=time, launch=attempt, attempt=attempt, pid=1, boot_id="boot")


def stepped(step: int, total_steps: int = 12, loss: float | None = None) -> Stepped:
    return Stepped(
        time=EVENING + timedelta(seconds=step),
        step=step,
        total_steps=total_steps,
        epoch=step / 4,
        loss=1 + 1.5 * math.exp(-3 * step / total_steps) if loss is None else loss,
        grad_norm=0.5,
        learning_rate=2e-4 * (1 + math.cos(math.pi * step / total_steps)) / 2,
        tokens=600,
        target_tokens=200,
        micro_batches=3,
        seconds=1.0,
    )


def evaluated(step: int, eval_loss: float, *, is_best: bool = False) -> Evaluated:
    return Evaluated(
        time=EVENING + timedelta(seconds=step),
        step=step,
        eval_loss=eval_loss,
        target_tokens=170,
        is_best=is_best,
        seconds=0.5,
    )


def noticed(text: str) -> Noticed:
    return Noticed(time=EVENING, text=text)


def restored(step: int) -> Restored:
    return Restored(time=EVENING, checkpoint=f"step-{step:08d}", step=step)


def a_whole_run(total_steps: int = 12) -> list[Event]:
    """One attempt, evaluated before training and at its end."""
    steps = [stepped(step, total_steps) for step in range(1, total_steps + 1)]
    return [started(), evaluated(0, 2.5), *steps, evaluated(total_steps, 1.2, is_best=True)]


def a_stage_run(spool: Path, plan: RunPlan, probes: Sequence[dict[str, object]], events: Iterable[Event]) -> StageRun:
    """An opened attempt of the train stage in spool/active/JOB, with its prepared probes and what it said so far."""
    prepared = spool / "store" / "prepared" / plan.data.prepared
    prepared.mkdir(parents=True, exist_ok=True)
    (prepared / "probes.json").write_text(json.dumps(probes))
    job = JobDir(spool / "active" / JOB)
    job.path.mkdir(parents=True, exist_ok=True)
    run = StageRun(job, Stage.TRAIN, launch=1, attempt=1, journal=Journal(job.events_file(Stage.TRAIN)))
    for event in events:
        run.say(event)
    return run
