"""What is known from other tools and cannot be had in this version: a sentence each, and what to write instead."""

from collections.abc import Mapping
from dataclasses import dataclass

ANYTHING = frozenset({"*"})


@dataclass(frozen=True)
class NotYet:
    """A name or value that is known but cannot be had in this version.

    `harmless`: values that ask for nothing, or for what happens anyway; they are read with a notice.
    """

    what: str
    instead: str
    harmless: frozenset[str] = frozenset()


def _later(names: str, what: str, instead: str, harmless: str = "") -> dict[str, NotYet]:
    return {name: NotYet(what, instead, frozenset(harmless.split())) for name in names.split()}


def _decided_here(names: str, why: str) -> dict[str, NotYet]:
    """Settings that change no result here: whatever they say is read with a notice."""
    return {name: NotYet(why, "leave it out", ANYTHING) for name in names.split()}


_OTHER_START = "leave it out, or write gaussian or orthogonal"
_LORA = "write finetuning_type: lora"
_CHAT_ROWS = (
    'write rows such as {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}'
)

JOB_NAMES_NOT_YET: Mapping[str, NotYet] = {
    **_later(
        "quantization_bit quant_bits quantization_type",
        "quantization by a number of bits",
        "write load_in_4bit: true, or load_in_8bit: true",
        "none no",
    ),
    **_later(
        "quant_method quantization_method", "any quantization but bitsandbytes'", "leave it out", "bnb bitsandbytes"
    ),
    **_later("bnb_config_kwargs qlora", "this setting", "write finetuning_type: qlora, and bnb_4bit_* by their names"),
    **_decided_here(
        "bnb_4bit_compute_dtype bnb_4bit_quant_storage llm_int8_threshold llm_int8_skip_modules "
        "resize_token_embeddings resize_vocab resize_token_embeddings_to_32x",
        "is not needed: it follows from the rest",
    ),
    **_later(
        "pissa_init", "a start that changes the base, which the adapter would then not fit", _OTHER_START, "false"
    ),
    **_later("use_badam use_galore use_apollo use_llama_pro", "this kind of tuning", _LORA, "false"),
    **_later("lora_bias bias", "training biases with the adapter", "leave it out", "none false"),
    **_later(
        "freeze_trainable_layers freeze_trainable_modules freeze_layers freeze_extra_modules spectrum_top_fraction",
        "choosing layers by number",
        "write finetuning_type: freeze and unfrozen_parameters: [layers\\.(30|31)\\.]",
    ),
    **_later(
        "layers_to_transform peft_layers_to_transform lora_layers peft_layers_pattern",
        "adapters in some layers only",
        "write a regular expression: lora_target_modules: .*layers\\.(30|31)\\..*_proj",
    ),
    **_later(
        "reward_model beta simpo_gamma pref_beta pref_loss dpo_beta num_generations reward_funcs ref_model",
        "preference and reinforcement learning",
        "write method: sft, which learns from good answers",
        "false",
    ),
    **_later(
        "trust_remote_code",
        "models that bring their own code, which would run as the daemon's user",
        "leave it out and choose an architecture that transformers has",
        "false",
    ),
    **_decided_here(
        "packing sample_packing neat_packing eval_packing eval_sample_packing packing_strategy padding_free "
        "batch_flattening pad_to_sequence_len group_by_length multipack_real_batches packed",
        "is not needed: micro-batches are filled to a token budget and examples never see each other",
    ),
    **_decided_here(
        "per_device_eval_batch_size eval_batch_size auto_find_batch_size dataloader_* preprocessing_num_workers "
        "dataset_num_proc dataset_processes attn_implementation attn_impl flash_attn flash_attention "
        "use_flash_attention_2 xformers_attention sdp_attention use_liger_kernel enable_liger_kernel liger_* "
        "torch_compile tf32 gradient_checkpointing_kwargs low_cpu_mem_usage use_fast_tokenizer device_map "
        "ddp_* torch_empty_cache_steps eval_accumulation_steps prediction_loss_only",
        "is not needed: how a step is computed is decided from model and machine",
    ),
    **_decided_here(
        "output_dir overwrite_output_dir logging_dir overwrite_cache cache_dir dataset_prepared_path plot_loss "
        "logging_first_step logging_strategy disable_tqdm log_level remove_unused_columns save_safetensors "
        "save_only_model include_num_input_tokens_seen include_tokens_per_second strict is_llama_derived_model "
        "model_type tokenizer_type",
        "is not needed: the job's own folder holds checkpoints, curves and artifacts",
    ),
    **_later("do_train", "a job that does not train", "leave it out", "true"),
    **_later("do_predict", "predictions after training", "samples.md shows answers of each job", "false"),
    **_later("optim_args lr_scheduler_kwargs cosine_min_lr_ratio embedding_lr", "this setting", "leave it out"),
    **_later(
        "learning_rate_multiplier",
        "a multiple of a learning rate chosen elsewhere",
        "write the learning rate itself: learning_rate",
        "auto 1 1.0",
    ),
    **_later(
        "evals_per_epoch saves_per_epoch n_evals n_checkpoints",
        "counting evaluations or checkpoints by epoch or run",
        "leave it out for about 10 evaluations a run, or write eval_steps and save_steps",
    ),
    **_later(
        "save_strategy",
        "any rhythm of checkpoints but by steps and minutes",
        "leave it out: a checkpoint is written every 10 minutes and at each evaluation",
        "steps",
    ),
    **_later("greater_is_better", "choosing the highest value", "leave it out: the lowest eval_loss wins", "false"),
    **_later(
        "early_stopping",
        "early stopping without a patience",
        "write early_stopping_patience: 3, the evaluations without improvement that end the run",
        "false",
    ),
    **_later(
        "validation_split_percentage",
        "a percentage",
        "write the part as a fraction: val_set_size: 0.05",
    ),
    **_later("fp16", "16-bit floats without bf16's range", "write bf16: true or leave it out", "false auto"),
    **_later("pure_bf16", "weights and optimizer in bf16 alone", "leave it out", "false"),
    **_later("activation_offloading", "keeping activations in host memory", "leave it out", "false"),
    **_later("mask_history", "learning the last answer only", "leave it out", "false"),
    **_later("loss_scale", "weighting parts of an answer", "leave it out", "default"),
    **_later("train_on_eos train_on_eot eot_tokens", "choosing which ends are learned", "leave it out", "turn"),
    **_later(
        "special_tokens",
        "other special tokens than the tokenizer's",
        "write added_special_tokens: [<|mark|>] for new ones",
    ),
    **_later("tokenizer tokenizer_name tokenizer_config", "another tokenizer", "it is read from base_model"),
    **_later(
        "streaming buffer_size",
        "streamed data",
        "name a file in datasets; it is read once and never held in memory whole",
        "false",
    ),
    **_later(
        "dataset_name dataset_dir dataset_config dataset_mixture interleave_probs mix_strategy",
        "data sets by name",
        "name files or folders: datasets: [{path: /path/to/train.jsonl}]",
    ),
    **_later(
        "max_samples max_train_samples max_eval_samples",
        "a part of the rows",
        "write split: train[:1000] in an entry of datasets",
    ),
    **_later("data_seed", "a second seed", "seed also decides the order of the rows"),
    **_later("full_determinism", "bit-identical runs on a GPU", "leave it out; on a CPU they are", "false"),
    **_later(
        "report_to wandb_* use_wandb enable_wandb mlflow_* comet_* swanlab_* trackio_* use_tensorboard tensorboard",
        "reporting to a tracker",
        "leave it out: metrics.jsonl, metrics.csv, loss.png and report.html are always written",
        "none false",
    ),
    **_later(
        "push_to_hub hub_* push_to_hub_model_id",
        "uploading the result",
        "leave it out and take it from the job's artifacts folder",
        "false",
    ),
    **_later(
        "resume_from_checkpoint auto_resume_from_checkpoints from_checkpoint",
        "starting from a checkpoint of one's own",
        "leave it out: an interrupted job goes on from its newest checkpoint by itself",
        "auto true false never",
    ),
    **_later(
        "deepspeed fsdp fsdp_* tensor_parallel_size context_parallel_size sequence_parallel_size num_gpus world_size",
        "one run on several GPUs",
        "leave it out: a run takes one GPU",
        "false 1",
    ),
    **_later("deadline max_runtime not_before", "times in a job file", "write max_steps to bound a run"),
    **_later("depends_on", "waiting for another job", "drop the second job when the first is in done/"),
    **_later("notify webhook", "messages about a job", "finetunectl submit --wait tells when it ended"),
    **_later("merge merge_lora", "a merged model under this name", "write export: {merge: true}", "false"),
    **_later("gguf", "GGUF under this name", "write export: {gguf: q8_0}", "false"),
    **_later("quantize export_quantization_bit", "quantized results", "write export: {gguf: q4_k_m}", "false none"),
    **_later("keep", "rules for keeping files", "write save_total_limit for checkpoints"),
    **_decided_here(
        "retries on_oom on_nan", "is not needed: an interrupted run is taken up again without being told to"
    ),
    **_later("plugins kernels custom_*", "plug-ins", "leave it out", "false"),
    **_later("neftune_noise_alpha label_smoothing_factor", "this regularisation", "leave it out", "0 0.0"),
}

