"""LLaMA-Factory's YAML → our job file. What it, or the Trainer, does where the file is silent is written out."""

from finetuned.core.importers.ledger import Found
from finetuned.core.importers.llamafactory_data import translate_datasets
from finetuned.core.importers.sources import translate_model
from finetuned.core.importers.templates import translate_template
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
from finetuned.core.jobfile.findings import shown

WORDS = TrainerWords(
    scheduler="lr_scheduler_type",
    optimizer="optim",
    epochs="num_train_epochs",
    micro_batch="per_device_train_batch_size",
    val_size="val_size",
    early_stopping="early_stopping_steps",
    default_scheduler="linear",
    default_epochs=3.0,
    default_micro_batch=8,
    default_warmup_ratio=0.0,
)
_DEFAULT_LENGTH = 2048
_SHAPE_KEYS = ("lora_rank", "lora_alpha", "lora_dropout", "lora_target", "additional_target", "use_dora", "use_rslora")
_DEFAULT_RANK = 8
_DEFAULT_RATE = 5e-5
_ADAPTER_KEYS = (
    "lora_rank lora_alpha lora_dropout lora_target additional_target pissa_init pissa_iter create_new_adapter "
    "use_rslora use_dora quantization_method quantization_type double_quantization"
)
_BITS = {4: "load_in_4bit", 8: "load_in_8bit"}


def translate_llamafactory(work: Work) -> None:
    translate_model(work, "model_name_or_path", "model_revision")
    _translate_stage(work)
    translate_datasets(work)
    _translate_held_out(work)
    tuning = _translate_tuning(work)
    _translate_tokens(work)
    _translate_text(work)
    rate = work.keys.number("learning_rate")
    if rate:
        work.draft.put("learning_rate", rate.value, rate.found)
    else:
        work.draft.put("learning_rate", _DEFAULT_RATE, why="LLaMA-Factory's default")
    translate_optimizer(work, WORDS)
    translate_schedule(work, WORDS)
    translate_length(work, WORDS)
    translate_batch(work, WORDS, _packing(work))
    translate_precision(work, is_full=tuning == "full")
    if off := work.keys.truth("disable_gradient_checkpointing"):
        work.draft.put("gradient_checkpointing", not off.value, off.found)
    elif on := work.keys.truth("gradient_checkpointing"):
        work.draft.put("gradient_checkpointing", on.value, on.found)
    _translate_evaluation(work)
    translate_saving(work)


def _translate_stage(work: Work) -> None:
    stage = work.keys.word("stage")
    if stage is None:
        work.draft.put("method", "sft", why="LLaMA-Factory's default")
    elif stage.value in ("sft", "pt"):
        work.draft.put("method", "sft" if stage.value == "sft" else "pretrain", stage.found)
    else:
        what = f"is {shown(stage.value)}: learning from preferences or rewards cannot be had here"
        work.ledger.refuse(stage.found, what, "stage: sft learns from the good answers alone")


def _translate_held_out(work: Work) -> None:
    held_out = work.keys.number("val_size")
    if held_out and work.draft.has("eval_datasets") and held_out.value:
        work.ledger.refuse(held_out.found, "and eval_dataset both name rows to evaluate on", "keep one of them")
    elif held_out and work.draft.has("eval_datasets"):
        work.ledger.keep(held_out.found)
    elif held_out:
        work.draft.put("val_set_size", held_out.value, held_out.found)
    elif not work.draft.has("eval_datasets"):
        work.draft.put("val_set_size", 0, why="LLaMA-Factory's default: nothing is held out")


