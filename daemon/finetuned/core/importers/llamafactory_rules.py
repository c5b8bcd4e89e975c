"""LLaMA-Factory's keys that need no translating: not needed here, or not to be had."""

from finetuned.core.importers.rules import NO_REMOTE_CODE, Rules, refused, unneeded

LLAMAFACTORY_RULES: Rules = {
    **unneeded(
        "group_by_length",
        "is for speed there, and lays rows of like length in one batch; here nothing is padded, and batches are mixed",
    ),
    **unneeded(
        "preprocessing_* dataloader_* per_device_eval_batch_size auto_find_batch_size flash_attn enable_liger_kernel "
        "use_unsloth use_unsloth_gc use_reentrant_gc low_cpu_mem_usage use_fast_tokenizer torch_compile* tf32 "
        "gradient_checkpointing_kwargs ignore_pad_token_for_loss quantization_device_map use_kv_cache "
        "use_v1_kernels infer_* offload_folder upcast_layernorm upcast_lmhead_output packing_* eval_accumulation_steps "
        "optim_target_modules torch_empty_cache_steps remove_unused_columns label_names",
        "is not needed: how a step is computed is decided from model and machine",
    ),
    **unneeded("ddp_* local_rank world_size", "has no effect: a run takes one GPU"),
    **unneeded(
        "output_dir overwrite_output_dir overwrite_cache plot_loss logging_dir logging_strategy logging_first_step "
        "disable_tqdm log_level include_* save_safetensors cache_dir print_param_status media_dir",
        "is not needed: the job's own folder holds checkpoints, curves and artifacts",
    ),
    **unneeded(
        "report_to run_name use_swanlab swanlab_* trackio_* wandb_* mlflow_*",
        "is not needed: metrics.jsonl, loss.png and report.html are always written",
    ),
    **unneeded(
        "push_to_hub push_to_hub_* hub_* hf_hub_token ms_hub_token om_hub_token",
        "is not done here: the result lies in the job's artifacts (finetunectl get)",
    ),
    **unneeded(
        "predict_with_generate do_predict do_eval compute_accuracy max_new_tokens top_p top_k temperature num_beams "
        "do_sample repetition_penalty length_penalty eval_num_beams eval_on_each_dataset generation_*",
        "is not needed: rows are evaluated by their loss, and samples.md shows answers",
    ),
    **unneeded("resize_vocab loraplus_lr_embedding buffer_size", "is not needed: it follows from the rest"),
    **unneeded("image_* video_* audio_* crop_to_patches use_audio_in_video", "concerns pictures and sound alone"),
    **refused("do_train", "a file that does not train", "import the file of the training", "true"),
    **refused("export_*", "a file that merges and exports", "write export: {merge: true} into the job file"),
    **unneeded("trust_remote_code", NO_REMOTE_CODE),
    **refused(
        "deepspeed fsdp fsdp_* use_mca use_ray ray_* use_megatron tensor_parallel_size sequence_parallel_size nproc_* "
        "cp_size cp_mode use_hyper_parallel use_ktransformers kt_*",
        "one run on several GPUs",
        "delete it: a run takes one GPU; multiply gradient_accumulation_steps by the number of GPUs for the same batch",
        "false 1 none",
    ),
    **refused("mask_history", "learning the last answer only", 'write "weight": 0 into the earlier answers', "false"),
    **refused("streaming", "streamed data", "delete it: files are read once and never held in memory whole", "false"),
    **refused("interleave_probs", "mixing by probability", "delete it, and write weight into the job file's data sets"),
    **refused(
        "mix_strategy", "mixing by probability", "delete it, and write weight into the job file's data sets", "concat"
    ),
    **refused("tokenized_path", "rows tokenized by LLaMA-Factory", "name the rows themselves under dataset"),
    **refused("tool_format", "another way to show tools", "delete it: the chat template shows them", "default"),
    **refused("default_system", "a system message that the rows do not have", "write it into the rows"),
    **refused(
        "enable_thinking preserve_thinking", "thinking switched by the tool", "write the rows as they should be", "true"
    ),
    **refused("disable_shuffling", "rows in the order of the file", "delete it", "false"),
    **refused("split_special_tokens", "special tokens read as text", "delete it", "false"),
    **refused("new_special_tokens_config", "new tokens that begin as a description", "use add_special_tokens"),
    **refused("init_special_tokens", "this start of new tokens", "delete it", "noise_init"),
    **refused(
        "use_galore galore_* use_apollo apollo_* use_badam badam_* use_adam_mini use_muon use_llama_pro "
        "oft_* module_dropout",
        "this tuning or optimizer",
        "use lora or full with AdamW",
        "false",
    ),
    **refused(
        "use_dft_loss use_asft_loss use_eaft_loss neftune_noise_alpha label_smoothing_factor moe_aux_loss_coef "
        "ld_alpha",
        "this loss",
        "delete it",
        "false 0 0.0",
    ),
    **refused(
        "pref_* dpo_* kto_* simpo_gamma ppo_* ref_model ref_model_* reward_model reward_model_*",
        "learning from preferences or rewards",
        "delete it, with stage: sft",
    ),
    **refused(
        "rope_scaling shift_attn mixture_of_depths train_from_scratch",
        "another model than base_model's config.json says",
        "delete it",
        "false none",
    ),
    **refused("pissa_convert", "an adapter rewritten at the end", "delete it", "false"),
    **refused("freeze_vision_tower freeze_multi_modal_projector", "tuning of pictures' towers", "delete it", "true"),
    **refused("freeze_language_model", "tuning of pictures' towers", "delete it", "false"),
    **refused("optim_args lr_scheduler_kwargs", "this setting of optimizer or schedule", "delete it"),
    **refused("data_seed", "a second seed", "delete it: seed also decides the order of rows"),
    **refused(
        "resume_from_checkpoint", "a checkpoint of LLaMA-Factory's", "name its adapter as adapter_name_or_path", "false"
    ),
    **refused("greater_is_better", "choosing the highest value", "delete it: the lowest eval_loss wins", "false"),
}
