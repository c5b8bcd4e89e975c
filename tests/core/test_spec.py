"""What a job file may say, and what is answered when it cannot be done as written."""

import json

import pytest

from finetuned.core.problems import InvalidSpec, Problem
from finetuned.core.spec import Dataset, JobSpec, ParsedSpec, parse_spec

MINIMAL = "base_model: /srv/models/llama\ndatasets: [{path: /srv/data/rows.jsonl}]\n"


def parse(fields: str = "") -> ParsedSpec:
    """The minimal job with more fields from its third line on."""
    return parse_spec(MINIMAL + fields, "job.yaml")


def problems_of(text: str) -> tuple[Problem, ...]:
    with pytest.raises(InvalidSpec) as refused:
        parse_spec(text, "job.yaml")
    return refused.value.problems


def only_problem(fields: str) -> Problem:
    problems = problems_of(MINIMAL + fields)
    assert len(problems) == 1, problems
    return problems[0]


def test_two_lines_are_a_whole_job():
    parsed = parse()
    assert parsed.spec == JobSpec(base_model="/srv/models/llama", datasets=(Dataset(path="/srv/data/rows.jsonl"),))
    assert parsed.notices == ()


def test_json_is_read_like_yaml_tabs_and_escaped_emoji_included():
    text = json.dumps(
        {"base_model": "a/b", "datasets": [{"path": "/d\U0001f600.jsonl"}], "lora_r": 8, "bf16": True}, indent="\t"
    )
    spec = parse_spec(text, "job.json").spec
    assert (spec.base_model, spec.datasets[0].path, spec.lora_r, spec.bf16) == ("a/b", "/d\U0001f600.jsonl", 8, True)


@pytest.mark.parametrize("word", ["no", "on", "off", "yes", "1e5", "0123", "2026-01-02", "1_000", "true", "0x1f"])
def test_words_that_yaml_likes_to_convert_stay_text_in_text_fields(word):
    spec = parse(f"suffix: {word}\nmetadata: {{note: {word}}}").spec
    assert (spec.suffix, spec.metadata) == (word, {"note": word})


def test_no_is_a_choice_and_not_a_boolean():
    assert parse("eval_strategy: no").spec.eval_strategy == "no"


@pytest.mark.parametrize(
    ("written", "meant"), [("1e-4", 1e-4), ("5e-5", 5e-5), ('"2e-4"', 2e-4), (".001", 1e-3), ("3.E-4", 3e-4)]
)
def test_numbers_are_read_however_they_are_written(written, meant):
    assert parse(f"learning_rate: {written}").spec.learning_rate == meant


@pytest.mark.parametrize(("written", "meant"), [("1_000", 1000), ("1e3", 1000), ("12.0", 12), ('"7"', 7)])
def test_whole_numbers_are_read_however_they_are_written(written, meant):
    assert parse(f"max_steps: {written}").spec.max_steps == meant


@pytest.mark.parametrize(
    "written", ["1,000", "0x10", "ten", ".inf", "nan", "1e999", "1.5", "0", "-3", "9" * 5000, "[3]"]
)
def test_what_is_no_count_is_refused_with_what_was_found_and_expected(written):
    problem = only_problem(f"save_steps: {written}")
    assert problem.place == "line 3   save_steps"
    assert problem.what.endswith("; expected a whole number, at least 1")


@pytest.mark.parametrize(
    ("written", "hint"),
    [("yes", "true"), ("on", "true"), ('"true"', "true"), ("1", "true"), ("off", "false"), ("No", "false")],
)
def test_only_true_and_false_are_booleans_and_the_refusal_says_what_to_write(written, hint):
    problem = only_problem(f"bf16: {written}")
    assert "expected true or false" in problem.what
    assert problem.hint == f"write {hint}, without quotes"


@pytest.mark.parametrize("written", ["auto", '"auto"', "", "~", "null"])
def test_auto_and_nothing_mean_the_default(written):
    assert parse(f"learning_rate: {written}\nlora_r: {written}\nmetadata: {written}").spec == parse().spec


@pytest.mark.parametrize(
    ("field", "range_in_words"),
    [
        ("learning_rate: 1.5", "a number, above 0, below 1"),
        ("lora_dropout: 1", "a number, at least 0, below 1"),
        ("max_seq_length: 7", "a whole number, at least 8"),
        ("priority: 101", "a whole number, at least -100, at most 100"),
        ("seed: 4294967296", "a whole number, at least 0, below 4294967296"),
        ("val_set_size: -1", "a number, at least 0"),
        ("val_set_size: 1.5", "a part below 1, or a whole number of rows"),
    ],
)
def test_bounds_are_named_with_the_found_value(field, range_in_words):
    assert only_problem(field).what == f"is {field.split()[1]}; expected {range_in_words}"


