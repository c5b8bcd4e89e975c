"""What a person asks for: the job file's fields with the only defaults there are, and YAML or JSON text → JobSpec.

`auto` (None here) means: decided in planning from facts. Field names are Hugging Face's, PEFT's and TRL's.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from finetuned.core.jobfile.data_rules import check_dataset
from finetuned.core.jobfile.findings import Findings, place
from finetuned.core.jobfile.page import editor_schema, reference_page
from finetuned.core.jobfile.reading import Form, read_record, values_of
from finetuned.core.jobfile.rules import check_job, implied_values
from finetuned.core.jobfile.text import UnreadableText, read_tree
from finetuned.core.jobfile.words import DATASET_WORDS, EXPORT_WORDS, JOB_WORDS
from finetuned.core.problems import InvalidSpec, Problem

Count = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
NotNegative = Annotated[float, Field(ge=0)]


class _Asked(BaseModel):
    """Part of a job file: unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Dataset(_Asked):
    """One set of rows: a file, a folder of files, or several files by a pattern."""

    path: str = Field(
        description="A file, a folder or a pattern (`/data/*.jsonl`): absolute, or inside the dropped folder. JSONL, "
        "JSON, CSV, TSV, Parquet, Arrow or plain text, also as .gz or .zst; or a folder that `datasets` saved."
    )
    format: Literal["auto", "chat", "sharegpt", "alpaca", "prompt_completion", "text", "tokenized"] = Field(
        "auto",
        description="What a row holds. chat: `messages`; sharegpt: `conversations`; alpaca: `instruction`, `input`, "
        "`output`; prompt_completion: `prompt`, `completion`, as text or as messages; text: `text`, or each line of a "
        ".txt or .md file; tokenized: `input_ids`, with `labels` (-100 is not learned); auto: seen from the first row.",
    )
    columns: dict[str, str] = Field(
        default_factory=dict,
        description="Where the rows have other names: ours with theirs, such as {messages: dialogue}; also `role`, "
        "`content`, `from` and `value` inside messages.",
    )
    split: str | None = Field(
        None,
        description="Of a folder of several splits the one to take (train, validation, test, …); of any set a part of "
        "its rows: `train[:1000]`, `train[10%:]`, `[-500:]`; auto: train if there are several (of eval_datasets "
        "validation, else test), and all rows.",
    )
    weight: Annotated[float, Field(gt=0, le=1000)] = Field(
        1.0,
        description="How often each row is seen in an epoch: 2 twice, 0.5 every other row, chosen by what it says. "
        "Rows for evaluation are split off before; no effect in eval_datasets.",
    )


class Export(_Asked):
    """More forms of the result."""

    merge: bool = Field(
        False,
        description="Also write artifacts/merged: the adapter merged into the base as stored (16 bits as a rule), "
        "a model that stands alone.",
    )
    gguf: Literal["none", "f32", "f16", "bf16", "q8_0", "q6_k", "q5_k_m", "q4_k_m", "q4_0"] = Field(
        "none",
        description="Also write artifacts/gguf for llama.cpp, in this type, by the converter that the machine's "
        "settings name; where that fails, the other artifacts stand.",
    )


