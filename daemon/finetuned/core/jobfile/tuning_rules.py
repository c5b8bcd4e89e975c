"""Rules about what is trained: adapters, quantization, single layers, new tokens."""

import re
from typing import Any

from finetuned.core.jobfile.asked import Asked, find, notice_no_effect, refuse, refuse_tilde, text_of, value_of
from finetuned.core.jobfile.findings import Findings, shown

_ADAPTER_FIELDS = (
    *("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "use_dora", "use_rslora", "init_lora_weights"),
    *("modules_to_save", "loraplus_lr_ratio"),
)
_OF_THE_ADAPTER = ("init_lora_weights",)
_QUANTIZED_FIELDS = ("bnb_4bit_quant_type", "bnb_4bit_use_double_quant")


def check_tuning(asked: Asked, findings: Findings) -> None:
    """Contradictions between the fields that say what is trained, and fields without an effect."""
    kind = text_of(asked, "finetuning_type") or "lora"
    if kind in ("full", "freeze"):
        _check_whole_weights(asked, findings, kind)
    else:
        _check_quantization(asked, findings, kind)
        _check_adapter(asked, findings)
    _check_unfrozen(asked, findings, kind)
    _check_new_tokens(asked, findings)


def implied_tuning(asked: Asked) -> dict[str, Any]:
    """An adapter on a base in 4 or 8 bits is qlora by its own name."""
    is_quantized = value_of(asked, "load_in_4bit") or value_of(asked, "load_in_8bit")
    return {"finetuning_type": "qlora"} if is_quantized else {}


def _check_whole_weights(asked: Asked, findings: Findings, kind: str) -> None:
    why = f"finetuning_type is {kind}"
    notice_no_effect(asked, findings, (*_ADAPTER_FIELDS, *_QUANTIZED_FIELDS), why)
    for name in ("load_in_4bit", "load_in_8bit"):
        if (given := find(asked, name)) and given.value:
            what = f"is true, but {why}, and quantized weights cannot be trained"
            findings.refuse(given.line, given.name, what, "write finetuning_type: qlora, or leave it out")
    if given := find(asked, "init_adapter"):
        what = f"is {shown(given.value)}, but {why}, which has no adapter"
        findings.refuse(
            given.line, given.name, what, "merge the adapter first and name the merged folder as base_model"
        )
    export = value_of(asked, "export")
    if export and export.merge:
        given = asked["export"]
        findings.notice(given.line, f"{given.name}.merge", f"has no effect: {why}, and its result is a whole model")


def _check_quantization(asked: Asked, findings: Findings, kind: str) -> None:
    four, eight = find(asked, "load_in_4bit"), find(asked, "load_in_8bit")
    chosen = [given for given in (four, eight) if given and given.value]
    if len(chosen) == 2:
        first, second = sorted(chosen, key=lambda given: given.line)
        what = f"is true, and so is {first.name} in line {first.line}"
        findings.refuse(second.line, second.name, what, "keep one of them")
    elif kind == "qlora" and four and not four.value and not chosen:
        what = "is false, but finetuning_type is qlora, which holds the base in 4 or 8 bits"
        findings.refuse(four.line, four.name, what, "write load_in_8bit: true, or finetuning_type: lora")
    elif kind == "lora" and chosen:
        findings.notice(chosen[0].line, chosen[0].name, "holds the base quantized: read as finetuning_type: qlora")
    if kind == "lora" and not chosen:
        notice_no_effect(asked, findings, _QUANTIZED_FIELDS, "the base is not held in 4 bits (finetuning_type: qlora)")
    elif eight and eight.value:
        notice_no_effect(asked, findings, _QUANTIZED_FIELDS, "the base is held in 8 bits")


def _check_adapter(asked: Asked, findings: Findings) -> None:
    target = find(asked, "lora_target_modules")
    if target and isinstance(target.value, str) and not _is_pattern(target.value):
        refuse(target, findings, "all-linear, a list of module names, or a regular expression", "")
    dora, eight = find(asked, "use_dora"), find(asked, "load_in_8bit")
    if dora and dora.value and eight and eight.value:
        what = f"is true, and {eight.name} in line {eight.line} holds the base in 8 bits, from which PEFT loads no DoRA"
        findings.refuse(dora.line, dora.name, what, "write load_in_4bit: true, or leave use_dora out")
    start, rank = find(asked, "init_lora_weights"), value_of(asked, "lora_r")
    if start and start.value == "orthogonal" and rank and rank % 2:
        findings.refuse(start.line, start.name, f"is orthogonal, which needs an even lora_r, and that is {rank}", "")
    if (adapter := find(asked, "init_adapter")) is None:
        return
    if adapter.value.startswith("~"):
        refuse_tilde(adapter, findings)
    notice_no_effect(asked, findings, _OF_THE_ADAPTER, "training goes on from init_adapter")


def _check_unfrozen(asked: Asked, findings: Findings, kind: str) -> None:
    patterns = find(asked, "unfrozen_parameters")
    if kind != "freeze":
        why = f"finetuning_type is {kind}; freeze trains what it names"
        notice_no_effect(asked, findings, ("unfrozen_parameters",), why)
        return
    if patterns is None:
        line = asked["finetuning_type"].line
        what = "is missing, and finetuning_type: freeze trains only the weights that it names"
        findings.refuse(line, "unfrozen_parameters", what, "e.g. unfrozen_parameters: [layers\\.(30|31)\\., lm_head]")
        return
    for pattern in patterns.value:
        if not _is_pattern(pattern):
            what = f"has {shown(pattern)}, which is no regular expression"
            findings.refuse(patterns.line, patterns.name, what, "a dot in a name is written \\.")


def _check_new_tokens(asked: Asked, findings: Findings) -> None:
    seen: dict[str, str] = {}
    for name in ("added_tokens", "added_special_tokens"):
        if (given := find(asked, name)) is None:
            continue
        for token in given.value:
            if not token.strip():
                findings.refuse(given.line, given.name, f"has {shown(token)}, which is no token", "")
            elif token in seen:
                findings.refuse(
                    given.line, given.name, f"has {shown(token)}, which {seen[token]} has, too", "name it once"
                )
            seen.setdefault(token, given.name)


def _is_pattern(text: str) -> bool:
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError):
        return False
    return bool(text)
