"""What the fields of a job file must be together: contradictions, and settings without an effect."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from finetuned.core.jobfile.findings import Findings, shown
from finetuned.core.jobfile.later import LATER_SOURCES
from finetuned.core.jobfile.reading import Given

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")
_FORCED_HUB_NAME = re.compile(r"hub:([A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*(@[\w./-]+)?")
_SCHEME = re.compile(r"[a-z0-9]+:")
_FILE_SUFFIX = re.compile(r"\.(jsonl?|ndjson|txt|gz|zst|csv|tsv|parquet|arrow)$", re.IGNORECASE)
_LORA_FIELDS = ("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules")
_BATCH_PAIR = ("per_device_train_batch_size", "gradient_accumulation_steps")

Asked = Mapping[str, Given]


def check_job(asked: Asked, findings: Findings) -> None:
    """Look at every rule that takes more than one field, or more than a field's type."""
    _check_base_model(asked, findings)
    _check_only_one(asked, findings, "num_train_epochs", "max_steps", "how long the run is")
    _check_only_one(asked, findings, "warmup_ratio", "warmup_steps", "how long the warm-up is")
    _check_warmup_length(asked, findings)
    _check_evaluation(asked, findings)
    _check_batch(asked, findings)
    _check_tuning(asked, findings)
    _check_method(asked, findings)


def check_dataset(asked: Asked, findings: Findings) -> None:
    """Whether a path can be one; whether it is there is not looked at."""
    if (path := _text(asked, "path")) is None:
        return
    given = asked["path"]
    if later := _later_source(path):
        what = f"is {shown(path)}: known, but this version cannot do it yet ({later})"
        findings.refuse(given.line, given.name, what, "copy the rows to this machine and write the file's path")
    elif path.startswith("~"):
        _refuse_tilde(given, findings)
    elif _SCHEME.match(path):
        _refuse(given, findings, "the path of a JSONL file", "write the path alone, as /path/to/rows.jsonl")
    elif _HUB_NAME.fullmatch(path) and not _FILE_SUFFIX.search(path):
        what = f"is {shown(path)}: known, but this version cannot do it yet (data sets on a hub)"
        findings.refuse(given.line, given.name, what, f"write the path of a JSONL file; for a file here: ./{path}")
    elif not path.strip():
        _refuse(given, findings, "the path of a JSONL file", "")


def check_export(asked: Asked, findings: Findings) -> None:
    """Nothing here excludes anything else."""


def implied_values(asked: Asked) -> dict[str, Any]:
    """Values that follow from the others: two numbers about a device's batch are one about the whole batch."""
    per_device, accumulation = (_value(asked, name) for name in _BATCH_PAIR)
    if per_device is None or _value(asked, "global_batch_size") is not None:
        return {}
    return {"global_batch_size": per_device * (accumulation or 1)}


def _check_base_model(asked: Asked, findings: Findings) -> None:
    if (model := _text(asked, "base_model")) is None:
        return
    given = asked["base_model"]
    if model.startswith(("/", "./", "../", "file:")):
        if revision := _given(asked, "revision"):
            what = (
                f"is {shown(revision.value)}, but base_model in line {given.line} is a folder, which has no revisions"
            )
            findings.refuse(revision.line, revision.name, what, "leave revision out")
    elif later := _later_source(model):
        what = f"is {shown(model)}: known, but this version cannot do it yet ({later})"
        findings.refuse(given.line, given.name, what, "copy the model's folder to this machine and write its path")
    elif model.startswith("~"):
        _refuse_tilde(given, findings)
    elif not (_HUB_NAME.fullmatch(model) or _FORCED_HUB_NAME.fullmatch(model)):
        folder = f"./{model}" if re.fullmatch(r"[\w./-]+", model) else "/path/to/model"
        _refuse(given, findings, "a folder (/… or ./…) or org/name on the hub", f"for a folder write {folder}")
    else:
        _check_revision(asked, findings, model.partition("@")[2])


def _check_revision(asked: Asked, findings: Findings, in_name: str) -> None:
    revision = _given(asked, "revision")
    if revision and in_name and revision.value != in_name:
        what = (
            f"is {shown(revision.value)}, but base_model in line {asked['base_model'].line} asks for {shown(in_name)}"
        )
        findings.refuse(revision.line, revision.name, what, "keep one of them")


def _check_only_one(asked: Asked, findings: Findings, one: str, other: str, both_say: str) -> None:
    first, second = _given(asked, one), _given(asked, other)
    if not first or not second:
        return
    earlier, later = sorted((first, second), key=lambda given: given.line)
    what = f"is {later.value:g}, but {earlier.name} in line {earlier.line} also says {both_say}"
    findings.refuse(later.line, later.name, what, "keep one of them")


def _check_warmup_length(asked: Asked, findings: Findings) -> None:
    warmup, steps = _given(asked, "warmup_steps"), _given(asked, "max_steps")
    if warmup and steps and warmup.value >= steps.value:
        what = f"is {warmup.value}, but the whole run is {steps.value} steps (line {steps.line})"
        findings.refuse(warmup.line, warmup.name, what, "a warm-up takes a few percent of a run")