class JobSpec(_Asked):
    """A job file. Two fields are required: base_model and datasets."""

    base_model: str = Field(
        description="The model to tune: a folder (`/…`, `./…` or `file:/…`), or `org/name` on the Hugging Face hub "
        "(`hub:org/name@revision` says so whatever the name looks like)."
    )
    revision: str | None = Field(None, description="Branch, tag or commit of a hub model; auto: the newest, pinned.")
    datasets: tuple[Dataset, ...] = Field(min_length=1, description="Sets of rows to train on, mixed.")
    eval_datasets: tuple[Dataset, ...] = Field(
        (), description="Sets of rows to evaluate on; without them val_set_size splits rows off."
    )
    val_set_size: NotNegative | None = Field(
        None,
        description="Part (below 1) or number (from 1) of rows kept for evaluation, 0 for none; "
        "auto: 5 %, at most 500, from 200 rows up.",
    )

    method: Literal["sft", "pretrain"] = Field(
        "sft", description="The objective. sft: learn the assistant's turns; pretrain: learn plain text."
    )
    finetuning_type: Literal["lora", "qlora", "full", "freeze"] = Field(
        "lora",
        description="What is trained. lora: a small adapter; qlora: one on a base that is held in 4 or 8 bits; full: "
        "every weight; freeze: the weights that unfrozen_parameters names.",
    )
    load_in_4bit: bool | None = Field(
        None, description="Hold the frozen base in 4 bits (finetuning_type: qlora); auto: for qlora, unless 8 bits."
    )
    load_in_8bit: bool | None = Field(None, description="Hold the frozen base in 8 bits (finetuning_type: qlora).")
    bnb_4bit_quant_type: Literal["nf4", "fp4"] = Field("nf4", description="How 4 bits are spread.")
    bnb_4bit_use_double_quant: bool = Field(True, description="Also quantize the constants of quantization.")
    unfrozen_parameters: tuple[str, ...] = Field(
        (),
        description="For freeze: regular expressions; a weight is trained if one is found in its name, such as "
        "`layers\\.(30|31)\\.` or `norm`.",
    )
    lora_r: Annotated[int, Field(ge=1, le=16384)] = Field(16, description="Rank of the adapter.")
    lora_alpha: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        32, description="The adapter's output is scaled by lora_alpha / lora_r."
    )
    lora_dropout: Fraction = Field(0.0, description="Dropout before the adapter.")
    lora_target_modules: str | tuple[str, ...] = Field(
        "all-linear",
        description="Where adapters go: all-linear, a list of module names, or a regular expression over whole names.",
    )
    use_dora: bool = Field(False, description="Weight-decomposed adapters (DoRA).")
    use_rslora: bool = Field(False, description="Scale by lora_alpha / √lora_r (rank-stabilised LoRA).")
    init_lora_weights: Literal["default", "gaussian", "orthogonal"] = Field(
        "default", description="How the adapter begins; PEFT's words. default: the tuned model begins as the base."
    )
    modules_to_save: tuple[str, ...] = Field(
        (),
        description="Modules beside the adapter that are trained and saved whole, such as `lm_head`, `embed_tokens`.",
    )
    init_adapter: str | None = Field(
        None,
        description="A folder with an adapter to go on from: absolute, or inside the dropped folder. It keeps rank, "
        "alpha and targets; tokens that it added are named again.",
    )

    chat_template: str | None = Field(
        None,
        description="chatml, llama3, the path of a Jinja file, or the template itself; auto: the model's own.",
    )
    added_tokens: tuple[str, ...] = Field(
        (), description="New tokens, each an id of its own; the embeddings grow and are trained and saved."
    )
    added_special_tokens: tuple[str, ...] = Field(
        (), description="The same for marks that are not part of an answer's text, such as `<|tool|>`."
    )
    max_seq_length: Annotated[int, Field(ge=8)] | None = Field(
        None, description="Tokens of the longest row; auto: 4096, or what the model can if that is less."
    )
    excess_length_strategy: Literal["drop", "truncate", "error"] = Field(
        "drop", description="What happens to a row longer than max_seq_length."
    )
    max_dropped_ratio: Annotated[float, Field(ge=0, le=1)] = Field(
        0.01,
        description="More than this part of the rows dropped (too long, or nothing to learn) fails the job; duplicates "
        "and weights do not count.",
    )
    deduplicate: bool = Field(
        False, description="Train on one of several rows that say exactly the same; they are counted in any case."
    )
    train_on_inputs: bool = Field(False, description="Also learn the prompts, not only the assistant's turns.")
    roles_to_train: tuple[str, ...] = Field(
        ("assistant",), description="Whose turns are learned: of assistant, user, system, tool and the like."
    )

    learning_rate: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="Peak learning rate; auto: 2e-4 for lora and qlora, 1e-5 for full and freeze."
    )
    loraplus_lr_ratio: Annotated[float, Field(ge=1)] | None = Field(
        None, description="LoRA+: the adapter's B matrices learn this many times faster than the A matrices."
    )
    optim: Literal["adamw_torch", "adamw_8bit", "paged_adamw_32bit", "paged_adamw_8bit"] = Field(
        "adamw_torch",
        description="AdamW, in fp32 or with 8-bit states; paged: they move to host memory when the GPU's is full.",
    )
    lr_scheduler_type: Literal["linear", "cosine", "constant", "warmup_stable_decay"] = Field(
        "cosine",
        description="How the learning rate goes on after the warm-up; all but constant end at 0. warmup_stable_decay "
        "(WSD) stays at its peak until lr_decay_ratio of the run is left.",
    )
    lr_decay_ratio: Annotated[float, Field(gt=0, le=1)] = Field(
        0.1, description="For warmup_stable_decay: the last part of the run, in which the rate falls."
    )
    warmup_ratio: Fraction | None = Field(None, description="Part of the run that warms up; auto: 0.03.")
    warmup_steps: Annotated[int, Field(ge=0)] | None = Field(
        None, description="Steps that warm up; auto: as warmup_ratio says."
    )
    weight_decay: NotNegative = Field(0.0, description="AdamW's weight decay, on matrices only.")
    adam_beta1: Fraction = Field(0.9, description="AdamW's memory of gradients.")
    adam_beta2: Fraction = Field(0.999, description="AdamW's memory of squared gradients.")
    adam_epsilon: Annotated[float, Field(gt=0)] = Field(1e-8, description="AdamW's epsilon.")
    max_grad_norm: NotNegative = Field(1.0, description="Gradients are clipped to this norm; 0 switches it off.")

    num_train_epochs: Annotated[float, Field(gt=0, le=100_000)] | None = Field(
        None, description="Times the rows are gone through; auto: 3, unless max_steps is given."
    )
    max_steps: Annotated[int, Field(ge=1, le=100_000_000)] | None = Field(
        None, description="Length of the run in optimizer steps, instead of num_train_epochs; auto: as that says."
    )
    global_batch_size: Count | None = Field(
        None, description="Examples an optimizer step; auto: rows × epochs / 200, between 1 and 16."
    )
    per_device_train_batch_size: Count | None = Field(
        None,
        description="With gradient_accumulation_steps another way to say global_batch_size: their product. "
        "Micro-batches themselves are cut to the memory.",
    )
    gradient_accumulation_steps: Count | None = Field(None, description="See per_device_train_batch_size.")
    bf16: bool | None = Field(None, description="Compute in bf16; auto: where the device has it.")
    gradient_checkpointing: bool | None = Field(
        None, description="Compute activations twice to save memory; auto: on a GPU."
    )
    device: Literal["auto", "cpu"] = Field("auto", description="cpu: use no GPU even where there is one.")

    eval_strategy: Literal["steps", "no"] = Field("steps", description="no: never evaluate in training.")
    eval_steps: Count | None = Field(
        None, description="Steps between evaluations; auto: about 10 evaluations a run, at most 5 % of the time."
    )
    save_steps: Count | None = Field(
        None, description="Steps between checkpoints; auto: every 10 minutes, and at each evaluation."
    )
    save_total_limit: Count | None = Field(
        None, description="Newest checkpoints kept, beside the best; auto: 2 for lora, 1 for full."
    )
    logging_steps: Count = Field(1, description="Steps between lines of metrics.")
    load_best_model_at_end: bool | None = Field(
        None, description="The best checkpoint becomes the artifact, not the last; auto: where there is evaluation."
    )
    metric_for_best_model: Literal["eval_loss"] = Field("eval_loss", description="What makes a checkpoint the best.")
    early_stopping_patience: Count | None = Field(
        None, description="Evaluations without improvement after which training ends; auto: never."
    )
    early_stopping_threshold: NotNegative = Field(0.0, description="A smaller gain is no improvement.")
    seed: Annotated[int, Field(ge=0, lt=2**32)] = Field(
        42, description="Decides the order of rows, the adapter's first weights and dropout."
    )

    export: Export = Field(default_factory=Export, description="More forms of the result.")

    priority: Annotated[int, Field(ge=-100, le=100)] = Field(
        0, description="Higher starts earlier; among equals the older job."
    )
    suffix: str | None = Field(None, description="Part of the job's id; auto: the file's name.")
    metadata: dict[str, str] = Field(default_factory=dict, description="Yours; copied into the model card.")