JOB_VALUES_NOT_YET: Mapping[str, Mapping[str, NotYet]] = {
    "method": {
        **_later(
            "dpo ipo orpo kto simpo cpo preference",
            "learning from preferences",
            "method: sft learns from the preferred answers alone",
        ),
        **_later("reward rm prm reward_model", "reward models", "leave the job for a later version"),
        **_later(
            "ppo grpo rloo gspo dapo reinforcement reinforce",
            "reinforcement learning",
            "method: sft learns from good answers in the data",
        ),
        **_later("gkd distillation kd", "distillation", "method: sft learns from the teacher's written answers"),
    },
    "finetuning_type": {
        **_later("dora", "DoRA under this name", "write finetuning_type: lora and use_dora: true"),
        **_later("rslora", "rsLoRA under this name", "write finetuning_type: lora and use_rslora: true"),
        **_later("adalora lora_fa loha lokr ia3 oft prefix prompt", "this adapter", _LORA),
        **_later("galore apollo badam lisa llamapro", "this tuning", "write finetuning_type: lora or full"),
    },
    "lr_scheduler_type": _later(
        "polynomial cosine_with_restarts cosine_with_min_lr cosine_warmup_with_min_lr inverse_sqrt "
        "reduce_lr_on_plateau one_cycle rex",
        "this learning rate schedule",
        "write linear, cosine, constant or warmup_stable_decay",
    ),
    "optim": {
        **_later(
            "adafactor sgd lion lion_8bit lion_32bit paged_lion_8bit paged_lion_32bit muon rmsprop adagrad "
            "ademamix adalomo galore_adamw galore_adamw_8bit apollo_adamw came_pytorch schedule_free_adamw "
            "grokadamw stable_adamw",
            "any optimizer but AdamW",
            "leave it out for AdamW, or write adamw_8bit",
        ),
        **_later(
            "adamw_torch_8bit adamw_torch_4bit ao_adamw_8bit ao_adamw_4bit ao_adamw_fp8 adamw_apex_fused "
            "adamw_anyprecision",
            "this build of AdamW",
            "write adamw_torch or adamw_8bit",
        ),
    },
    "init_lora_weights": {
        **_later("false eva", "this start of the adapter", _OTHER_START),
        **_later(
            "pissa olora corda loftq lora_ga pissa_niter_4 pissa_niter_8 pissa_niter_16 pissa_niter_32",
            "a start that changes the base, which the adapter would then not fit",
            _OTHER_START,
        ),
    },
    "excess_length_strategy": _later(
        "left keep_end split", "cutting at the beginning or into pieces", "write truncate to cut at the end, or drop"
    ),
    "eval_strategy": _later(
        "epoch epochs",
        "evaluation at the end of each epoch",
        "leave it out for about 10 evaluations a run, or write eval_steps",
    ),
    "metric_for_best_model": _later(
        "accuracy eval_accuracy rouge eval_rouge bleu perplexity eval_perplexity eval_rewards/accuracies",
        "choosing by this measure",
        "write eval_loss",
    ),
    "bf16": _later("float16 fp16 torch.float16", "16-bit floats without bf16's range", "write bf16: true or auto"),
    "device": _later(
        "cuda gpu cuda:0 mps xpu npu",
        "choosing a device by name",
        "leave it out: a GPU is used where there is one",
    ),
}