def test_every_problem_is_told_at_once_in_the_order_of_the_file():
    text = (
        "base_model: /srv/models/llama\n"
        "finetuning_type: lorra\n"
        "datasets:\n"
        "  - path: /srv/data/rows.jsonl\n"
        "  - pth: /srv/data/more.jsonl\n"
        "    format: kto\n"
        "num_train_epoch: 3\n"
        "learning_rate: fast\n"
    )
    with pytest.raises(InvalidSpec) as refused:
        parse_spec(text, "support-tone.yaml")
    assert str(refused.value) == (
        "support-tone.yaml: 5 problems\n"
        '  line 2   finetuning_type     is "lorra"; expected lora, qlora, full or freeze\n'
        "  line 5   datasets[1].pth     is not a known field; did you mean path?\n"
        '  line 6   datasets[1].format  is "kto": known, but this version cannot do it yet (rows of this kind)\n'
        '                               hint: write rows such as {"messages": [{"role": "user", "content": "…"}, '
        '{"role": "assistant", "content": "…"}]}\n'
        "  line 7   num_train_epoch     is not a known field; did you mean num_train_epochs?\n"
        '  line 8   learning_rate       is "fast"; expected a number, above 0, below 1'
    )


@pytest.mark.parametrize(
    ("typo", "meant"),
    [("leraning_rate", "learning_rate"), ("lora-r", "lora_r"), ("lora_rnak", "lora_r"), ("dead_line", "deadline")],
)
def test_an_unknown_field_is_told_the_nearest_known_one(typo, meant):
    assert only_problem(f"{typo}: 1").what == f"is not a known field; did you mean {meant}?"


def test_a_field_like_nothing_known_is_told_where_the_list_is():
    assert "finetunectl schema" in only_problem("xyzzy: 1").hint


def test_a_mistyped_required_field_is_one_problem_and_not_two():
    problems = problems_of("base_modle: /m\ndatasets: [{path: /d.jsonl}]")
    assert [problem.place for problem in problems] == ["line 1   base_modle"]


def test_missing_fields_are_named_also_inside_a_data_set():
    problems = problems_of("datasets:\n  - {format: chat}\n")
    assert [problem.place for problem in problems] == ["line 2   datasets[0].path", "base_model"]
    assert all(problem.what.startswith("is missing") for problem in problems)


def test_a_required_field_without_a_value_is_refused():
    assert problems_of("base_model:\ndatasets: []")[0].what == "has no value; expected text"


def test_a_field_given_twice_is_refused_with_both_lines():
    assert only_problem("seed: 1\nseed: 1") == Problem(
        place="line 4   seed", what="is given twice, first in line 3", hint="keep one of them"
    )


@pytest.mark.parametrize(
    ("written", "field", "value"),
    [
        ("stage: pt", "method", "pretrain"),
        ("tuner_type: full", "finetuning_type", "full"),
        ("training_type: Lora", "finetuning_type", "lora"),
        ("use_peft: false", "finetuning_type", "full"),
        ("use_qlora: true", "finetuning_type", "qlora"),
        ("adapter: lora\nload_in_8bit: true", "finetuning_type", "qlora"),
        ("peft_use_dora: true", "use_dora", True),
        ("additional_target: embed_tokens,lm_head", "modules_to_save", ("embed_tokens", "lm_head")),
        ("optimizer: adamw_torch_fused", "optim", "adamw_torch"),
        ("optim: adamw_bnb_8bit", "optim", "adamw_8bit"),
        ("lr_scheduler: wsd", "lr_scheduler_type", "warmup_stable_decay"),
        ("lora_model_dir: /a", "init_adapter", "/a"),
        ("tokens: [<a>, <b>]", "added_tokens", ("<a>", "<b>")),
        ("lora_rank: 8", "lora_r", 8),
        ("r: 8", "lora_r", 8),
        ("lora_target: all", "lora_target_modules", "all-linear"),
        ("target_modules: [q_proj, v_proj]", "lora_target_modules", ("q_proj", "v_proj")),
        ("lora_target: q_proj,v_proj", "lora_target_modules", ("q_proj", "v_proj")),
        ("lr_scheduler: constant_with_warmup", "lr_scheduler_type", "constant"),
        ("epochs: 2", "num_train_epochs", 2.0),
        ("cutoff_len: 512", "max_seq_length", 512),
        ("truncation_strategy: delete", "excess_length_strategy", "drop"),
        ("effective_batch_size: 8", "global_batch_size", 8),
        ("split_dataset_ratio: 0.1", "val_set_size", 0.1),
        ("evaluation_strategy: no", "eval_strategy", "no"),
        ("activation_checkpointing: true", "gradient_checkpointing", True),
        ("torch_dtype: bfloat16", "bf16", True),
        ("assistant_only_loss: true", "train_on_inputs", False),
        ("random_seed: 7", "seed", 7),
        ("warmup_steps: 0.1", "warmup_ratio", 0.1),
        ("max_steps: -1", "max_steps", None),
        ("validation_file: /v.jsonl", "eval_datasets", (Dataset(path="/v.jsonl"),)),
    ],
)
def test_words_of_other_tools_are_read_with_a_notice(written, field, value):
    parsed = parse(written)
    assert getattr(parsed.spec, field) == value
    assert parsed.notices
    assert all(notice.startswith(("line 3: ", "line 4: ")) for notice in parsed.notices)


