"""axolotl's YAML → our job file. What it does where the file is silent is written out."""

import re

from finetuned.core.importers.axolotl_best import translate_best
from finetuned.core.importers.axolotl_data import translate_datasets
from finetuned.core.importers.ledger import Found
from finetuned.core.importers.sources import translate_model
from finetuned.core.importers.trainer import (
    TrainerWords,
    translate_batch,
    translate_evaluation,
    translate_length,
    translate_optimizer,
    translate_precision,
    translate_saving,
    translate_schedule,
)
from finetuned.core.importers.work import Work
from finetuned.core.jobfile import text
from finetuned.core.jobfile.findings import shown
from finetuned.core.jobfile.values import found as shown_node

WORDS = TrainerWords(
    scheduler="lr_scheduler",
    optimizer="optimizer",
    epochs="num_epochs",
    micro_batch="micro_batch_size",
    val_size="val_set_size",
    early_stopping="early_stopping_patience",
    default_scheduler="cosine",
    default_epochs=1.0,
    default_micro_batch=1,
    default_warmup_ratio=0.03,
)
_DEFAULT_LENGTH = 512
_TURN_ENDS = {"chatml": "<|im_end|>", "llama3": "<|eot_id|>"}
_LENGTH_STRATEGIES = {"drop": "drop", "truncate": "truncate", "raise": "error"}
_ADAPTER_KEYS = (
    "lora_r lora_alpha lora_dropout lora_target_modules lora_target_linear lora_modules_to_save lora_model_dir "
    "peft_use_dora peft_use_rslora peft_init_lora_weights loraplus_lr_ratio bnb_config_kwargs peft"
)
_ADAPTER_STARTS = ("gaussian", "orthogonal")


def translate_axolotl(work: Work) -> None:
    translate_model(work, "base_model", "revision_of_model")
    translate_datasets(work)
    _translate_held_out(work)
    is_full = _translate_tuning(work)
    _translate_tokens(work)
    _translate_text(work)
    _translate_rate(work)
    translate_optimizer(work, WORDS)
    translate_schedule(work, WORDS)
    translate_length(work, WORDS)
    translate_batch(work, WORDS, _packing(work))
    translate_precision(work, is_full=is_full)
    _translate_checkpointing(work)
    if translate_evaluation(work, WORDS):
        translate_best(work, WORDS)
    translate_saving(work)
    if merge := work.keys.truth("merge_lora"):
        work.ledger.ignore(merge.found, "is a command of its own there; here export: {merge: true} does it")


def _translate_held_out(work: Work) -> None:
    held_out = work.keys.number("val_set_size")
    if work.draft.has("eval_datasets"):
        if held_out and held_out.value:
            work.ledger.refuse(held_out.found, "and test_datasets both name rows to evaluate on", "keep one of them")
        elif held_out:
            work.ledger.keep(held_out.found)
    elif held_out:
        work.draft.put("val_set_size", held_out.value, held_out.found)
    else:
        work.draft.put("val_set_size", 0, why="axolotl's default: nothing is held out")


def _translate_tuning(work: Work) -> bool:
    """Whether every weight is trained, or some of them: no adapter."""
    keys, draft = work.keys, work.draft
    adapter = keys.word("adapter")
    if adapter is None:
        _translate_weights(work)
        return True
    four, eight = keys.is_true("load_in_4bit"), keys.is_true("load_in_8bit")
    if adapter.value not in ("lora", "qlora"):
        work.ledger.refuse(adapter.found, f"is {shown(adapter.value)}: cannot be had here", "write lora or qlora")
        return False
    if adapter.value == "qlora" and not four:
        work.ledger.refuse(adapter.found, "is qlora, which needs load_in_4bit: true there", "add it")
    bits = [found for key in ("load_in_4bit", "load_in_8bit") if (found := keys.get(key))]
    draft.put("finetuning_type", "qlora" if four or eight else "lora", adapter.found, *bits)
    if eight and not four:
        draft.put("load_in_8bit", True, *keys.present(["load_in_8bit"]))
    _translate_quantization(work)
    _translate_adapter(work)
    return False