def _check_evaluation(asked: Asked, findings: Findings) -> None:
    val_set_size = _given(asked, "val_set_size")
    if val_set_size and val_set_size.value >= 1 and val_set_size.value != int(val_set_size.value):
        _refuse(val_set_size, findings, "a part below 1, or a whole number of rows", "")
    eval_datasets = asked.get("eval_datasets")
    has_eval_datasets = eval_datasets is not None and eval_datasets.value != ()
    if val_set_size and val_set_size.value > 0 and eval_datasets and eval_datasets.value:
        what = f"is {val_set_size.value:g}, but eval_datasets in line {eval_datasets.line} holds the evaluation rows"
        findings.refuse(val_set_size.line, val_set_size.name, what, "keep one of them")
    why_none = _why_no_evaluation(asked, val_set_size, has_eval_datasets)
    if why_none:
        for given in _needs_evaluation(asked):
            findings.refuse(given.line, given.name, f"needs evaluation, but {why_none}", "leave one of them out")
    if _value(asked, "early_stopping_threshold") and not _given(asked, "early_stopping_patience"):
        given = asked["early_stopping_threshold"]
        findings.notice(given.line, given.name, "has no effect without early_stopping_patience")


def _why_no_evaluation(asked: Asked, val_set_size: Given | None, has_eval_datasets: bool) -> str:
    strategy = _given(asked, "eval_strategy")
    if strategy and strategy.value == "no":
        return f"{strategy.name} in line {strategy.line} is no"
    if val_set_size and val_set_size.value == 0 and not has_eval_datasets:
        return f"{val_set_size.name} in line {val_set_size.line} is 0 and there are no eval_datasets"
    return ""


def _needs_evaluation(asked: Asked) -> Iterator[Given]:
    for name in ("eval_steps", "early_stopping_patience", "load_best_model_at_end", "metric_for_best_model"):
        given = _given(asked, name)
        if given and given.value is not False:
            yield given


def _check_batch(asked: Asked, findings: Findings) -> None:
    whole, per_device, accumulation = (_given(asked, name) for name in ("global_batch_size", *_BATCH_PAIR))
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


def _check_tuning(asked: Asked, findings: Findings) -> None:
    is_full = _value(asked, "finetuning_type") == "full"
    for name in _LORA_FIELDS:
        if is_full and (given := _given(asked, name)):
            findings.notice(given.line, given.name, "has no effect: finetuning_type is full")
    target = _given(asked, "lora_target_modules")
    if target and isinstance(target.value, str) and not _is_pattern(target.value):
        _refuse(target, findings, "all-linear, a list of module names, or a regular expression", "")


def _check_method(asked: Asked, findings: Findings) -> None:
    if (template := _text(asked, "chat_template")) is not None:
        _check_template(asked["chat_template"], template, findings)
    if _value(asked, "method") != "pretrain":
        return
    for name in ("train_on_inputs", "chat_template"):
        if given := _given(asked, name):
            findings.notice(given.line, given.name, "has no effect: method pretrain learns plain text whole")
    for name in ("datasets", "eval_datasets"):
        given = asked.get(name)
        if given and any(dataset.format == "chat" for dataset in given.value or ()):
            what = f"has rows in chat format, but method in line {asked['method'].line} is pretrain, which learns text"
            findings.refuse(given.line, given.name, what, "write method: sft, or format: text")


def _check_template(given: Given, template: str, findings: Findings) -> None:
    if template in ("chatml", "llama3"):
        return
    if "{%" in template or "{{" in template:
        what = "holds a template: known, but this version cannot do it yet (templates inside a job file)"
        findings.refuse(given.line, given.name, what, "write it to a file and name the file's path here")
    elif "/" not in template and not template.endswith((".jinja", ".jinja2", ".j2")):
        hint = "leave it out to use the model's own"
        _refuse(given, findings, "chatml, llama3 or the path of a Jinja file (/… or ./…)", hint)
    elif template.startswith("~"):
        _refuse_tilde(given, findings)


def _is_pattern(text: str) -> bool:
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError):
        return False
    return bool(text)


def _later_source(text: str) -> str | None:
    scheme = _SCHEME.match(text)
    return LATER_SOURCES.get(scheme.group()) if scheme else None


def _refuse(given: Given, findings: Findings, expected: str, hint: str) -> None:
    found = shown(given.value) if isinstance(given.value, str) else f"{given.value:g}"
    findings.refuse(given.line, given.name, f"is {found}; expected {expected}", hint)


def _refuse_tilde(given: Given, findings: Findings) -> None:
    what = f"is {shown(given.value)}; expected a path without ~, which would be the daemon's home and not yours"
    findings.refuse(given.line, given.name, what, "write the whole path, beginning with /")


def _given(asked: Asked, name: str) -> Given | None:
    """The field if it has a value of its own: neither auto nor already refused."""
    given = asked.get(name)
    return given if given is not None and given.value is not None else None


def _value(asked: Asked, name: str) -> Any:
    given = asked.get(name)
    return given.value if given else None


def _text(asked: Asked, name: str) -> str | None:
    value = _value(asked, name)
    return value if isinstance(value, str) else None
