"""What the fields of a job file must be together."""

import pytest

from finetuned.core.problems import InvalidSpec, Problem
from finetuned.core.spec import ParsedSpec, parse_spec

DATA = "datasets: [{path: /srv/data/rows.jsonl}]\n"


def parse(fields: str, base_model: str = "/srv/models/llama") -> ParsedSpec:
    """A sound job with more fields from its third line on."""
    return parse_spec(f"base_model: {base_model}\n{DATA}{fields}", "job.yaml")


def problems_of(fields: str, base_model: str = "/srv/models/llama") -> tuple[Problem, ...]:
    with pytest.raises(InvalidSpec) as refused:
        parse(fields, base_model)
    return refused.value.problems


@pytest.mark.parametrize(
    ("fields", "field", "other"),
    [
        ("num_train_epochs: 3\nmax_steps: 500", "max_steps", "num_train_epochs in line 3"),
        ("max_steps: 500\nepochs: 3", "epochs", "max_steps in line 3"),
        ("warmup_ratio: 0.1\nwarmup_steps: 10", "warmup_steps", "warmup_ratio in line 3"),
        ("max_steps: 5\nwarmup_steps: 10", "warmup_steps", "5 steps (line 3)"),
        ("eval_strategy: no\neval_steps: 10", "eval_steps", "eval_strategy in line 3 is no"),
        ("val_set_size: 0\nearly_stopping_patience: 2", "early_stopping_patience", "val_set_size in line 3 is 0"),
        ("val_set_size: 0\nload_best_model_at_end: true", "load_best_model_at_end", "val_set_size in line 3 is 0"),
        ("val_set_size: 0\nmetric_for_best_model: eval_loss", "metric_for_best_model", "val_set_size in line 3 is 0"),
        ("eval_datasets: [/e.jsonl]\nval_set_size: 0.1", "val_set_size", "eval_datasets in line 3"),
        ("method: pretrain\neval_datasets: [{path: /e, format: chat}]", "eval_datasets", "method in line 3"),
    ],
)
def test_contradictions_are_refused_at_the_later_line_naming_the_earlier(fields, field, other):
    (problem,) = problems_of(fields)
    assert problem.place == f"line 4   {field}"
    assert other in problem.what


@pytest.mark.parametrize(
    "fields",
    [
        "eval_datasets: [/e.jsonl]\nval_set_size: 0\nearly_stopping_patience: 2",
        "val_set_size: 0\nload_best_model_at_end: false",
        "early_stopping_patience: 2",
        "val_set_size: 500",
        "max_steps: -1\nnum_train_epochs: 3",
        "max_steps: auto\nnum_train_epochs: 3",
    ],
)
def test_what_only_looks_like_a_contradiction_is_read(fields):
    parse(fields)


def test_the_devices_batch_and_accumulation_define_the_global_batch_with_a_notice():
    parsed = parse("micro_batch_size: 4\ngradient_accumulation_steps: 8")
    assert parsed.spec.global_batch_size == 32
    assert any("gives global_batch_size 32 (4 × 8 on one device)" in notice for notice in parsed.notices)


def test_the_devices_batch_alone_is_the_global_batch():
    assert parse("per_device_train_batch_size: 4").spec.global_batch_size == 4


def test_accumulation_alone_says_nothing_about_the_batch():
    (problem,) = problems_of("gradient_accumulation_steps: 8")
    assert "global_batch_size" in problem.hint


def test_a_global_batch_that_is_not_the_product_is_refused_with_the_numbers():
    (problem,) = problems_of(
        "per_device_train_batch_size: 4\ngradient_accumulation_steps: 8\nglobal_batch_size: 16",
    )
    assert problem.what == ("is 16, but per_device_train_batch_size × gradient_accumulation_steps is 4 × 8 = 32")


