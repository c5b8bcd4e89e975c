"""axolotl's keys that need no translating: not needed here, or not to be had."""

from finetuned.core.importers.rules import NO_REMOTE_CODE, Rules, refused, unneeded

AXOLOTL_RULES: Rules = {
    **unneeded(
        "group_by_length",
        "is for speed there, and lays rows of like length in one batch; here nothing is padded, and batches are mixed",
    ),
    **unneeded(
        "eval_sample_packing pad_to_sequence_len sample_packing_* multipack_real_batches batch_flattening "
        "eval_batch_size auto_find_batch_size eval_causal_lm_* eval_table_* eval_max_new_tokens",
        "is not needed: micro-batches are filled to a token budget and rows never see each other",
    ),
    **unneeded(
        "attention flash_attention flash_attn_* "
        "xformers_attention sdp_attention flex_attention flex_attn_* eager_attention "
        "attn_implementation flash_optimum unsloth_* lora_mlp_kernel lora_qkv_kernel lora_o_kernel "
        "lora_embedding_kernel lora_on_cpu torch_compile* tf32 gradient_checkpointing_kwargs low_cpu_mem_usage "
        "max_memory gpu_memory_limit "
        "device device_map dataloader_* dataset_processes dataset_num_proc dataset_keep_in_memory gc_steps use_kernels "
        "liger_* cut_cross_entropy* chunked_cross_entropy* experimental_skip_move_to_device accelerator_config "
        "qlora_sharded_model_loading embeddings_skip_upcast activation_offloading torchdistx_path",
        "is not needed: how a step is computed is decided from model and machine",
    ),
    **unneeded(
        "world_size local_rank ddp ddp_* fsdp_version fsdp_final_state_dict_type",
        "has no effect: a run takes one GPU",
    ),
    **unneeded(
        "wandb_* mlflow_* comet_* use_wandb use_mlflow use_comet use_tensorboard swanlab_* trackio_* use_trackio "
        "gradio_* otel_* use_otel_* report_to eval_causal_lm_metrics",
        "is not needed: metrics.jsonl, loss.png and report.html are always written",
    ),
    **unneeded(
        "hub_* push_dataset_to_hub hf_use_auth_token",
        "is not done here: the result lies in the job's artifacts (finetunectl get)",
    ),
    **unneeded(
        "output_dir dataset_prepared_path save_safetensors skip_prepare_dataset overwrite_output_dir debug strict "
        "profiler_steps include_tokens_per_second include_tkps is_preprocess remove_unused_columns lora_out_dir "
        "auto_resume_from_checkpoints axolotl_config_path dynamic_checkpoint save_first_step",
        "is not needed: the job's own folder holds checkpoints, curves and artifacts",
    ),
    **unneeded(
        "model_type tokenizer_type tokenizer_use_fast tokenizer_legacy tokenizer_save_jinja_files "
        "is_llama_derived_model is_falcon_derived_model is_mistral_derived_model "
        "is_qwen_derived_model trust_remote_code_revision",
        "is not needed: it is read from base_model",
    ),
    **unneeded(
        "resize_token_embeddings_to_32x mean_resizing_embeddings shrink_embeddings eot_tokens",
        "is not needed: it follows from tokenizer and template; the end of a turn is always learned and always stops",
    ),
    **unneeded(
        "loss_watchdog_threshold loss_watchdog_patience",
        "is not watched for here; the loss is told at every step",
    ),
    **unneeded(
        "do_bench_eval bench_dataset bench_split do_causal_lm_eval loraplus_lr_embedding",
        "is not needed: rows are evaluated by their loss, and adapters stand on linear layers",
    ),
    **unneeded("max_prompt_len vllm trl", "concerns reinforcement learning alone"),
    **refused(
        "base_model_config tokenizer_config cls_model_config processor_type", "parts of another model", "delete it"
    ),
    **refused(
        "deepspeed fsdp fsdp_config tensor_parallel_size context_parallel_size sequence_parallel_degree heads_k_stride "
        "ring_attn_func dp_shard_size dp_replicate_size expert_parallel_size use_ray ray_*",
        "one run on several GPUs",
        "delete it: a run takes one GPU; multiply gradient_accumulation_steps by the number of GPUs for the same batch",
        "false 1",
    ),
    **refused(
        "rl reward_model process_reward_model num_labels dpo_* rl_beta orpo_alpha rpo_alpha simpo_gamma cpo_alpha "
        "kto_*",
        "learning from preferences or rewards",
        "learn from the good answers alone: type: chat_template, and delete rl",
        "false",
    ),
    **refused(
        "pretraining_dataset streaming streaming_* pretrain_multipack_* pretraining_sample_concatenation",
        "streamed data",
        "name files under datasets, with type: completion; they are read once and never held in memory whole",
        "false",
    ),
    **refused(
        "plugins",
        "code of one's own, except for the plug-ins that only make steps faster",
        "delete the plug-ins that the run can do without",
        "axolotl.integrations.liger.ligerplugin axolotl.integrations.cut_cross_entropy.cutcrossentropyplugin",
    ),
    **refused("special_tokens", "other special tokens than the tokenizer's", "see its parts"),
    **refused("added_tokens_overrides fix_untrained_tokens", "tokens rewritten in place", "add them under tokens"),
    **unneeded("trust_remote_code", NO_REMOTE_CODE),
    **refused(
        "overrides_of_model_config overrides_of_model_kwargs model_config rope_scaling model_quantization_*",
        "another model than base_model's config.json says",
        "change the config.json of a copy of the model and name that folder",
    ),
    **refused(
        "relora* lisa_* unsloth_* spectrum_* optim_target_modules lora_target_parameters peft_trainable_token_indices "
        "peft_layer_replication peft_ensure_weight_tying peft_layers_to_transform peft_layers_pattern llama4_* "
        "jagged_*",
        "this kind of tuning",
        "write a regular expression under lora_target_modules, such as .*layers\\.(30|31)\\..*_proj",
        "false",
    ),
    **refused("gptq qat quantization fp8* nvfp4*", "this quantization", "use load_in_4bit or load_in_8bit", "false"),
    **refused("lora_fan_in_fan_out", "adapters on GPT-2's layers", "delete it", "false"),
    **refused(
        "optim_args lr_scheduler_kwargs cosine_min_lr_ratio cosine_constant_lr_ratio lr_quadratic_warmup lr_groups "
        "lr_div_factor embedding_lr embedding_lr_scale adam_epsilon2 adam_beta3",
        "this setting of optimizer or schedule",
        "delete it, and look at the loss",
        "false",
    ),
    **refused("shuffle_merged_datasets", "rows in the order of the file", "delete it", "true"),
    **refused("curriculum_sampling use_pose pose_*", "another order or position of tokens", "delete it", "false"),
    **refused("s2_attention", "shifted attention", "delete it", "false"),
    **refused(
        "neftune_noise_alpha noisy_embedding_alpha label_smoothing_factor", "this regularisation", "delete it", "0"
    ),
    **refused("min_sample_len", "dropping short rows", "take them out of the data", "0 1 2"),
    **refused("dataset_shard_num", "a part of the data", "add split: train[:25%] to the data sets", "1"),
    **refused("dataset_shard_idx", "a part of the data", "add split: train[:25%] to the data sets", "0"),
    **refused("default_system_message", "a system message that the rows do not have", "write it into the rows"),
    **refused(
        "resume_from_checkpoint", "a checkpoint of axolotl's", "name its adapter as lora_model_dir", "false true"
    ),
    **refused("greater_is_better", "choosing the highest value", "delete it: the lowest eval_loss wins", "false"),
    **refused("merge_method", "this way to merge", "delete it", "memory_efficient legacy"),
}
