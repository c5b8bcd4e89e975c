"""Together's fine-tuning job, as it is created or as it is told → our job file."""

from finetuned.core.importers.hosted import (
    LORA_RANK,
    is_left_open,
    translate_batch_size,
    translate_files,
    translate_seed,
)
from finetuned.core.importers.keys import Keys, as_whole
from finetuned.core.importers.rules import Rules, refused, unneeded
from finetuned.core.importers.sources import translate_model
from finetuned.core.importers.trainer import in_rows
from finetuned.core.importers.work import Work
from finetuned.core.jobfile.findings import shown

_TOGETHER_RATE = 1e-5

TOGETHER_RULES: Rules = {
    **unneeded(
        "id job_id object created_at updated_at started_at status events token_count param_count total_price "
        "total_steps steps_completed epochs_completed evals_completed queue_depth owner_address user_id progress "
        "model_output_name output_name adapter_output_name model_output_path TrainingFileNumLines "
        "TrainingFileSize training_file_num_lines "
        "training_file_size",
        "tells of the job as Together ran it",
    ),
    **unneeded("wandb_*", "is not needed: metrics.jsonl, loss.png and report.html are always written"),
    **unneeded(
        "hf_api_token hf_output_repo_name", "is not done here: the result lies in the job's artifacts (finetunectl get)"
    ),
    **unneeded("n_checkpoints", "is not needed: checkpoints are written every 10 minutes and at each evaluation"),
    **unneeded("verbose", "is of the client, not of the job"),
    **refused(
        "from_checkpoint",
        "a checkpoint of Together's",
        "download the adapter, and write init_adapter into the job file",
    ),
    **refused("multimodal_params", "pictures", "delete it"),
    **refused("dpo_* rpo_alpha simpo_gamma", "learning from preferences", "delete it", "false"),
}


def translate_together(work: Work) -> None:
    keys, draft = work.keys, work.draft
    _together_model(work)
    translate_files(work, "auto")
    _together_method(work)
    _together_tuning(work)
    rate = keys.number("learning_rate")
    if rate:
        draft.put("learning_rate", rate.value, rate.found)
    else:
        draft.put("learning_rate", _TOGETHER_RATE, why="Together's default")
    if epochs := keys.whole("n_epochs"):
        draft.put("num_train_epochs", epochs.value, epochs.found)
    else:
        draft.put("num_train_epochs", 1, why="Together's default")
    _together_schedule(work)
    _together_batch(work)
    for key in ("weight_decay", "max_grad_norm"):
        if number := keys.number(key):
            draft.put(key, number.value, number.found)
    if length := keys.whole("max_seq_length"):
        draft.put("max_seq_length", length.value, length.found)
    translate_seed(work, "random_seed")
    if suffix := keys.text("suffix"):
        draft.put("suffix", suffix.value, suffix.found)
    _together_evaluation(work)


def _together_model(work: Work) -> None:
    own = work.keys.text("from_hf_model")
    model = work.keys.get("model")
    if own and not work.supplied.base_model:
        translate_model(work, "from_hf_model", "hf_model_revision")
        if model:
            work.ledger.ignore(model, "only says what from_hf_model is like")
        return
    translate_model(work, "model")
    named = work.draft.value("base_model")
    if isinstance(named, str) and named.endswith("-Reference") and model:
        work.draft.put("base_model", named.removesuffix("-Reference"), model)
        work.ledger.change(model, "is Together's name; without -Reference it is the hub's")
    for found in work.keys.present(["from_hf_model", "hf_model_revision"]):
        work.ledger.ignore(found, "has no effect beside --base-model")


def _together_method(work: Work) -> None:
    method = work.keys.inner("training_method")
    kind = method.word("method") if method else work.keys.word("training_method")
    if kind and kind.value != "sft":
        what = f"is {shown(kind.value)}: only supervised learning can be had here"
        work.ledger.refuse(kind.found, what, "learn from the good answers alone: method sft")
    elif kind:
        work.ledger.keep(kind.found)
    for place in (method, work.keys):
        given = place.word("train_on_inputs") if place else None
        if given and given.value == "auto":
            work.draft.put("train_on_inputs", False, given.found, why="auto: prompts are not learned, plain text is")
        elif given and place and (truth := place.truth("train_on_inputs")):
            work.draft.put("train_on_inputs", truth.value, truth.found)


