"""Settings that axolotl and LLaMA-Factory hand on to Hugging Face's Trainer: the same but for names and defaults."""

from dataclasses import dataclass

from finetuned.core.importers.keys import Given
from finetuned.core.importers.ledger import Found
from finetuned.core.importers.work import Work
from finetuned.core.jobfile.findings import shown

_OPTIMIZERS = {
    "adamw_torch": "adamw_torch",
    "adamw_torch_fused": "adamw_torch",
    "adamw_hf": "adamw_torch",
    "adamw_8bit": "adamw_8bit",
    "adamw_bnb_8bit": "adamw_8bit",
    "paged_adamw": "paged_adamw_32bit",
    "paged_adamw_32bit": "paged_adamw_32bit",
    "paged_adamw_8bit": "paged_adamw_8bit",
}
_SCHEDULES = {
    "linear": "linear",
    "cosine": "cosine",
    "constant": "constant",
    "constant_with_warmup": "constant",
}


@dataclass(frozen=True)
class TrainerWords:
    """How one tool calls what all of them have, and what it does where the file is silent."""

    scheduler: str
    optimizer: str
    epochs: str
    micro_batch: str
    val_size: str
    early_stopping: str
    default_scheduler: str
    default_epochs: float
    default_micro_batch: int
    default_warmup_ratio: float


def translate_optimizer(work: Work, words: TrainerWords) -> None:
    """Optimizer, its numbers, clipping, seed."""
    optimizer = work.keys.word(words.optimizer)
    if optimizer is not None:
        if ours := _OPTIMIZERS.get(optimizer.value):
            work.draft.put("optim", ours, optimizer.found)
        else:
            what = f"is {shown(optimizer.value)}: only AdamW can be had here"
            instead = "choose adamw_torch or adamw_8bit, with a learning rate that suits it"
            work.ledger.refuse(optimizer.found, what, instead)
    for key in ("weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm"):
        if number := work.keys.number(key):
            work.draft.put(key, number.value, number.found)
    if seed := work.keys.whole("seed"):
        work.draft.put("seed", seed.value, seed.found)


def translate_schedule(work: Work, words: TrainerWords) -> None:
    """How the learning rate goes; both tools' silence is written out."""
    scheduler = work.keys.word(words.scheduler)
    asked = scheduler.value if scheduler else words.default_scheduler
    if asked not in _SCHEDULES:
        assert scheduler is not None, "defaults are known"
        what = f"is {shown(asked)}: this schedule cannot be had here"
        work.ledger.refuse(scheduler.found, what, "choose linear, cosine or constant")
    elif scheduler is None:
        work.draft.put("lr_scheduler_type", asked, why=f"{work.tool}'s default")
    else:
        work.draft.put("lr_scheduler_type", _SCHEDULES[asked], scheduler.found)
    _translate_warmup(work, words, is_bare_constant=asked == "constant")


def _translate_warmup(work: Work, words: TrainerWords, *, is_bare_constant: bool) -> None:
    steps, ratio = work.keys.number("warmup_steps"), work.keys.number("warmup_ratio")
    if is_bare_constant:
        for given in (steps, ratio):
            if given:
                work.ledger.ignore(given.found, "has no effect there: constant has no warm-up")
        work.draft.put("warmup_steps", 0, why="constant means without a warm-up there")
    elif steps and 0 < steps.value < 1:
        work.draft.put("warmup_ratio", steps.value, steps.found)
        work.ledger.change(steps.found, f"is {steps.value:g}, less than one step: read as a part of the run")
        _drop_other(work, ratio)
    elif steps and (steps.value or ratio is None or work.kind == "axolotl"):
        if whole := work.keys.whole("warmup_steps"):
            work.draft.put("warmup_steps", whole.value, whole.found)
        _drop_other(work, ratio)
    elif ratio:
        work.draft.put("warmup_ratio", ratio.value, ratio.found)
        _drop_other(work, steps)
    elif words.default_warmup_ratio:
        why = f"{work.tool}'s default, there at most 100 steps"
        work.draft.put("warmup_ratio", words.default_warmup_ratio, why=why)
    else:
        work.draft.put("warmup_steps", 0, why=f"{work.tool}'s default: no warm-up")