def test_a_global_batch_that_is_the_product_is_read():
    parsed = parse("per_device_train_batch_size: 4\ngradient_accumulation_steps: 8\nglobal_batch_size: 32")
    assert parsed.spec.global_batch_size == 32


@pytest.mark.parametrize(
    "fields",
    [
        "finetuning_type: full\nlora_r: 8",
        "method: pretrain\ntrain_on_inputs: true",
        "lora_r: 8\nearly_stopping_threshold: 0.1",
        "global_batch_size: 8\nper_device_train_batch_size: 4",
    ],
)
def test_a_setting_without_effect_is_noticed(fields):
    (notice,) = parse(fields).notices
    assert notice.startswith("line 4: ")
    assert "has no effect" in notice


@pytest.mark.parametrize(
    "base_model", ["/a/b", "./a/b", "file:/a/b", "org/name-1.5_b", "hub:org/name@abc123", "org/name@v1", "hub:gpt2"]
)
def test_folders_and_hub_names_are_base_models(base_model):
    assert parse("", base_model).spec.base_model == base_model


@pytest.mark.parametrize(
    ("base_model", "answer"),
    [
        ("gpt2", "for a folder write ./gpt2"),
        ("a/b/c", "for a folder write ./a/b/c"),
        ("'C:\\models'", "for a folder write /path/to/model"),
        ("~/models/llama", "write the whole path, beginning with /"),
        ("''", "for a folder write /path/to/model"),
    ],
)
def test_what_is_neither_folder_nor_hub_name_is_told_what_to_write(base_model, answer):
    (problem,) = problems_of("", base_model)
    assert problem.place == "line 1   base_model"
    assert problem.hint == answer


@pytest.mark.parametrize("base_model", ["/a/b", "./a", "file:/a"])
def test_a_folder_has_no_revision(base_model):
    (problem,) = problems_of("revision: main", base_model)
    assert problem.place == "line 3   revision"


def test_two_revisions_of_a_hub_model_must_agree():
    assert len(problems_of("revision: v2", "hub:org/name@v1")) == 1
    assert parse("revision: v1", "hub:org/name@v1").spec.revision == "v1"


@pytest.mark.parametrize("path", ["~/rows.jsonl", "file:/d.jsonl", "'  '"])
def test_a_data_path_that_cannot_be_one_is_refused_at_its_own_line(path):
    (problem,) = problems_of(f"eval_datasets:\n  - format: chat\n    path: {path}")
    assert problem.place == "line 5   eval_datasets[0].path"


@pytest.mark.parametrize("path", ["data/rows.jsonl", "./data/rows", "rows.jsonl", "a/b/c", "/d/Alpaca"])
def test_paths_inside_a_dropped_folder_are_left_to_those_who_see_it(path):
    assert parse(f"eval_datasets: [{path}]").spec.eval_datasets[0].path == path


@pytest.mark.parametrize("template", ["chatml", "llama3", "/t/x.txt", "./x", "mine.jinja"])
def test_known_templates_and_template_files_are_read(template):
    assert parse(f"chat_template: {template}").spec.chat_template == template


@pytest.mark.parametrize(
    "fields", ["chat_template: qwen", "lora_target_modules: '(('", "lora_target_modules: '" + "(" * 9000 + "'"]
)
def test_a_template_or_pattern_that_cannot_be_one_is_refused(fields):
    (problem,) = problems_of(fields)
    assert "; expected " in problem.what


