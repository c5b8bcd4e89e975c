"""JobSpec + facts + Machine → RunPlan: every choice that `auto` leaves open, made without a GPU and written down."""

import hashlib
import json
import math
from collections.abc import Sequence
from typing import Literal

from finetuned.core.memory import StaticBytes, static_bytes
from finetuned.core.plan import (
    Batches,
    Cadence,
    DataFacts,
    Device,
    Exports,
    Facts,
    Machine,
    ModelFacts,
    RunPlan,
    Schedule,
    Selection,
)
from finetuned.core.problems import CannotRun, Problem
from finetuned.core.spec import JobSpec
from finetuned.core.tuning import adapter_problems, choose_optimizer, choose_tuning, is_adapter

DEFAULT_EPOCHS = 3.0
DEFAULT_WARMUP_RATIO = 0.03
STEPS_WORTH_HAVING = 50
EVALUATIONS_A_RUN = 10
EVALUATION_SHARE = 0.05
MEMORY_SHARE = 0.94
"""Of a device's memory; the rest is the driver's and the allocator's."""

# A CPU has no kernel for packed rows: a block-diagonal mask costs T x T, so rows are laid together only while short.
CPU_MICRO_BATCH_TOKENS = 512
CPU_EVAL_MICRO_BATCH_TOKENS = 1024
GPU_MICRO_BATCH_TOKENS = 16384
GPU_LEAST_MICRO_BATCH_TOKENS = 2048


def make_plan(spec: JobSpec, facts: Facts, machine: Machine) -> RunPlan:
    """The complete plan of a run. Raises CannotRun with every reason why there can be none."""
    device = _device(spec, machine)
    problems = [
        *_evaluation_problems(spec, facts.data),
        *adapter_problems(spec, facts.adapter),
        *_memory_problems(spec, facts, device),
        *_merge_problems(spec, facts.model, machine),
    ]
    if problems:
        raise CannotRun(problems)
    batches, total_steps, notices = _lay_out(spec, facts, device)
    evaluates = facts.data.eval_rows > 0 and spec.eval_strategy == "steps"
    plan = RunPlan(
        method=spec.method,
        tuning=choose_tuning(spec, facts.adapter),
        model=facts.model,
        data=facts.data,
        optimizer=choose_optimizer(spec),
        schedule=Schedule(
            lr_scheduler_type=spec.lr_scheduler_type,
            warmup_steps=_warmup_steps(spec, total_steps),
            decay_steps=_decay_steps(spec, total_steps),
            total_steps=total_steps,
        ),
        batches=batches,
        cadence=Cadence(
            logging_steps=spec.logging_steps,
            eval_steps=_eval_steps(spec, facts.data, batches, total_steps) if evaluates else 0,
            save_steps=spec.save_steps or 0,
            save_minutes=0 if spec.save_steps else 10,
            save_total_limit=spec.save_total_limit or (2 if is_adapter(spec) else 1),
        ),
        selection=Selection(
            load_best=evaluates if spec.load_best_model_at_end is None else spec.load_best_model_at_end,
            early_stopping_patience=spec.early_stopping_patience or 0,
            early_stopping_threshold=spec.early_stopping_threshold,
        ),
        added_tokens=spec.added_tokens,
        added_special_tokens=spec.added_special_tokens,
        exports=Exports(merge=spec.export.merge and is_adapter(spec), gguf=spec.export.gguf),
        seed=spec.seed,
        precision=_precision(spec, device),
        gradient_checkpointing=_is_gpu(device) if spec.gradient_checkpointing is None else spec.gradient_checkpointing,
        device="cuda" if _is_gpu(device) else "cpu",
        notices=notices,
        digest="",
    )
    return plan.model_copy(update={"digest": digest(plan)})