def _drop_other(work: Work, other: Given[int | float] | None) -> None:
    if other:
        work.ledger.ignore(other.found, "has no effect there beside the other warm-up")


def translate_length(work: Work, words: TrainerWords) -> None:
    """Epochs or steps: steps win there."""
    steps, epochs = work.keys.whole("max_steps"), work.keys.number(words.epochs)
    if steps and steps.value > 0:
        work.draft.put("max_steps", steps.value, steps.found)
        if epochs:
            work.ledger.ignore(epochs.found, "has no effect there beside max_steps")
        return
    if steps:
        work.ledger.ignore(steps.found, f"is {steps.value}, which asks for nothing")
    if epochs:
        work.draft.put("num_train_epochs", epochs.value, epochs.found)
    else:
        work.draft.put("num_train_epochs", words.default_epochs, why=f"{work.tool}'s default")


def translate_batch(work: Work, words: TrainerWords, packing: Found | None) -> None:
    """One number for the whole batch. `packing`: the key that makes packs of rows, which changes what is counted."""
    micro, accumulation = work.keys.count(words.micro_batch), work.keys.count("gradient_accumulation_steps")
    total = work.keys.count("batch_size") if work.kind == "axolotl" else None
    found = [given.found for given in (micro, accumulation) if given]
    size = (micro.value if micro else words.default_micro_batch) * (accumulation.value if accumulation else 1)
    why = "on one device" if len(found) == 2 else f"{work.tool}'s default for the rest, on one device"
    if total:
        found, size, why = [*found, total.found], total.value, "on one device"
    if packing:
        size, why = in_rows(work, packing, size, why)
    work.draft.put("global_batch_size", size, *found, why=why)


def in_rows(work: Work, packing: Found, size: int, why: str) -> tuple[int, str]:
    """A batch of `size` packs as rows, and what its comment says; `packing` is the key that makes packs of rows."""
    is_pretrain = work.draft.value("method") == "pretrain"
    if packed := work.supplied.rows_per_pack:
        return max(1, round(size * packed)), f"{size} packs of {packed:g} {'examples' if is_pretrain else 'rows'}"
    if is_pretrain:
        counted = "a batch counts examples, each a text or max_seq_length tokens of a longer one"
        what = (
            f"makes one of a batch a pack of max_seq_length tokens there; here {counted}: global_batch_size {size} is "
            f"{size} examples, where it was {size} packs. --rows-per-pack N (max_seq_length / mean length of an "
            "example; 1 where all texts are longer) makes it the same; or lower the learning rate"
        )
    else:
        what = (
            f"makes one of a batch a pack of several rows there; here a batch counts rows: global_batch_size {size} is "
            f"{size} rows, where it was {size} packs. --rows-per-pack N (max_seq_length / mean length of a row) makes "
            "it the same; or lower the learning rate"
        )
    work.ledger.change(packing, what)
    return size, why


def translate_evaluation(work: Work, words: TrainerWords) -> bool:
    """When rows are evaluated, when that ends the run; whether they are: then `load_best_model_at_end` is still open.

    `eval_datasets` and `val_set_size` are in the draft already.
    """
    keys, draft = work.keys, work.draft
    has_rows = draft.has("eval_datasets") or bool(draft.value("val_set_size"))
    strategy = keys.word("eval_strategy") or keys.word("evaluation_strategy")
    every = keys.number("eval_steps")
    patience = keys.whole(words.early_stopping)
    is_off = strategy is not None and strategy.value in ("no", "false", "none")
    if not has_rows or is_off:
        dead = [given.found for given in (strategy, every, patience) if given]
        dead += keys.present(["load_best_model_at_end", "metric_for_best_model", "evals_per_epoch"])
        for found in dead:
            work.ledger.ignore(found, "has no effect: nothing is evaluated")
        if has_rows and strategy:
            draft.put("eval_strategy", "no", strategy.found)
        return False
    if strategy and strategy.value not in ("steps", "epoch"):
        work.ledger.refuse(strategy.found, f"is {shown(strategy.value)}; expected steps, epoch or no")
    elif strategy and strategy.value == "epoch":
        work.ledger.change(strategy.found, "is epoch; here there are about 10 evaluations a run, without eval_steps")
    elif strategy:
        work.ledger.keep(strategy.found)
    _translate_eval_steps(work, every)
    if patience:
        draft.put("early_stopping_patience", patience.value, patience.found)
    metric = keys.word("metric_for_best_model")
    if metric and metric.value in ("loss", "eval_loss"):
        draft.put("metric_for_best_model", "eval_loss", metric.found)
    elif metric:
        work.ledger.refuse(metric.found, f"is {shown(metric.value)}: only eval_loss can choose here", "delete it")
    return True