def _together_tuning(work: Work) -> None:
    """`training_type`, or the client's own `lora`, `lora_r` and so on."""
    kind_keys = work.keys.inner("training_type")
    place = kind_keys or work.keys
    kind, lora = (kind_keys.word("type") if kind_keys else None), work.keys.truth("lora")
    is_full = (kind is not None and kind.value == "full") or (kind is None and lora is not None and not lora.value)
    if kind and kind.value not in ("full", "lora"):
        work.ledger.refuse(kind.found, f"is {shown(kind.value)}; expected Lora or Full", "use Lora")
        return
    origins = [given.found for given in (kind, lora) if given]
    why = "" if origins else "Together's default"
    work.draft.put("finetuning_type", "full" if is_full else "lora", *origins, why=why)
    if is_full:
        for found in place.present(["lora_r", "lora_alpha", "lora_dropout", "lora_trainable_modules"]):
            work.ledger.ignore(found, "has no effect: every weight is trained")
        return
    rank, alpha = place.whole("lora_r"), place.whole("lora_alpha")
    r = rank.value if rank else LORA_RANK
    if rank:
        work.draft.put("lora_r", r, rank.found)
    else:
        work.draft.put("lora_r", r, why="our default: Together takes the largest that it allows for the model")
    why = "Together's default: twice the rank"
    work.draft.put(
        "lora_alpha", alpha.value if alpha else 2 * r, *([alpha.found] if alpha else []), why="" if alpha else why
    )
    if dropout := place.number("lora_dropout"):
        work.draft.put("lora_dropout", dropout.value, dropout.found)
    if modules := place.words("lora_trainable_modules", split_commas=True):
        value = modules.value[0] if modules.value == ("all-linear",) else modules.value
        work.draft.put("lora_target_modules", value, modules.found)


def _together_batch(work: Work) -> None:
    """Packs of rows, unless `packing` is off."""
    size, packing = work.keys.text("batch_size"), work.keys.truth("packing")
    if packing is not None:
        work.ledger.ignore(packing.found, "is not needed: rows never see each other, and are never padded")
    is_packed = packing is None or packing.value
    if size is None or not is_packed or is_left_open(size, work):
        translate_batch_size(work, size)
    elif count := as_whole(size, work.ledger, least=1):
        rows, why = in_rows(work, count.found, count.value, "")
        work.draft.put("global_batch_size", rows, count.found, why=why)


def _together_schedule(work: Work) -> None:
    scheduler, kind = work.keys.inner("lr_scheduler"), work.keys.word("lr_scheduler_type")
    kind = (scheduler.word("lr_scheduler_type") if scheduler else None) or kind
    if kind and kind.value not in ("linear", "cosine"):
        work.ledger.refuse(kind.found, f"is {shown(kind.value)}; expected linear or cosine", "use cosine")
    elif kind:
        work.draft.put("lr_scheduler_type", kind.value, kind.found)
    else:
        work.draft.put("lr_scheduler_type", "cosine", why="Together's default")
    arguments = scheduler.inner("lr_scheduler_args") if scheduler else None
    for place in (arguments, work.keys):
        if place:
            _check_schedule_arguments(work, place)
    if ratio := work.keys.number("warmup_ratio"):
        work.draft.put("warmup_ratio", ratio.value, ratio.found)
    else:
        work.draft.put("warmup_steps", 0, why="Together's default: no warm-up")


def _check_schedule_arguments(work: Work, place: Keys) -> None:
    for name, usual in (("min_lr_ratio", 0), ("num_cycles", 0.5), ("scheduler_num_cycles", 0.5)):
        given = place.number(name)
        if given and given.value != usual:
            what = f"is {given.value:g}: schedules end at 0 here, after half a cosine"
            work.ledger.refuse(given.found, what, f"use {usual:g}")
        elif given:
            work.ledger.keep(given.found)


def _together_evaluation(work: Work) -> None:
    count = work.keys.whole("n_evals")
    every = work.keys.get("eval_steps")
    if every:
        work.ledger.ignore(every, "follows from n_evals there")
    if not work.draft.has("eval_datasets"):
        if count:
            work.ledger.ignore(count.found, "has no effect without validation_file")
    elif count is None or count.value <= 0:
        work.draft.put(
            "eval_strategy", "no", *([count.found] if count else []), why="Together evaluates n_evals times: never"
        )
    else:
        work.ledger.change(count.found, "counts evaluations; here there are about 10 a run, unless eval_steps is given")
        work.draft.put("load_best_model_at_end", False, why="the last weights are the result at Together")
