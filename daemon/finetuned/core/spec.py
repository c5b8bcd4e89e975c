"""What a person asks for: the job file's fields with the only defaults there are, and YAML or JSON text → JobSpec.

`auto` (None here) means: decided in planning from facts. Field names are Hugging Face's, PEFT's and TRL's.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from finetuned.core.jobfile.findings import Findings, place
from finetuned.core.jobfile.page import editor_schema, reference_page
from finetuned.core.jobfile.reading import Form, read_record, values_of
from finetuned.core.jobfile.rules import check_dataset, check_job, implied_values
from finetuned.core.jobfile.text import UnreadableText, read_tree
from finetuned.core.jobfile.words import DATASET_WORDS, JOB_WORDS
from finetuned.core.problems import InvalidSpec, Problem

Count = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
NotNegative = Annotated[float, Field(ge=0)]


class _Asked(BaseModel):
    """Part of a job file: unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Dataset(_Asked):
    """One file of rows."""

    path: str = Field(description="Absolute path of a JSONL file, or one inside the dropped folder.")
    format: Literal["auto", "chat", "text"] = Field(
        "auto", description="chat: rows with `messages`; text: rows with `text`; auto: seen from the first row."
    )


class JobSpec(_Asked):
    """A job file. Two fields are required: base_model and datasets."""

    base_model: str = Field(
        description="The model to tune: a folder (`/…`, `./…` or `file:/…`), or `org/name` on the Hugging Face hub "
        "(`hub:org/name@revision` says so whatever the name looks like)."
    )
    revision: str | None = Field(None, description="Branch, tag or commit of a hub model; auto: the newest, pinned.")
    datasets: tuple[Dataset, ...] = Field(min_length=1, description="Files to train on, one after the other.")
    eval_datasets: tuple[Dataset, ...] = Field(
        (), description="Files to evaluate on; without them val_set_size splits rows off."
    )
    val_set_size: NotNegative | None = Field(
        None,
        description="Part (below 1) or number (from 1) of rows kept for evaluation, 0 for none; "
        "auto: 5 %, at most 500, from 200 rows up.",
    )

    method: Literal["sft", "pretrain"] = Field(
        "sft", description="The objective. sft: learn the assistant's turns; pretrain: learn plain text."
    )
    finetuning_type: Literal["lora", "full"] = Field(
        "lora", description="What is trained. lora: a small adapter; full: every weight."
    )
    lora_r: Count = Field(16, description="Rank of the adapter.")
    lora_alpha: Count = Field(32, description="The adapter's output is scaled by lora_alpha / lora_r.")
    lora_dropout: Fraction = Field(0.0, description="Dropout before the adapter.")
    lora_target_modules: str | tuple[str, ...] = Field(
        "all-linear",
        description="Where adapters go: all-linear, a list of module names, or a regular expression over whole names.",
    )

    chat_template: str | None = Field(
        None, description="chatml, llama3, or the path of a Jinja file; auto: the model's own."
    )
    max_seq_length: Annotated[int, Field(ge=8)] | None = Field(
        None, description="Tokens of the longest row; auto: 4096, or what the model can if that is less."
    )
    excess_length_strategy: Literal["drop", "truncate", "error"] = Field(
        "drop", description="What happens to a row longer than max_seq_length; more than 1 % dropped fails the job."
    )
    train_on_inputs: bool = Field(False, description="Also learn the prompts, not only the assistant's turns.")

    learning_rate: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="Peak learning rate; auto: 2e-4 for lora, 1e-5 for full."
    )
    lr_scheduler_type: Literal["linear", "cosine", "constant"] = Field(
        "cosine", description="How the learning rate goes on after the warm-up; linear and cosine end at 0."
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

    priority: Annotated[int, Field(ge=-100, le=100)] = Field(
        0, description="Higher starts earlier; among equals the older job."
    )
    suffix: str | None = Field(None, description="Part of the job's name; auto: the file's name.")
    metadata: dict[str, str] = Field(default_factory=dict, description="Yours; copied into the model card.")


@dataclass(frozen=True)
class ParsedSpec:
    """`notices`: what was understood from other words than our own, or has no effect; for people."""

    spec: JobSpec
    notices: tuple[str, ...]


_DATASET = Form(Dataset, DATASET_WORDS, check_dataset)
_JOB = Form(JobSpec, JOB_WORDS, check_job, inner={"datasets": _DATASET, "eval_datasets": _DATASET})


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