def _translate_weights(work: Work) -> None:
    keys = work.keys
    empty = [keys.all["adapter"]] if "adapter" in keys.all else []
    for key in ("load_in_4bit", "load_in_8bit"):
        if (bits := keys.truth(key)) and bits.value:
            work.ledger.refuse(bits.found, "is true, and quantized weights cannot be trained", "add adapter: qlora")
        elif bits:
            work.ledger.keep(bits.found)
    why = "no adapter means every weight there"
    if patterns := keys.words("unfrozen_parameters"):
        work.draft.put("finetuning_type", "freeze", *empty, why="unfrozen_parameters trains single weights")
        _translate_unfrozen(work, patterns.found, patterns.value)
    else:
        work.draft.put("finetuning_type", "full", *empty, why=why)
    adapter_keys = (
        "lora_r lora_alpha lora_dropout lora_target_modules lora_target_linear lora_modules_to_save lora_model_dir"
    )
    peft_keys = "peft_use_dora peft_use_rslora peft_init_lora_weights loraplus_lr_ratio bnb_config_kwargs peft"
    for found in keys.present((adapter_keys + " " + peft_keys).split()):
        work.ledger.ignore(found, "has no effect there without adapter: every weight is trained")


def _translate_unfrozen(work: Work, found: Found, patterns: tuple[str, ...]) -> None:
    """Their patterns match from the beginning of a name, with literal dots; ours are found anywhere in it."""
    if ranged := [pattern for pattern in patterns if re.search(r"\[\d*:\d*\]$", pattern)]:
        what = f"has {shown(ranged[0])}: a part of a weight's rows cannot be trained alone here"
        work.ledger.refuse(found, what, "name the whole weight")
        return
    ours = ["^" + pattern.removeprefix("^").replace("\\.", ".").replace(".", "\\.") for pattern in patterns]
    work.draft.put("unfrozen_parameters", ours, found, why="from the beginning of a name, with literal dots, as there")


def _translate_quantization(work: Work) -> None:
    settings = work.keys.inner("bnb_config_kwargs")
    if settings is None:
        return
    if kind := settings.word("bnb_4bit_quant_type"):
        work.draft.put("bnb_4bit_quant_type", kind.value, kind.found)
    if double := settings.truth("bnb_4bit_use_double_quant"):
        work.draft.put("bnb_4bit_use_double_quant", double.value, double.found)
    for found in settings.present(["llm_int8_has_fp16_weight", "bnb_4bit_compute_dtype", "llm_int8_threshold"]):
        work.ledger.ignore(found, "is not needed: it follows from the rest")


def _translate_adapter(work: Work) -> None:
    keys, draft = work.keys, work.draft
    for key in ("lora_r", "lora_alpha"):
        if number := keys.whole(key):
            draft.put(key, number.value, number.found)
        elif not keys.get(key):
            work.ledger.refuse_missing(key, "is missing, and axolotl has no default for it", f"add {key}")
    if dropout := keys.number("lora_dropout"):
        draft.put("lora_dropout", dropout.value, dropout.found)
    _translate_targets(work)
    if saved := keys.words("lora_modules_to_save"):
        draft.put("modules_to_save", saved.value, saved.found)
    for theirs, ours in (("peft_use_dora", "use_dora"), ("peft_use_rslora", "use_rslora")):
        if truth := keys.truth(theirs):
            draft.put(ours, truth.value, truth.found)
    if start := keys.word("peft_init_lora_weights"):
        if start.value in ("true", *_ADAPTER_STARTS):
            draft.put("init_lora_weights", "default" if start.value == "true" else start.value, start.found)
        else:
            work.ledger.refuse(start.found, f"is {shown(start.value)}: this start cannot be had here", "delete it")
    if ratio := keys.number("loraplus_lr_ratio"):
        draft.put("loraplus_lr_ratio", ratio.value, ratio.found)
    if folder := keys.text("lora_model_dir"):
        draft.put("init_adapter", folder.value, folder.found, why="training goes on from that adapter")


