"""OpenAI's fine-tuning job, as it is created or as it is told → our job file: what OpenAI decides, and we, is said."""

from finetuned.core.importers.hosted import (
    LORA_RANK,
    is_left_open,
    translate_batch_size,
    translate_files,
    translate_seed,
)
from finetuned.core.importers.keys import Given, as_number, as_whole
from finetuned.core.importers.rules import Rules, unneeded
from finetuned.core.importers.sources import translate_model
from finetuned.core.importers.work import Work
from finetuned.core.jobfile.findings import shown

_DEFAULT_EPOCHS = 3
_LORA_RATE = 2e-4
_MODELS_OF_PROMPTS = ("babbage", "davinci")

OPENAI_RULES: Rules = {
    **unneeded(
        "id object created_at error fine_tuned_model finished_at organization_id result_files status trained_tokens "
        "estimated_finish shared_with_openai eval_id usage_metrics user_provided_suffix",
        "tells of the job as OpenAI ran it",
    ),
    **unneeded("integrations", "is not needed: metrics.jsonl, loss.png and report.html are always written"),
}


def translate_openai(work: Work) -> None:
    keys, draft = work.keys, work.draft
    if work.supplied.base_model:
        translate_model(work, "model")
    elif named := keys.get("model"):
        what = "is a model that only OpenAI has"
        work.ledger.refuse(named, what, "add --base-model with a model that you have")
    else:
        work.ledger.refuse_missing("model", "is missing: no model is named", "add --base-model")
    model = keys.text("model")
    is_legacy = model is not None and model.value.startswith(_MODELS_OF_PROMPTS)
    translate_files(work, "prompt_completion" if is_legacy else "chat")
    numbers = _openai_numbers(work)
    if suffix := keys.text("suffix") or keys.text("user_provided_suffix"):
        draft.put("suffix", suffix.value, suffix.found)
    if metadata := keys.inner("metadata"):
        pairs = {name: given for name in metadata.all if (given := metadata.text(name))}
        values = {name: given.value for name, given in pairs.items()}
        draft.put("metadata", values, *(given.found for given in pairs.values()))
    draft.put("finetuning_type", "lora", why="our default: OpenAI does not say what it trains")
    draft.put("lora_r", LORA_RANK, why="our default")
    draft.put("lora_alpha", 2 * LORA_RANK, why="our default")
    _translate_epochs(work, numbers.get("n_epochs"))
    translate_batch_size(work, numbers.get("batch_size"))
    _translate_multiplier(work, numbers.get("learning_rate_multiplier"))
    translate_seed(work, "seed")
    if draft.has("eval_datasets"):
        draft.put("load_best_model_at_end", False, why="the last weights are the result at OpenAI")


def _openai_numbers(work: Work) -> dict[str, Given[str]]:
    """The hyper-parameters, from wherever they stand: the method's own win."""
    method = work.keys.inner("method")
    places = [work.keys.inner("hyperparameters")]
    if method:
        kind = method.word("type")
        if kind and kind.value != "supervised":
            what = f"is {shown(kind.value)}: only supervised learning can be had here"
            work.ledger.refuse(kind.found, what, "learn from the good answers alone: method.type supervised")
        elif kind:
            work.ledger.keep(kind.found)
        supervised = method.inner("supervised")
        places.append(supervised.inner("hyperparameters") if supervised else None)
        for other in method.present(["dpo", "reinforcement"]):
            work.ledger.refuse(other, "only supervised learning can be had here", "learn from the good answers alone")
    numbers: dict[str, Given[str]] = {}
    for place in places:
        for name in ("n_epochs", "batch_size", "learning_rate_multiplier"):
            if place and name in place.all and place.all[name].is_empty:
                work.ledger.ignore(place.all[name], "is empty")
            if place and (given := place.text(name)):
                if name in numbers:
                    work.ledger.ignore(numbers[name].found, "has no effect beside method's own")
                numbers[name] = given
    return numbers


def _translate_epochs(work: Work, given: Given[str] | None) -> None:
    if given and not is_left_open(given, work):
        if epochs := as_whole(given, work.ledger, least=1):
            work.draft.put("num_train_epochs", epochs.value, epochs.found)
    elif given:
        work.draft.put("num_train_epochs", _DEFAULT_EPOCHS, given.found, why="auto: our default")
        work.ledger.change(given.found, f"is auto, which OpenAI resolves from the data; here it is {_DEFAULT_EPOCHS}")
    else:
        work.draft.put("num_train_epochs", _DEFAULT_EPOCHS, why="our default, where OpenAI's is auto")


def _translate_multiplier(work: Work, given: Given[str] | None) -> None:
    if given and not is_left_open(given, work):
        if factor := as_number(given, work.ledger):
            why = f"{factor.value:g} × {_LORA_RATE:g}"
            work.draft.put("learning_rate", factor.value * _LORA_RATE, factor.found, why=why)
            what = f"multiplies a rate that only OpenAI knows; here {_LORA_RATE:g}, the default for lora"
            work.ledger.change(factor.found, what)
    elif given:
        work.draft.put("learning_rate", _LORA_RATE, given.found, why="auto: our default")
        work.ledger.change(given.found, f"is auto; here the learning rate is {_LORA_RATE:g}, the default for lora")
    else:
        work.draft.put("learning_rate", _LORA_RATE, why="our default for lora")
