"""The particulars of a run in words: its settings, the rows left out, what was proven, and the versions it ran with."""

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from finetuned import __version__
from finetuned.core.plan import DataFacts, FreezeTuning, LoraTuning, RunPlan

if TYPE_CHECKING:
    from finetuned.train.artifacts.proof import Proof


def settings_of(plan: RunPlan) -> dict[str, str]:
    """What was trained and how, under the names of the job file."""
    optimizer, schedule, batches = plan.optimizer, plan.schedule, plan.batches
    settings: dict[str, object] = {
        "base_model": plan.model.name,
        "revision": plan.model.revision,
        "method": plan.method,
        **_tuning_settings(plan),
    }
    settings |= {
        "max_seq_length": plan.data.max_seq_length,
        "learning_rate": optimizer.learning_rate,
        "loraplus_lr_ratio": None if optimizer.loraplus_lr_ratio == 1 else optimizer.loraplus_lr_ratio,
        "optim": optimizer.optim,
        "lr_scheduler_type": schedule.lr_scheduler_type,
        "warmup_steps": schedule.warmup_steps,
        "weight_decay": optimizer.weight_decay,
        "adam_beta1": optimizer.adam_beta1,
        "adam_beta2": optimizer.adam_beta2,
        "adam_epsilon": optimizer.adam_epsilon,
        "max_grad_norm": optimizer.max_grad_norm,
        "num_train_epochs": round(schedule.total_steps / batches.steps_per_epoch, 3),
        "max_steps": schedule.total_steps,
        "global_batch_size": batches.global_batch_size,
        "eval_steps": plan.cadence.eval_steps or None,
        "load_best_model_at_end": plan.selection.load_best,
        "early_stopping_patience": plan.selection.early_stopping_patience or None,
        "precision": plan.precision,
        "gradient_checkpointing": plan.gradient_checkpointing,
        "device": plan.device,
        "seed": plan.seed,
    }
    return {name: _shown(value) for name, value in settings.items() if value is not None}


def _tuning_settings(plan: RunPlan) -> dict[str, object]:
    new_tokens = [*plan.added_tokens, *plan.added_special_tokens]
    added: dict[str, object] = {"new tokens": ", ".join(new_tokens) or None}
    match plan.tuning:
        case FreezeTuning() as tuning:
            return {
                "finetuning_type": "freeze",
                "unfrozen_parameters": ", ".join(tuning.unfrozen_parameters),
                **added,
            }
        case LoraTuning() as tuning:
            modules = tuning.target_modules
            return {
                "finetuning_type": "lora" if tuning.quantization is None else "qlora",
                **_quantization_settings(tuning),
                "lora_r": tuning.r,
                "lora_alpha": tuning.alpha,
                "lora_dropout": tuning.dropout,
                "lora_target_modules": modules if isinstance(modules, str) else ", ".join(modules),
                "use_dora": tuning.use_dora or None,
                "use_rslora": tuning.use_rslora or None,
                "init_lora_weights": None if tuning.init_lora_weights == "default" else tuning.init_lora_weights,
                "modules_to_save": ", ".join(tuning.modules_to_save) or None,
                "init_adapter": tuning.init_adapter.path if tuning.init_adapter else None,
                **added,
            }
        case _:
            return {"finetuning_type": "full", **added}


def _quantization_settings(tuning: LoraTuning) -> dict[str, object]:
    quantization = tuning.quantization
    if quantization is None:
        return {}
    if quantization.kind == "int8":
        return {"load_in_8bit": True}
    return {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": quantization.kind,
        "bnb_4bit_use_double_quant": quantization.double_quant,
    }


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


def tuning_word(plan: RunPlan) -> str:
    """What kind of tuning it was: LoRA, QLoRA, DoRA, full or partial."""
    match plan.tuning:
        case LoraTuning(use_dora=True, quantization=None):
            return "DoRA"
        case LoraTuning(use_dora=True):
            return "QDoRA"
        case LoraTuning(quantization=None):
            return "LoRA"
        case LoraTuning():
            return "QLoRA"
        case FreezeTuning():
            return "partial"
        case _:
            return "full"


def touched_rows(data: DataFacts) -> tuple[str, ...]:
    """What became of rows that were not trained on as they are, a line a reason; nothing where there were none."""
    too_long = data.dropped_rows - data.rows_without_targets
    found = (
        (too_long, f"dropped as longer than {data.max_seq_length:,} tokens"),
        (data.rows_without_targets, "dropped for having nothing to learn"),
        (data.truncated_rows, f"cut to {data.max_seq_length:,} tokens"),
        (data.weighted_out_rows, "left out by the weights of their sets"),
    )
    lines = [f"{_rows(rows)} {'was' if rows == 1 else 'were'} {what}" for rows, what in found if rows > 0]
    if data.duplicate_rows:
        lines.append(f"{_rows(data.duplicate_rows)} said exactly what an earlier one did")
    return tuple(lines)


def _rows(number: int) -> str:
    return "1 row" if number == 1 else f"{number:,} rows"


def proven(proof: "Proof") -> tuple[str, ...]:
    """What the fresh process compared, a line each."""
    lines = [
        f"{proof.tensors:,} tensors are the {'merged' if proof.folder == 'merged' else 'trained'} ones, bit for bit"
    ]
    if proof.tokens:
        allowed = "" if proof.tolerance is None else f", {proof.tolerance:g} of it would pass"
        lines.append(
            f"logits of {proof.tokens:,} tokens differ from the trained model's by at most "
            f"{proof.largest_logit_difference:.3g} (the largest is {proof.largest_logit:.3g}{allowed}); "
            f"mean KL divergence {proof.mean_kl:.2g} nats"
        )
    if proof.chats:
        lines.append(f"{proof.chats:,} probe chats are rendered and encoded to the very ids that were trained on")
    if proof.answer_tokens:
        end = "ended with a stop" if proof.answer_stopped else "was cut short"
        lines.append(f"it generates: its answer of {proof.answer_tokens:,} tokens to a probe {end}")
    return tuple(lines)


@cache
def versions() -> dict[str, str]:
    """Exact versions of what computed the result."""
    found = {"finetuned": __version__, "python": platform.python_version()}
    for package in ("torch", "transformers", "peft", "tokenizers", "safetensors", "bitsandbytes"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