@dataclass(frozen=True)
class ParsedSpec:
    """`notices`: what was understood from other words than our own, or has no effect; for people."""

    spec: JobSpec
    notices: tuple[str, ...]


_DATASET = Form(Dataset, DATASET_WORDS, check_dataset)
_EXPORT = Form(Export, EXPORT_WORDS)
_JOB = Form(JobSpec, JOB_WORDS, check_job, inner={"datasets": _DATASET, "eval_datasets": _DATASET, "export": _EXPORT})


def parse_spec(text: str, source: str) -> ParsedSpec:
    """What a job file asks for; `source` is the name it goes by in messages.

    Raises InvalidSpec with every problem at once, in the order of the file, whatever the text.
    """
    findings = Findings()
    try:
        given = read_record(_JOB, read_tree(text), findings)
    except UnreadableText as error:
        where = place(error.line, "") or "the file"
        raise InvalidSpec(source, [Problem(place=where, what=error.what, hint=error.hint)]) from error
    if findings.problems:
        raise InvalidSpec(source, findings.problems)
    spec = JobSpec.model_validate(values_of(given) | implied_values(given))
    return ParsedSpec(spec, findings.notices)


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a job file in our own words, for editors."""
    return editor_schema(_JOB)


def job_file_page() -> str:
    """docs/job-file.md: every field, what it takes, its default and its other names."""
    return reference_page(_JOB)
