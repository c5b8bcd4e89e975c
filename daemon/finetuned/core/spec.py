"""What a person asks for: the job file's fields with the only defaults there are, and YAML text → JobSpec.

`auto` (None here) means: decided in plan.py from facts. Field names are Hugging Face's, PEFT's and TRL's.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Asked(BaseModel):
    """Part of a job file: unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Dataset(_Asked):
    """One file of rows."""

    path: str = Field(description="Absolute path of a JSONL file, or one inside the dropped folder.")
    format: Literal["auto", "chat", "text"] = Field(
        "auto",
        description="chat: rows with `messages`; text: rows with `text`; auto: decided by looking at the first row.",
    )


class JobSpec(_Asked):
    """A job file. Two fields are required: base_model and datasets."""

    base_model: str = Field(description="A model folder (/… or ./…), or org/name on the Hugging Face hub.")
    revision: str | None = Field(None, description="Branch, tag or commit of a hub model.")
    datasets: Annotated[tuple[Dataset, ...], Field(min_length=1, description="What to train on.")]
    eval_datasets: tuple[Dataset, ...] = Field((), description="What to evaluate on; else val_set_size splits it off.")
    val_set_size: float | None = Field(
        None,
        description="Part (< 1) or number (>= 1) of rows kept for evaluation; auto: 5 %, at most 500, from 200 rows up.",
    )

    method: Literal["sft", "pretrain"] = Field("sft", description="The objective.")
    finetuning_type: Literal["lora", "full"] = Field("lora", description="What is trained.")
    lora_r: Annotated[int, Field(ge=1, description="Rank of the adapter.")] = 16
    lora_alpha: Annotated[int, Field(ge=1, description="The adapter's output is scaled by lora_alpha / lora_r.")] = 32
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    lora_target_modules: str | tuple[str, ...] = Field(
        "all-linear", description="all-linear, a list of module names, or a regular expression."
    )

    chat_template: str | None = Field(
        None, description="chatml, llama3, or the path of a Jinja file; auto: the model's own."
    )
    max_seq_length: Annotated[int, Field(ge=8)] | None = Field(None, description="auto: min(4096, the model's).")
    excess_length_strategy: Literal["drop", "truncate", "error"] = Field(
        "drop", description="What happens to a row longer than max_seq_length; more than 1 % dropped fails the job."
    )
    train_on_inputs: bool = Field(False, description="Also learn the prompts, not only the assistant's turns.")

    learning_rate: Annotated[float, Field(gt=0, lt=1)] | None = Field(None, description="auto: lora 2e-4, full 1e-5.")
    lr_scheduler_type: Literal["linear", "cosine", "constant"] = "cosine"
    warmup_ratio: Annotated[float, Field(ge=0, lt=1)] | None = Field(None, description="auto: 0.03.")
    warmup_steps: Annotated[int, Field(ge=0)] | None = None
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    adam_epsilon: Annotated[float, Field(gt=0)] = 1e-8
    max_grad_norm: Annotated[float, Field(ge=0, description="0 switches clipping off.")] = 1.0

    num_train_epochs: Annotated[float, Field(gt=0)] | None = Field(
        None, description="auto: 3, unless max_steps is given."
    )
    max_steps: Annotated[int, Field(ge=1)] | None = None
    global_batch_size: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Examples an optimizer step; auto: rows x epochs / 200, between 1 and 16."
    )
    per_device_train_batch_size: Annotated[int, Field(ge=1)] | None = None
    gradient_accumulation_steps: Annotated[int, Field(ge=1)] | None = None
    bf16: bool | None = Field(None, description="auto: where the device has it.")
    gradient_checkpointing: bool | None = Field(None, description="auto: on a GPU.")
    device: Literal["auto", "cpu"] = Field("auto", description="cpu: use no GPU even where there is one.")

    eval_steps: Annotated[int, Field(ge=1)] | None = Field(None, description="auto: about 10 evaluations a run.")
    eval_strategy: Literal["steps", "no"] = "steps"
    save_steps: Annotated[int, Field(ge=1)] | None = Field(
        None, description="auto: every 10 minutes, and at each evaluation."
    )
    save_total_limit: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Checkpoints kept, beside the best; auto: 2 (full: 1)."
    )
    logging_steps: Annotated[int, Field(ge=1)] = 1
    load_best_model_at_end: bool | None = Field(None, description="auto: yes where there is evaluation.")
    metric_for_best_model: Literal["eval_loss"] = "eval_loss"
    early_stopping_patience: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Evaluations without improvement after which training ends; auto: never."
    )
    early_stopping_threshold: Annotated[float, Field(ge=0)] = 0.0
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 42

    priority: Annotated[int, Field(ge=-100, le=100, description="Higher starts earlier; equal: older first.")] = 0
    suffix: str | None = Field(None, description="Part of the job's name, instead of the file's name.")
    metadata: dict[str, str] = Field(default_factory=dict, description="Yours; copied into the model card.")