@pytest.mark.parametrize("data", ["/d.jsonl", "{path: /d.jsonl}", "[/d.jsonl]", "[{file: /d.jsonl}]"])
def test_a_data_set_may_be_a_path_or_a_mapping_alone(data):
    assert parse_spec(f"model: /m\ndataset: {data}", "job").spec.datasets == (Dataset(path="/d.jsonl"),)


def test_two_names_of_one_field_with_one_value_are_noticed():
    parsed = parse("epochs: 2\nnum_train_epochs: 2.0")
    assert parsed.spec.num_train_epochs == 2
    assert "line 4: num_train_epochs says the same as epochs in line 3" in parsed.notices


@pytest.mark.parametrize("fields", ["epochs: 2\nnum_train_epochs: auto", "num_train_epochs:\nepochs: 2"])
def test_auto_under_one_name_gives_way_to_a_value_under_another(fields):
    assert parse(fields).spec.num_train_epochs == 2


@pytest.mark.parametrize("second", ["num_train_epochs: 3", "n_epochs: 3"])
def test_two_names_of_one_field_with_different_values_are_refused(second):
    problem = only_problem(f"epochs: 2\n{second}")
    assert problem.place == f"line 4   {second.split(':')[0]}"
    assert "epochs in line 3" in problem.what


@pytest.mark.parametrize(
    "written",
    [
        *("method: dpo", "rl: ORPO", "rlhf_type: kto", "stage: rm"),
        *("method: grpo", "stage: ppo", "method: simpo", "quantization_bit: 4", "trust_remote_code: true"),
        *("report_to: [wandb]", "wandb_project: mine", "deadline: 07:00", "depends_on: other", "not_before: 22:00"),
        "notify: me@example.org",
        *("optim: lion", "init_lora_weights: pissa", "finetuning_type: loha", "merge_lora: true", "freeze_layers: 2"),
        "deepspeed: ds.json",
        *("torch_dtype: float16", "fp16: true", "lr_scheduler_type: polynomial", "save_strategy: epoch"),
        *("evals_per_epoch: 4", "push_to_hub: true", "resume_from_checkpoint: /c", "full_determinism: true"),
        *("device: cuda", "base_model: job:other"),
        *("eval_datasets: [{path: s3://bucket/rows.jsonl}]", "eval_datasets: [https://example.org/rows.jsonl]"),
        *("eval_datasets: [tatsu-lab/alpaca]", "eval_datasets: [job:other]"),
    ],
)
def test_what_is_known_but_not_there_yet_is_said_with_what_to_write_instead(written):
    text = MINIMAL if not written.startswith("base_model") else MINIMAL.split("\n", 1)[1]
    (problem,) = problems_of(text + written)
    assert "known, but this version cannot do it yet (" in problem.what
    assert problem.hint


@pytest.mark.parametrize(
    "written",
    [
        *("packing: true", "sample_packing: false", "trust_remote_code: false", "report_to: []"),
        *("report_to: none", "wandb_project:", "deepspeed: null"),
        *("output_dir: out", "flash_attn: fa2", "greater_is_better: false"),
        "per_device_eval_batch_size: 4",
    ],
)
def test_what_asks_for_nothing_more_is_read_with_a_notice(written):
    parsed = parse(written)
    assert parsed.spec == parse().spec
    assert len(parsed.notices) == 1


def test_an_adapter_without_a_value_is_refused_because_tools_disagree_on_it():
    assert only_problem("adapter:").hint == "write finetuning_type: lora, qlora, full or freeze"


@pytest.mark.parametrize("field", ["lora_target_modules", "modules_to_save", "added_tokens", "roles_to_train"])
def test_an_empty_name_in_a_list_is_refused(field):
    assert only_problem(f'{field}: [""]').place == f"line 3   {field}"


@pytest.mark.parametrize("field", ["lora_r: 1e20", "lora_alpha: 1e20"])
def test_numbers_that_no_adapter_has_are_refused(field):
    assert "at most" in only_problem(field).what