def digest(plan: RunPlan) -> str:
    """sha256 (hex) over what defines the result; not the device, nor when to save or how to cut micro-batches."""
    defining = {
        "method": plan.method,
        "tuning": plan.tuning.model_dump(mode="json"),
        "model": [(file.path, file.sha256) for file in plan.model.files],
        "data": (plan.data.prepared, plan.data.train_rows, plan.data.eval_rows),
        "optimizer": plan.optimizer.model_dump(mode="json"),
        "schedule": plan.schedule.model_dump(mode="json"),
        "batch": (plan.batches.global_batch_size, plan.batches.steps_per_epoch, plan.batches.seed),
        "eval_steps": plan.cadence.eval_steps,
        "selection": plan.selection.model_dump(mode="json"),
        "added_tokens": (plan.added_tokens, plan.added_special_tokens),
        "seed": plan.seed,
        "precision": plan.precision,
    }
    return hashlib.sha256(json.dumps(defining, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _device(spec: JobSpec, machine: Machine) -> Device:
    if spec.device == "cpu" and machine.has_gpu:
        return Device(id="cpu:0", name="CPU", memory_bytes=machine.memory_bytes, has_bf16=False)
    return machine.devices[0]


def _is_gpu(device: Device) -> bool:
    return device.id.startswith("cuda")


def _evaluation_problems(spec: JobSpec, data: DataFacts) -> list[Problem]:
    if data.eval_rows > 0 and spec.eval_strategy == "steps":
        return []
    found = f"there are {data.eval_rows} evaluation rows ({data.train_rows} to train on)"
    hint = "set val_set_size (0.05 keeps 5 %), or name eval_datasets"
    asked = {
        "load_best_model_at_end": spec.load_best_model_at_end is True,
        "early_stopping_patience": spec.early_stopping_patience is not None,
        "metric_for_best_model": "metric_for_best_model" in spec.model_fields_set,
    }
    return [
        Problem(place=name, what=f"needs evaluation, and {found}", hint=hint)
        for name, is_set in asked.items()
        if is_set
    ]


def _memory_problems(spec: JobSpec, facts: Facts, device: Device) -> list[Problem]:
    """Only what can never fit: weights, gradients and optimizer states."""
    needed = _static_bytes(spec, facts, device)
    if needed.total <= MEMORY_SHARE * device.memory_bytes:
        return []
    what = (
        f"{spec.finetuning_type} tuning of {facts.model.name} needs at least {_gb(needed.total)} (weights "
        f"{_gb(needed.weights)}, gradients {_gb(needed.gradients)}, optimizer {_gb(needed.optimizer)}) without "
        f"activations; {device.name} has {_gb(device.memory_bytes)}"
    )
    return [Problem(place="memory", what=what, hint=_smaller(spec, facts, device))]


def _merge_problems(spec: JobSpec, model: ModelFacts, machine: Machine) -> list[Problem]:
    """An adapter is merged in main memory, into the whole base as it is stored."""
    is_merged = is_adapter(spec) and (spec.export.merge or spec.export.gguf != "none")
    if not is_merged or model.weight_bytes <= MEMORY_SHARE * machine.memory_bytes:
        return []
    what = (
        f"merging takes the base's {_gb(model.weight_bytes)} of main memory, and there are {_gb(machine.memory_bytes)}"
    )
    return [Problem(place="export", what=what, hint="leave it out, and merge the adapter on a larger machine")]


def _smaller(spec: JobSpec, facts: Facts, device: Device) -> str:
    """The first tuning that needs less and fits."""
    for kind in ("lora", "qlora"):
        other = spec.model_copy(update={"finetuning_type": kind, "load_in_8bit": None})
        needed = _static_bytes(other, facts, device).total
        if kind != spec.finetuning_type and needed <= MEMORY_SHARE * device.memory_bytes:
            return f"finetuning_type: {kind} needs about {_gb(needed)}"
    return "choose a smaller model"


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.0f} GB"


def _static_bytes(spec: JobSpec, facts: Facts, device: Device) -> StaticBytes:
    return static_bytes(
        choose_tuning(spec, facts.adapter),
        choose_optimizer(spec),
        facts,
        base_bytes=2 if _precision(spec, device) == "bf16" else 4,
        new_tokens=bool(spec.added_tokens or spec.added_special_tokens),
    )


def _precision(spec: JobSpec, device: Device) -> Literal["bf16", "fp32"]:
    return "bf16" if (device.has_bf16 if spec.bf16 is None else spec.bf16) else "fp32"


def _lay_out(spec: JobSpec, facts: Facts, device: Device) -> tuple[Batches, int, tuple[str, ...]]:
    """Batches, total steps, and what a person should know about them."""
    rows = facts.data.train_rows
    epochs = spec.num_train_epochs or DEFAULT_EPOCHS
    size = spec.global_batch_size or max(1, min(16, round(rows * epochs / 200)))
    steps_per_epoch = math.ceil(rows / size)
    total_steps = spec.max_steps or max(1, math.ceil(steps_per_epoch * epochs))
    notices: Sequence[str] = ()
    if total_steps < STEPS_WORTH_HAVING:
        more = "a higher max_steps gives" if spec.max_steps else "more rows or more num_train_epochs give"
        notices = (f"{total_steps} steps are few to learn from ({rows} rows, {size} a batch); {more} more",)
    train_tokens, eval_tokens = _micro_batch_tokens(spec, facts, device)
    batches = Batches(
        global_batch_size=size,
        steps_per_epoch=steps_per_epoch,
        micro_batch_tokens=train_tokens,
        eval_micro_batch_tokens=eval_tokens,
        seed=spec.seed,
    )
    return batches, total_steps, (*facts.notices, *notices)


def _micro_batch_tokens(spec: JobSpec, facts: Facts, device: Device) -> tuple[int, int]:
    """Budgets for training and evaluation: on a GPU the largest power of two that half the memory left will hold.

    A token costs, at most: a checkpointed hidden state a layer, one live layer (about 34 hidden states), and three fp32
    rows of logits. The other half is for fragmentation and workspace, until plans are measured.
    """
    if not _is_gpu(device):
        return CPU_MICRO_BATCH_TOKENS, CPU_EVAL_MICRO_BATCH_TOKENS
    model = facts.model
    keeps_layers = spec.gradient_checkpointing is False
    hidden_states = model.layers * (34 if keeps_layers else 1) + 34
    token_bytes = hidden_states * model.hidden_size * 2 + 3 * 4 * model.vocab_size
    left = MEMORY_SHARE * device.memory_bytes - _static_bytes(spec, facts, device).total
    budget = GPU_MICRO_BATCH_TOKENS
    while budget > GPU_LEAST_MICRO_BATCH_TOKENS and budget * token_bytes > left / 2:
        budget //= 2
    return budget, budget


def _warmup_steps(spec: JobSpec, total_steps: int) -> int:
    if spec.warmup_steps is not None:
        return min(spec.warmup_steps, total_steps)
    if spec.warmup_ratio is not None:
        return math.ceil(total_steps * spec.warmup_ratio)
    # Rounded down: the first step of a warm-up has a rate of 0, which a very short run cannot spare.
    return int(total_steps * DEFAULT_WARMUP_RATIO)


def _decay_steps(spec: JobSpec, total_steps: int) -> int:
    """At least one, and never into the warm-up."""
    if spec.lr_scheduler_type != "warmup_stable_decay":
        return 0
    return max(1, min(math.ceil(total_steps * spec.lr_decay_ratio), total_steps - _warmup_steps(spec, total_steps)))


def _eval_steps(spec: JobSpec, data: DataFacts, batches: Batches, total_steps: int) -> int:
    """About ten evaluations, fewer where they would take more than 5 % of the time (a forward is a third of a step)."""
    if spec.eval_steps is not None:
        return spec.eval_steps
    epochs = total_steps / batches.steps_per_epoch
    affordable = EVALUATION_SHARE * 3 * data.train_tokens * epochs / max(data.eval_tokens, 1)
    evaluations = max(1, min(EVALUATIONS_A_RUN, int(affordable)))
    return max(1, math.ceil(total_steps / evaluations))