def _translate_tuning(work: Work) -> str:
    keys, draft = work.keys, work.draft
    given = keys.word("finetuning_type")
    kind = given.value if given else "lora"
    origins = [given.found] if given else []
    why = "" if given else "LLaMA-Factory's default"
    if kind not in ("lora", "full"):
        assert given is not None
        instead = "use finetuning_type: lora, or freeze with unfrozen_parameters in the job file: [layers\\.(30|31)\\.]"
        work.ledger.refuse(given.found, f"is {shown(kind)}: this tuning cannot be translated", instead)
        return kind
    bits = keys.whole("quantization_bit")
    if kind == "full":
        draft.put("finetuning_type", "full", *origins)
        if bits:
            work.ledger.refuse(bits.found, "quantized weights cannot be trained", "use finetuning_type: lora")
        _ignore_adapter_keys(work)
        return kind
    if bits and bits.value not in _BITS:
        work.ledger.refuse(bits.found, f"is {bits.value}: the base is held in 4 or 8 bits here", "use 4 or 8")
    if bits and bits.value in _BITS:
        draft.put("finetuning_type", "qlora", *origins, bits.found, why=why)
        draft.put(_BITS[bits.value], True, bits.found)
        _translate_quantization(work)
    else:
        draft.put("finetuning_type", "lora", *origins, why=why)
    _translate_adapter(work)
    return kind


def _ignore_adapter_keys(work: Work) -> None:
    for found in work.keys.present(_ADAPTER_KEYS.split()):
        work.ledger.ignore(found, "has no effect: every weight is trained")


def _translate_quantization(work: Work) -> None:
    keys = work.keys
    if (method := keys.word("quantization_method")) and method.value not in ("bnb", "bitsandbytes"):
        what = f"is {shown(method.value)}: bitsandbytes alone quantizes here"
        work.ledger.refuse(method.found, what, "use bnb")
    elif method:
        work.ledger.keep(method.found)
    if kind := keys.word("quantization_type"):
        work.draft.put("bnb_4bit_quant_type", kind.value, kind.found)
    if double := keys.truth("double_quantization"):
        work.draft.put("bnb_4bit_use_double_quant", double.value, double.found)


def _translate_adapter(work: Work) -> None:
    if work.keys.present(["adapter_name_or_path"]):
        for found in work.keys.present(_SHAPE_KEYS):
            work.ledger.ignore(found, "has no effect there: the adapter that training goes on from keeps its shape")
    else:
        _translate_shape(work)
    if ratio := work.keys.number("loraplus_lr_ratio"):
        work.draft.put("loraplus_lr_ratio", ratio.value, ratio.found)
    _translate_start(work)


def _translate_shape(work: Work) -> None:
    keys, draft = work.keys, work.draft
    rank, alpha = keys.whole("lora_rank"), keys.whole("lora_alpha")
    r = rank.value if rank else _DEFAULT_RANK
    draft.put("lora_r", r, *([rank.found] if rank else []), why="" if rank else "LLaMA-Factory's default")
    draft.put(
        "lora_alpha",
        alpha.value if alpha else 2 * r,
        *([alpha.found] if alpha else []),
        why="" if alpha else "LLaMA-Factory's default: twice the rank",
    )
    if dropout := keys.number("lora_dropout"):
        draft.put("lora_dropout", dropout.value, dropout.found)
    target = keys.words("lora_target", split_commas=True)
    if target:
        draft.put("lora_target_modules", "all-linear" if target.value == ("all",) else target.value, target.found)
    else:
        draft.put("lora_target_modules", "all-linear", why="LLaMA-Factory's default")
    if saved := keys.words("additional_target", split_commas=True):
        draft.put("modules_to_save", saved.value, saved.found)
    for key in ("use_dora", "use_rslora"):
        if truth := keys.truth(key):
            draft.put(key, truth.value, truth.found)


def _translate_start(work: Work) -> None:
    keys = work.keys
    if (pissa := keys.truth("pissa_init")) and pissa.value:
        work.ledger.refuse(pissa.found, "starts the adapter out of the base, which is changed by it", "delete it")
    for found in keys.present(["pissa_init", "pissa_iter"]):
        if not work.ledger.mentions(found):
            work.ledger.ignore(found, "has no effect without PiSSA")
    folder, new = keys.words("adapter_name_or_path", split_commas=True), keys.truth("create_new_adapter")
    if new and new.value and folder:
        instead = "merge the adapter into the model first, and name that as --base-model"
        work.ledger.refuse(new.found, "puts a new adapter on a merged one", instead)
    elif new:
        work.ledger.ignore(new.found, "asks for nothing that would not happen anyway")
    if folder and len(folder.value) > 1:
        work.ledger.refuse(folder.found, "names several adapters", "merge all but the last into the model")
    elif folder:
        work.draft.put("init_adapter", folder.value[0], folder.found, why="training goes on from that adapter")


