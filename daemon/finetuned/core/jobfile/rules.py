"""What the fields of a job file must be together: contradictions, and settings without an effect."""

import re
from collections.abc import Iterator
from typing import Any

from finetuned.core.jobfile.asked import Asked, find, refuse, refuse_tilde, text_of, value_of
from finetuned.core.jobfile.data_rules import HUB_NAME, check_method, later_source
from finetuned.core.jobfile.findings import Findings, shown
from finetuned.core.jobfile.reading import Given
from finetuned.core.jobfile.tuning_rules import check_tuning, implied_tuning

_FORCED_HUB_NAME = re.compile(r"hub:([A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*(@[\w./-]+)?")
_BATCH_PAIR = ("per_device_train_batch_size", "gradient_accumulation_steps")


def check_job(asked: Asked, findings: Findings) -> None:
    """Look at every rule that takes more than one field, or more than a field's type."""
    _check_base_model(asked, findings)
    _check_only_one(asked, findings, "num_train_epochs", "max_steps", "how long the run is")
    _check_only_one(asked, findings, "warmup_ratio", "warmup_steps", "how long the warm-up is")
    _check_warmup_length(asked, findings)
    _check_decay(asked, findings)
    _check_evaluation(asked, findings)
    _check_batch(asked, findings)
    check_tuning(asked, findings)
    check_method(asked, findings)


def implied_values(asked: Asked) -> dict[str, Any]:
    """Values that follow from the others: two numbers about a device's batch are one about the whole batch."""
    implied = implied_tuning(asked)
    per_device, accumulation = (value_of(asked, name) for name in _BATCH_PAIR)
    if per_device is not None and value_of(asked, "global_batch_size") is None:
        implied["global_batch_size"] = per_device * (accumulation or 1)
    return implied


def _check_base_model(asked: Asked, findings: Findings) -> None:
    if (model := text_of(asked, "base_model")) is None:
        return
    given = asked["base_model"]
    if model.startswith(("/", "./", "../", "file:")):
        if revision := find(asked, "revision"):
            what = (
                f"is {shown(revision.value)}, but base_model in line {given.line} is a folder, which has no revisions"
            )
            findings.refuse(revision.line, revision.name, what, "leave revision out")
    elif later := later_source(model):
        what = f"is {shown(model)}: known, but this version cannot do it yet ({later})"
        findings.refuse(given.line, given.name, what, "copy the model's folder to this machine and write its path")
    elif model.startswith("~"):
        refuse_tilde(given, findings)
    elif not (HUB_NAME.fullmatch(model) or _FORCED_HUB_NAME.fullmatch(model)):
        folder = f"./{model}" if re.fullmatch(r"[\w./-]+", model) else "/path/to/model"
        refuse(given, findings, "a folder (/… or ./…) or org/name on the hub", f"for a folder write {folder}")
    else:
        _check_revision(asked, findings, model.partition("@")[2])


def _check_revision(asked: Asked, findings: Findings, in_name: str) -> None:
    revision = find(asked, "revision")
    if revision and in_name and revision.value != in_name:
        what = (
            f"is {shown(revision.value)}, but base_model in line {asked['base_model'].line} asks for {shown(in_name)}"
        )
        findings.refuse(revision.line, revision.name, what, "keep one of them")


def _check_only_one(asked: Asked, findings: Findings, one: str, other: str, both_say: str) -> None:
    first, second = find(asked, one), find(asked, other)
    if not first or not second:
        return
    earlier, later = sorted((first, second), key=lambda given: given.line)
    what = f"is {later.value:g}, but {earlier.name} in line {earlier.line} also says {both_say}"
    findings.refuse(later.line, later.name, what, "keep one of them")


def _check_warmup_length(asked: Asked, findings: Findings) -> None:
    warmup, steps = find(asked, "warmup_steps"), find(asked, "max_steps")
    if warmup and steps and warmup.value >= steps.value:
        what = f"is {warmup.value}, but the whole run is {steps.value} steps (line {steps.line})"
        findings.refuse(warmup.line, warmup.name, what, "a warm-up takes a few percent of a run")