@pytest.mark.parametrize(
    ("fields", "field", "says"),
    [
        ("load_in_4bit: true\nload_in_8bit: true", "load_in_8bit", "so is load_in_4bit in line 3"),
        ("finetuning_type: full\nload_in_4bit: true", "load_in_4bit", "finetuning_type is full"),
        ("finetuning_type: freeze\nunfrozen_parameters: ['(']", "unfrozen_parameters", "no regular expression"),
        ("finetuning_type: full\ninit_adapter: /a", "init_adapter", "has no adapter"),
        ("finetuning_type: qlora\nload_in_4bit: false", "load_in_4bit", "holds the base in 4 or 8 bits"),
        ("load_in_8bit: true\nuse_dora: true", "use_dora", "in 8 bits"),
        ("lora_r: 7\ninit_lora_weights: orthogonal", "init_lora_weights", "even lora_r"),
        ("added_tokens: [<a>]\nadded_special_tokens: [<a>]", "added_special_tokens", "which added_tokens has, too"),
        ("lora_r: 8\nroles_to_train: [asistant]", "roles_to_train", "asistant"),
        ("lora_r: 8\nadded_tokens: [' ']", "added_tokens", "no token"),
        ("warmup_ratio: 0.5\nlr_scheduler_type: wsd\nlr_decay_ratio: 0.6", "lr_decay_ratio", "more than the run"),
        ("method: pretrain\neval_datasets: [{path: /e, format: alpaca}]", "eval_datasets", "alpaca"),
    ],
)
def test_tunings_that_exclude_one_another_are_refused(fields, field, says):
    (problem,) = problems_of(fields)
    assert problem.place.endswith(f"   {field}")
    assert says in problem.what


def test_freeze_without_patterns_is_refused_with_an_example():
    (problem,) = problems_of("finetuning_type: freeze")
    assert problem.place == "line 3   unfrozen_parameters"
    assert "unfrozen_parameters: [" in problem.hint


@pytest.mark.parametrize(
    "fields",
    [
        "use_dora: true\nfinetuning_type: full",
        "unfrozen_parameters: [norm]",
        "bnb_4bit_quant_type: fp4",
        "load_in_8bit: true\nbnb_4bit_use_double_quant: false",
        "export: {merge: true}\nfinetuning_type: full",
        "lr_decay_ratio: 0.2",
        "roles_to_train: [user]\ntrain_on_inputs: true",
        "init_adapter: /a\ninit_lora_weights: gaussian",
    ],
)
def test_what_has_no_effect_is_said(fields):
    assert any("has no effect" in notice for notice in parse(fields).notices)


def test_a_base_in_four_bits_makes_an_adapter_qlora():
    parsed = parse("finetuning_type: lora\nload_in_4bit: true")
    assert parsed.spec.finetuning_type == "qlora"
    assert any("read as finetuning_type: qlora" in notice for notice in parsed.notices)


@pytest.mark.parametrize(
    ("dataset", "place", "says"),
    [
        ("columns: {mesages: dialogue}", "columns.mesages", "is no column"),
        ("format: alpaca, columns: {messages: m}", "columns.messages", "of format alpaca"),
        ("columns: {text: ''}", "columns.text", "is empty"),
        ("split: 'train[1:2:3]'", "split", "a split and a part of it"),
    ],
)
def test_columns_and_splits_are_checked_before_any_file_is_read(dataset, place, says):
    (problem,) = problems_of(f"eval_datasets: [{{path: /e, {dataset}}}]")
    assert problem.place == f"line 3   eval_datasets[0].{place}"
    assert says in problem.what


@pytest.mark.parametrize("split", ["train", "test", "'train[:1000]'", "'validation[10%:]'", "'[:90%]'"])
def test_splits_are_written_as_in_datasets(split):
    assert parse(f"eval_datasets: [{{path: /e, split: {split}}}]").spec.eval_datasets[0].split


def test_export_is_a_record_of_its_own():
    export = parse("export: {merge: true, gguf: q4_k_m}").spec.export
    assert (export.merge, export.gguf) == (True, "q4_k_m")
    (problem,) = problems_of("export: {gguf: q9}")
    assert problem.place == "line 3   export.gguf"
    (problem,) = problems_of("export: yes")
    assert "settings such as {merge: …}" in problem.what


def test_a_template_may_stand_in_the_job_file():
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    assert parse(f'chat_template: "{template}"').spec.chat_template == template