DATASET_NAMES_NOT_YET: Mapping[str, NotYet] = {
    **_decided_here("ds_type file_type", "is not needed: the kind of file is seen from its name and first bytes"),
    **_later("name config_name subset", "data sets of several parts", "give each part a file of its own"),
    **_later("revision", "data sets on a hub", "get the rows to this machine and write their path"),
    **_later("shards shards_idx interleave_prob", "this kind of mixing", "write weight: 0.5 for half of the rows"),
    **_later("field_* message_* roles", "names of columns, one by one", "write columns: {messages: theirs}"),
    **_later("field_messages", "names of columns, one by one", "write columns: {messages: theirs}", "messages"),
    **_later("field text_column field_text", "names of columns, one by one", "write columns: {text: theirs}", "text"),
    **_later("roles_to_train", "roles of one set", "write roles_to_train beside datasets", "assistant"),
    **_later("train_on_eos train_on_eot", "choosing which ends are learned", "leave it out", "turn"),
    **_later("chat_template", "a template for one file", "write chat_template beside datasets"),
    **_later("trust_remote_code", "data sets that bring code", "leave it out", "false"),
    **_later("max_samples", "a part of the rows", "write split: train[:1000]"),
}

DATASET_VALUES_NOT_YET: Mapping[str, Mapping[str, NotYet]] = {
    "format": {
        **_later("preference kto dpo", "rows of this kind", _CHAT_ROWS),
        **_later("input_output", "rows of this kind", "write format: tokenized and rows of input_ids and labels"),
        **_later(
            "csv tsv parquet arrow json jsonl", "a kind of file as format", "leave it out: that is seen from the file"
        ),
    }
}

EXPORT_NAMES_NOT_YET: Mapping[str, NotYet] = {
    **_later("quantize bits export_quantization_bit awq gptq", "quantized results", "write gguf: q4_k_m", "false none")
}

LATER_SOURCES = {
    "job:": "the result of another job",
    "s3:": "object storage",
    "gs:": "object storage",
    "gcs:": "object storage",
    "az:": "object storage",
    "abfs:": "object storage",
    "oci:": "object storage",
    "http:": "download from the web",
    "https:": "download from the web",
    "hf:": "this spelling of a hub",
    "ms:": "another hub",
    "modelscope:": "another hub",
}
"""How a source that cannot be read yet begins → what it is."""