def _translate_targets(work: Work) -> None:
    linear, modules = work.keys.truth("lora_target_linear"), work.keys.words("lora_target_modules")
    if linear and linear.value:
        work.draft.put("lora_target_modules", "all-linear", linear.found)
        if modules:
            work.ledger.change(modules.found, "is added to all linear layers there; here all linear layers are meant")
    elif modules:
        is_text = isinstance(modules.found.node, text.Scalar)
        work.draft.put("lora_target_modules", modules.value[0] if is_text else modules.value, modules.found)
        if linear:
            work.ledger.keep(linear.found)
    else:
        what = "is missing: axolotl leaves it to PEFT, which chooses by the kind of model"
        work.ledger.refuse_missing("lora_target_modules", what, "add lora_target_linear: true, or a list of modules")


def _translate_tokens(work: Work) -> None:
    if tokens := work.keys.words("tokens"):
        work.draft.put("added_tokens", tokens.value, tokens.found)
        work.ledger.change(tokens.found, "are trained with the embeddings here, whatever lora_modules_to_save says")
    special = work.keys.inner("special_tokens")
    if special is None:
        return
    template = work.draft.value("chat_template")
    for name, found in special.all.items():
        if found.is_empty:
            work.ledger.ignore(found, "is empty")
        elif name == "pad_token":
            work.ledger.ignore(found, "is not needed: nothing is padded, and nothing is masked by its id")
        elif name == "additional_special_tokens" and (marks := special.words(name)):
            work.draft.put("added_special_tokens", marks.value, marks.found)
        elif name == "eos_token" and (end := special.text(name)) and end.value == _TURN_ENDS.get(str(template)):
            work.ledger.ignore(found, f"ends a turn of {template}: it is learned, and generation stops on it")
        else:
            what = f"is {shown_node(found.node)}: another special token than the tokenizer's cannot be had here"
            instead = "delete it if it is the tokenizer's own; else change the model's tokenizer_config.json"
            work.ledger.refuse(found, what, instead)


def _translate_text(work: Work) -> None:
    keys, draft = work.keys, work.draft
    length, strategy = keys.whole("sequence_len"), keys.word("excess_length_strategy")
    if length:
        draft.put("max_seq_length", length.value, length.found)
    else:
        draft.put("max_seq_length", _DEFAULT_LENGTH, why="axolotl's default")
    if strategy and strategy.value not in _LENGTH_STRATEGIES:
        work.ledger.refuse(strategy.found, f"is {shown(strategy.value)}; expected drop, truncate or raise")
    elif strategy:
        draft.put("excess_length_strategy", _LENGTH_STRATEGIES[strategy.value], strategy.found)
    elif draft.value("method") != "pretrain":
        draft.put("excess_length_strategy", "drop", why="axolotl's default")
        if length:
            what = (
                "drops longer rows without a word there; here they are listed, and more than 1 % "
                "(max_dropped_ratio) fail the job"
            )
            work.ledger.change(length.found, what)
    if inputs := keys.truth("train_on_inputs"):
        if draft.value("method") == "pretrain":
            work.ledger.ignore(inputs.found, "has no effect: plain text is learned whole")
        else:
            draft.put("train_on_inputs", inputs.value, inputs.found)
    if (same := keys.truth("dataset_exact_deduplication")) is not None:
        draft.put("deduplicate", same.value, same.found)


def _translate_rate(work: Work) -> None:
    if rate := work.keys.number("learning_rate"):
        work.draft.put("learning_rate", rate.value, rate.found)
    elif not work.keys.get("learning_rate"):
        work.ledger.refuse_missing("learning_rate", "is missing, and has no default there", "add learning_rate")


def _packing(work: Work) -> Found | None:
    packing = work.keys.truth("sample_packing")
    if packing is None:
        return None
    if packing.value:
        work.ledger.keep(packing.found)
        return packing.found
    work.ledger.ignore(packing.found, "is not needed: rows never see each other, and are never padded")
    return None


def _translate_checkpointing(work: Work) -> None:
    if given := work.keys.word("gradient_checkpointing"):
        if given.value in ("true", "false"):
            work.draft.put("gradient_checkpointing", given.value == "true", given.found)
        else:
            work.ledger.ignore(given.found, "is not needed: what is computed again is decided from the memory")
