"""The words that other tools use: their names and values for our fields, and what this version cannot do yet.

A person comes with a file for axolotl, LLaMA-Factory, TRL, ms-swift, unsloth or a hosted service in mind. A name with
one clear meaning here is read with a notice; one that asks for more than there is gets a sentence of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from finetuned.core.jobfile.later import (
    DATASET_NAMES_NOT_YET,
    DATASET_VALUES_NOT_YET,
    EXPORT_NAMES_NOT_YET,
    JOB_NAMES_NOT_YET,
    JOB_VALUES_NOT_YET,
    NotYet,
)


@dataclass(frozen=True)
class Reworded:
    """A foreign name whose values say the same in other words: `fp32: true` is `bf16: false`."""

    field: str
    values: Mapping[str, str]


@dataclass(frozen=True)
class Words:
    """Everything that may be written in a record beside its own field names. Names may end in `*`."""

    other_names: Mapping[str, str] = field(default_factory=dict)
    reworded: Mapping[str, Reworded] = field(default_factory=dict)
    other_values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    not_yet: Mapping[str, NotYet] = field(default_factory=dict)
    values_not_yet: Mapping[str, Mapping[str, NotYet]] = field(default_factory=dict)
    ambiguous_when_empty: Mapping[str, str] = field(default_factory=dict)
    fractions: Mapping[str, str] = field(default_factory=dict)
    """Field of a count → field that a number between 0 and 1 given for it means."""

    def not_yet_about(self, name: str) -> NotYet | None:
        if name in self.not_yet:
            return self.not_yet[name]
        families = (family for family in self.not_yet if family.endswith("*"))
        return next((self.not_yet[family] for family in families if name.startswith(family[:-1])), None)


def _names(**fields: str) -> Mapping[str, str]:
    """field="its other names" turned round: other name → field."""
    return MappingProxyType({other: name for name, others in fields.items() for other in others.split()})


_OPPOSITE = {"true": "false", "false": "true"}

JOB_WORDS = Words(
    other_names=_names(
        base_model="model model_name_or_path model_name base_model_name_or_path model_path",
        revision="model_revision hub_revision revision_of_model",
        datasets="dataset data train_dataset train_data train_file training_file train_files training_files "
        "local_dataset dataset_path data_path",
        eval_datasets="eval_dataset test_datasets val_dataset val_datasets validation_dataset validation_file "
        "validation_files eval_file eval_files",
        val_set_size="val_size split_dataset_ratio validation_split val_split eval_split test_size",
        method="stage rl rlhf_type training_method objective",
        finetuning_type="adapter tuner_type training_type peft_type tuning",
        lora_r="lora_rank rank r",
        lora_alpha="alpha",
        lora_target_modules="lora_target target_modules lora_trainable_modules",
        use_dora="peft_use_dora",
        use_rslora="peft_use_rslora",
        init_lora_weights="lora_init",
        modules_to_save="lora_modules_to_save additional_target",
        init_adapter="lora_model_dir adapter_name_or_path adapters",
        chat_template="template chat_template_jinja chat_template_path",
        added_tokens="tokens add_tokens new_tokens",
        added_special_tokens="add_special_tokens",
        deduplicate="dataset_exact_deduplication exact_deduplication dedup",
        loraplus_lr_ratio="lorap_lr_ratio",
        optim="optimizer",
        max_seq_length="sequence_len cutoff_len max_length max_seq_len seq_length sequence_length model_max_length "
        "context_length block_size",
        excess_length_strategy="truncation_strategy truncation_mode",
        train_on_inputs="train_on_prompt train_on_prompts",
        learning_rate="lr",
        lr_scheduler_type="lr_scheduler scheduler lr_schedule",
        warmup_ratio="warmup_fraction warmup_proportion",
        warmup_steps="warmup num_warmup_steps lr_warmup_steps",
        weight_decay="wd",
        adam_beta1="beta1 adam_beta_1",
        adam_beta2="beta2 adam_beta_2",
        adam_epsilon="adam_eps epsilon",
        max_grad_norm="gradient_clipping grad_clip clip_grad_norm gradient_clip_val",
        num_train_epochs="num_epochs n_epochs epochs train_epochs max_epochs",
        max_steps="train_steps num_train_steps max_train_steps num_steps",
        global_batch_size="batch_size effective_batch_size total_batch_size train_batch_size",
        per_device_train_batch_size="micro_batch_size per_gpu_train_batch_size per_device_batch_size "
        "train_micro_batch_size_per_gpu",
        gradient_accumulation_steps="gradient_accumulation accumulation_steps grad_accum grad_accumulation_steps",
        gradient_checkpointing="activation_checkpointing use_gradient_checkpointing",
        eval_strategy="evaluation_strategy",
        eval_steps="eval_interval",
        save_steps="save_interval checkpoint_steps",
        logging_steps="log_every_n_steps log_steps log_interval",
        early_stopping_patience="early_stopping_steps early_stop_patience early_stop_interval",
        early_stopping_threshold="early_stopping_min_delta",
        seed="random_seed rng_seed",
        suffix="run_name job_name name",
    ),
    reworded={
        "use_peft": Reworded("finetuning_type", {"true": "lora", "false": "full"}),
        "use_lora": Reworded("finetuning_type", {"true": "lora", "false": "full"}),
        "full_finetuning": Reworded("finetuning_type", {"true": "full", "false": "lora"}),
        "use_qlora": Reworded("finetuning_type", {"true": "qlora", "false": "auto"}),
        "lora_target_linear": Reworded("lora_target_modules", {"true": "all-linear"}),
        "assistant_only_loss": Reworded("train_on_inputs", _OPPOSITE),
        "completion_only_loss": Reworded("train_on_inputs", _OPPOSITE),
        "train_on_completions": Reworded("train_on_inputs", _OPPOSITE),
        "train_on_responses_only": Reworded("train_on_inputs", _OPPOSITE),
        "disable_gradient_checkpointing": Reworded("gradient_checkpointing", _OPPOSITE),
        "fp32": Reworded("bf16", {"true": "false", "false": "auto"}),
        "do_eval": Reworded("eval_strategy", {"true": "steps", "false": "no"}),
        "use_cpu": Reworded("device", {"true": "cpu", "false": "auto"}),
        "no_cuda": Reworded("device", {"true": "cpu", "false": "auto"}),
    }
    | {
        name: Reworded(
            "bf16",
            {
                "auto": "auto",
                "bfloat16": "true",
                "torch.bfloat16": "true",
                "bf16": "true",
                "float32": "false",
                "torch.float32": "false",
                "fp32": "false",
                "no": "false",
            },
        )
        for name in ("dtype", "torch_dtype", "compute_dtype", "precision", "mixed_precision")
    },
    other_values={
        "method": {
            "supervised": "sft",
            "instruct": "sft",
            "finetune": "sft",
            "pt": "pretrain",
            "cpt": "pretrain",
            "pretraining": "pretrain",
            "continued_pretraining": "pretrain",
        },
        "finetuning_type": {"full_parameter": "full", "full_finetuning": "full", "q-lora": "qlora"},
        "init_lora_weights": {"true": "default", "kaiming": "default"},
        "lora_target_modules": {"all": "all-linear", "all_linear": "all-linear"},
        "optim": {
            "adamw": "adamw_torch",
            "adam_w": "adamw_torch",
            "adamw_hf": "adamw_torch",
            "adamw_torch_fused": "adamw_torch",
            "adamw_bnb_8bit": "adamw_8bit",
            "adamw8bit": "adamw_8bit",
            "paged_adamw": "paged_adamw_32bit",
        },
        "lr_scheduler_type": {"constant_with_warmup": "constant", "wsd": "warmup_stable_decay"},
        "excess_length_strategy": {
            "delete": "drop",
            "raise": "error",
            "right": "truncate",
            "keep_start": "truncate",
        },
        "chat_template": {"tokenizer_default": "auto", "default": "auto", "llama-3": "llama3"},
        "eval_strategy": {"false": "no", "none": "no"},
        "metric_for_best_model": {"loss": "eval_loss"},
        "gradient_checkpointing": {"unsloth": "true"},
        "max_steps": {"-1": "auto", "0": "auto"},
    },
    values_not_yet=JOB_VALUES_NOT_YET,
    ambiguous_when_empty={
        "adapter": "in other tools this means full tuning, and leaving it out here means lora",
    },
    fractions={"warmup_steps": "warmup_ratio"},
    not_yet=JOB_NAMES_NOT_YET,
)

EXPORT_WORDS = Words(
    other_names=_names(merge="merge_lora merged merge_adapter", gguf="outtype gguf_type"),
    other_values={"gguf": {"false": "none", "no": "none"}},
    not_yet=EXPORT_NAMES_NOT_YET,
)

DATASET_WORDS = Words(
    other_names=_names(path="file data_files data_file data_path filename", format="type data_format"),
    other_values={
        "format": {
            "chat_template": "chat",
            "messages": "chat",
            "openai": "chat",
            "conversational": "chat",
            "conversation": "chat",
            "chatml": "chat",
            "instruction": "alpaca",
            "instruct": "alpaca",
            "prompt-completion": "prompt_completion",
            "completion": "text",
            "pretrain": "text",
            "plain": "text",
            "raw": "text",
            "pretokenized": "tokenized",
            "tokenised": "tokenized",
        }
    },
    values_not_yet=DATASET_VALUES_NOT_YET,
    not_yet=DATASET_NAMES_NOT_YET,
)