def _translate_eval_steps(work: Work, every: Given[int | float] | None) -> None:
    if every and every.value == 0:
        work.ledger.ignore(every.found, "is 0, which asks for nothing")
    elif every and not 0 < every.value < 1:
        if steps := work.keys.count("eval_steps"):
            work.draft.put("eval_steps", steps.value, steps.found)
    elif every:
        work.ledger.change(every.found, "is a part of the run; here there are about 10 evaluations a run")
    if per_epoch := work.keys.whole("evals_per_epoch"):
        what = "counts by epoch; here there are about 10 evaluations a run, unless eval_steps is given"
        work.ledger.change(per_epoch.found, what)


def translate_saving(work: Work) -> None:
    """Checkpoints change no result: what has a field here is kept, the rest is left to the daemon."""
    keys = work.keys
    why = "is not needed: checkpoints are written every 10 minutes and at each evaluation"
    _put_count(work, "save_steps", why)
    for found in keys.present(["saves_per_epoch", "save_strategy", "save_first_step", "save_only_model"]):
        work.ledger.ignore(found, why)
    _put_count(
        work, "save_total_limit", "sets no limit there; here the newest two stay (of full tuning one) and the best"
    )
    _put_count(work, "logging_steps", "is a part of the run there; here each step is told")


def _put_count(work: Work, key: str, why_not: str) -> None:
    """A number from 1, under the same name as ours; a part of the run, 0 or -1 is left out."""
    given = work.keys.number(key)
    if given and given.value >= 1:
        if count := work.keys.count(key):
            work.draft.put(key, count.value, count.found)
    elif given:
        work.ledger.ignore(given.found, why_not)


def translate_precision(work: Work, *, is_full: bool) -> None:
    """bf16 or fp32; 16-bit floats without bf16's range cannot be had."""
    keys = work.keys
    for key in ("fp16", "float16", "fp8", "pure_bf16", "bfloat16"):
        given = keys.word(key)
        if given and given.value not in ("false", "auto", "no"):
            work.ledger.refuse(given.found, "this precision cannot be had here", "write bf16: auto")
        elif given:
            work.ledger.ignore(given.found, "asks for nothing that would not happen anyway")
    if work.kind == "axolotl" and "bf16" in keys.all and keys.all["bf16"].is_empty:
        work.draft.put("bf16", False, keys.all["bf16"], why="empty is not auto there")
    bf16 = keys.word("bf16")
    if bf16 and bf16.value in ("auto", "true", "full", "false", "yes", "no"):
        value: str | bool = "auto" if bf16.value == "auto" else bf16.value not in ("false", "no")
        work.draft.put("bf16", value, bf16.found)
        if is_full and value is not False and work.kind == "axolotl":
            what = "full tuning holds trained weights in fp32 here, and in bf16 there: finer steps, more memory"
            work.ledger.change(bf16.found, what)
    elif bf16:
        work.ledger.refuse(bf16.found, f"is {shown(bf16.value)}; expected auto, true or false")
    if (fp32 := keys.truth("float32") or keys.truth("fp32")) and fp32.value:
        work.draft.put("bf16", False, fp32.found)
