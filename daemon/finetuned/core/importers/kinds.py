"""Which tool a foreign file is for, and its translation from beginning to end."""

from collections.abc import Callable, Mapping

from finetuned.core.importers.axolotl import translate_axolotl
from finetuned.core.importers.axolotl_rules import AXOLOTL_RULES
from finetuned.core.importers.ledger import unmentioned
from finetuned.core.importers.llamafactory import translate_llamafactory
from finetuned.core.importers.llamafactory_rules import LLAMAFACTORY_RULES
from finetuned.core.importers.openai import OPENAI_RULES, translate_openai
from finetuned.core.importers.rules import Rules, apply_rule
from finetuned.core.importers.together import TOGETHER_RULES, translate_together
from finetuned.core.importers.work import TOOL_NAMES, Kind, Supplied, Translation, Work
from finetuned.core.jobfile import text
from finetuned.core.jobfile.text import UnreadableText, read_tree
from finetuned.core.problems import InvalidSpec, Problem
from finetuned.core.spec import parse_spec

_TRANSLATORS: Mapping[Kind, tuple[Callable[[Work], None], Rules]] = {
    "axolotl": (translate_axolotl, AXOLOTL_RULES),
    "llamafactory": (translate_llamafactory, LLAMAFACTORY_RULES),
    "openai": (translate_openai, OPENAI_RULES),
    "together": (translate_together, TOGETHER_RULES),
}
_SIGNS: Mapping[Kind, str] = {
    "axolotl": "base_model datasets micro_batch_size sequence_len num_epochs adapter sample_packing "
    "pad_to_sequence_len lora_target_linear dataset_prepared_path test_datasets pretraining_dataset evals_per_epoch "
    "saves_per_epoch flash_attention eval_sample_packing lora_model_dir lora_modules_to_save peft_use_dora "
    "peft_use_rslora special_tokens wandb_project strict load_in_8bit load_in_4bit optimizer lr_scheduler "
    "plugins val_set_size",
    "llamafactory": "model_name_or_path stage do_train finetuning_type dataset dataset_dir template cutoff_len "
    "lora_rank lora_target additional_target quantization_bit overwrite_cache preprocessing_num_workers plot_loss "
    "val_size per_device_train_batch_size neat_packing adapter_name_or_path overwrite_output_dir "
    "lr_scheduler_type num_train_epochs max_samples",
    "openai": "hyperparameters method integrations organization_id fine_tuned_model result_files trained_tokens "
    "estimated_finish training_file validation_file",
    "together": "training_type training_method n_checkpoints n_evals n_epochs batch_size learning_rate lora lora_r "
    "lora_trainable_modules from_checkpoint from_hf_model wandb_api_key train_on_inputs model_output_name "
    "token_count training_file validation_file lr_scheduler",
}
"""Keys by which a file is told; the kind with most of them wins."""
_FEWEST_SIGNS = 2


class UnknownKind(Exception):
    """The file is for none of the tools, or might be for several; says what was seen."""


def translate(source_text: str, supplied: Supplied, kind: Kind | None = None) -> Translation:
    """A foreign file's text → our job file, or every reason why there can be none.

    Raises UnknownKind when `kind` is None and cannot be told, UnreadableText for text that is neither YAML nor JSON.
    """
    tree = read_tree(source_text)
    work = Work(kind or told_kind(source_text, tree), tree, supplied)
    translator, rules = _TRANSLATORS[work.kind]
    translator(work)
    for found in unmentioned(work.keys.all, work.ledger):
        apply_rule(found, rules, work.ledger)
    job_file = work.draft.text(f"Imported from a file for {work.tool} by finetunectl import.")
    problems = work.ledger.problems or _own_problems(job_file, work)
    return Translation(
        kind=work.kind,
        job_file="" if problems else job_file,
        kept=work.ledger.kept,
        changed=work.ledger.changed,
        ignored=work.ledger.ignored,
        problems=problems,
    )


def told_kind(source_text: str, tree: text.Mapping) -> Kind:
    """The tool that a file is for, by its keys. Raises UnknownKind."""
    names = {entry.key for entry in tree.entries}
    if _is_ours(source_text):
        raise UnknownKind("is a job file for finetuned already: finetunectl submit takes it as it is")
    scores = {kind: len(names & set(signs.split())) for kind, signs in _SIGNS.items()}
    best = max(scores.values())
    likely = [kind for kind, score in scores.items() if score == best]
    if best < _FEWEST_SIGNS:
        known = ", ".join(TOOL_NAMES.values())
        raise UnknownKind(f"has none of the keys by which files for {known} are told")
    if len(likely) > 1:
        if set(likely) == {"openai", "together"}:
            return "together" if "/" in _model(tree) else "openai"
        raise UnknownKind(f"may be for {' or '.join(TOOL_NAMES[kind] for kind in likely)}")
    return likely[0]


def _model(tree: text.Mapping) -> str:
    values = (entry.value for entry in tree.entries if entry.key == "model")
    return next((value.text for value in values if isinstance(value, text.Scalar)), "")


def _is_ours(source_text: str) -> bool:
    try:
        return not parse_spec(source_text, "").notices
    except InvalidSpec:
        return False


def _own_problems(job_file: str, work: Work) -> tuple[Problem, ...]:
    """What our own reader says of the result, told by the keys that it came from."""
    try:
        parse_spec(job_file, "the job file")
    except InvalidSpec as error:
        return tuple(_by_origin(problem, work) for problem in error.problems)
    return ()


def _by_origin(problem: Problem, work: Work) -> Problem:
    field = problem.place.split()[-1].partition(".")[0]
    origin = work.draft.origins.get(field)
    what = problem.what if origin is None else f"({field} here) {problem.what}"
    return problem.model_copy(update={"place": origin.place if origin else problem.place, "what": what})


__all__ = ["Supplied", "Translation", "UnknownKind", "UnreadableText", "told_kind", "translate"]