def _check_decay(asked: Asked, findings: Findings) -> None:
    decay, warmup = find(asked, "lr_decay_ratio"), find(asked, "warmup_ratio")
    if decay and value_of(asked, "lr_scheduler_type") != "warmup_stable_decay":
        findings.notice(decay.line, decay.name, "has no effect: only warmup_stable_decay has a decay of its own")
    elif decay and warmup and decay.value + warmup.value > 1:
        what = (
            f"is {decay.value:g}, which with {warmup.name} {warmup.value:g} in line {warmup.line} is more than the run"
        )
        findings.refuse(decay.line, decay.name, what, "both are parts of the run: together at most 1")


def _check_evaluation(asked: Asked, findings: Findings) -> None:
    val_set_size = find(asked, "val_set_size")
    if val_set_size and val_set_size.value >= 1 and val_set_size.value != int(val_set_size.value):
        refuse(val_set_size, findings, "a part below 1, or a whole number of rows", "")
    eval_datasets = asked.get("eval_datasets")
    has_eval_datasets = eval_datasets is not None and eval_datasets.value != ()
    if val_set_size and val_set_size.value > 0 and eval_datasets and eval_datasets.value:
        what = f"is {val_set_size.value:g}, but eval_datasets in line {eval_datasets.line} holds the evaluation rows"
        findings.refuse(val_set_size.line, val_set_size.name, what, "keep one of them")
    why_none = _why_no_evaluation(asked, val_set_size, has_eval_datasets)
    if why_none:
        for given in _needs_evaluation(asked):
            findings.refuse(given.line, given.name, f"needs evaluation, but {why_none}", "leave one of them out")
    if value_of(asked, "early_stopping_threshold") and not find(asked, "early_stopping_patience"):
        given = asked["early_stopping_threshold"]
        findings.notice(given.line, given.name, "has no effect without early_stopping_patience")


def _why_no_evaluation(asked: Asked, val_set_size: Given | None, has_eval_datasets: bool) -> str:
    strategy = find(asked, "eval_strategy")
    if strategy and strategy.value == "no":
        return f"{strategy.name} in line {strategy.line} is no"
    if val_set_size and val_set_size.value == 0 and not has_eval_datasets:
        return f"{val_set_size.name} in line {val_set_size.line} is 0 and there are no eval_datasets"
    return ""


def _needs_evaluation(asked: Asked) -> Iterator[Given]:
    for name in ("eval_steps", "early_stopping_patience", "load_best_model_at_end", "metric_for_best_model"):
        given = find(asked, name)
        if given and given.value is not False:
            yield given


def _check_batch(asked: Asked, findings: Findings) -> None:
    whole, per_device, accumulation = (find(asked, name) for name in ("global_batch_size", *_BATCH_PAIR))
    if per_device and not whole:
        total = per_device.value * (accumulation.value if accumulation else 1)
        factors = f"{per_device.value} × {accumulation.value}" if accumulation else f"{per_device.value}"
        what = f"gives global_batch_size {total} ({factors} on one device); micro-batches are cut to the memory"
        findings.notice(per_device.line, per_device.name, what)
    elif accumulation and not whole:
        what = f"is {accumulation.value}, which says nothing without the size of a micro-batch"
        findings.refuse(
            accumulation.line, accumulation.name, what, "write global_batch_size: examples an optimizer step"
        )
    elif whole and per_device and accumulation and per_device.value * accumulation.value != whole.value:
        what = (
            f"is {whole.value}, but {per_device.name} × {accumulation.name} is "
            f"{per_device.value} × {accumulation.value} = {per_device.value * accumulation.value}"
        )
        findings.refuse(whole.line, whole.name, what, "keep global_batch_size alone")
    elif whole:
        for given in (per_device, accumulation):
            if given:
                what = "has no effect beside global_batch_size: micro-batches are cut to the memory"
                findings.notice(given.line, given.name, what)