def _translate_tokens(work: Work) -> None:
    for key, ours in (("add_tokens", "added_tokens"), ("add_special_tokens", "added_special_tokens")):
        if tokens := work.keys.words(key, split_commas=True):
            work.draft.put(ours, tokens.value, tokens.found)


def _translate_text(work: Work) -> None:
    keys, draft = work.keys, work.draft
    is_pretrain = draft.value("method") == "pretrain"
    template = keys.word("template")
    if template and is_pretrain:
        work.ledger.ignore(template.found, "has no effect: plain text has no template")
    elif template:
        translate_template(work, template.found, template.value)
    elif not is_pretrain:
        draft.put("chat_template", "auto", why="no template means the model's own there")
    length = keys.whole("cutoff_len")
    if length:
        draft.put("max_seq_length", length.value, length.found)
    else:
        draft.put("max_seq_length", _DEFAULT_LENGTH, why="LLaMA-Factory's default")
    if is_pretrain:
        _note_cutting(work, length.found if length else keys.all["stage"])
    else:
        draft.put("excess_length_strategy", "truncate", why="as LLaMA-Factory does")
        if length:
            what = "cuts prompt and answer in proportion there; here a longer row is cut at its end, listed and counted"
            work.ledger.change(length.found, what)
    if inputs := keys.truth("train_on_prompt"):
        if is_pretrain:
            work.ledger.ignore(inputs.found, "has no effect: plain text is learned whole")
        else:
            draft.put("train_on_inputs", inputs.value, inputs.found)


def _note_cutting(work: Work, found: Found) -> None:
    packing = work.keys.truth("packing")
    if packing is None or packing.value:
        what = "cuts all text laid end to end there; here each text is cut for itself, and none runs into the next"
    else:
        what = "leaves out what a text has beyond cutoff_len there; here that is learned, too, as further examples"
    work.ledger.change(found, what)


def _packing(work: Work) -> Found | None:
    """The key by which rows are packed; stage: pt does so by itself, unless packing says no."""
    packing, neat = work.keys.truth("packing"), work.keys.truth("neat_packing")
    asked = [given for given in (packing, neat) if given]
    on = next((given for given in (neat, packing) if given and given.value), None)
    for given in asked:
        if given is on:
            continue
        why = "is said by neat_packing, too" if given.value else "is not needed: rows never see each other"
        work.ledger.ignore(given.found, why)
    if on is None and packing is None and work.draft.value("method") == "pretrain":
        return work.keys.all["stage"]
    if on is None:
        return None
    work.ledger.keep(on.found)
    if on is packing:
        work.ledger.change(on.found, "lets rows of a pack see each other there; here they never do")
    return on.found


def _translate_evaluation(work: Work) -> None:
    """The Trainer's silence means no evaluation while training."""
    has_rows = work.draft.has("eval_datasets") or bool(work.draft.value("val_set_size"))
    if has_rows and not work.keys.get("eval_strategy") and not work.keys.get("evaluation_strategy"):
        work.draft.put("eval_strategy", "no", why="LLaMA-Factory's default: rows are looked at only at the end")
        dead = ["eval_steps", WORDS.early_stopping, "load_best_model_at_end", "metric_for_best_model"]
        for found in work.keys.present(dead):
            work.ledger.ignore(found, "has no effect there without eval_strategy")
        return
    if not translate_evaluation(work, WORDS):
        return
    if best := work.keys.truth("load_best_model_at_end"):
        work.draft.put("load_best_model_at_end", best.value, best.found)
    elif work.draft.has("early_stopping_patience"):
        work.draft.put("load_best_model_at_end", True, why="early stopping asks for it there")
    else:
        why = "LLaMA-Factory's default: the last weights are the result"
        work.draft.put("load_best_model_at_end", False, why=why)
