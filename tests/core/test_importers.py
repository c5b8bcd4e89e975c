"""Files of other tools → our job file: the run means the same, and no key of theirs goes unmentioned."""

import json
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import jinja2
import pytest

from finetuned.core.importers.kinds import UnknownKind, translate
from finetuned.core.importers.templates import ALPACA
from finetuned.core.importers.work import DatasetInfo, Kind, Supplied, Translation
from finetuned.core.jobfile import text
from finetuned.core.jobfile.text import UnreadableText, read_tree
from finetuned.core.spec import JobSpec, parse_spec

AXOLOTL_LORA = """\
base_model: meta-llama/Meta-Llama-3-8B-Instruct
model_type: LlamaForCausalLM
load_in_8bit: true
load_in_4bit: false
strict: false
chat_template: llama3
datasets:
  - path: data/chats.jsonl
    type: chat_template
    field_messages: dialogue
    message_property_mappings: {role: role, content: content}
    roles: {user: [user, human], assistant: [assistant]}
    roles_to_train: [assistant]
    train_on_eos: turn
dataset_prepared_path:
val_set_size: 0.05
output_dir: ./outputs/out
sequence_len: 4096
sample_packing: false
pad_to_sequence_len: true
adapter: lora
lora_model_dir:
lora_r: 32
lora_alpha: 16
lora_dropout: 0.05
lora_target_linear: true
wandb_project:
gradient_accumulation_steps: 4
micro_batch_size: 2
num_epochs: 4
optimizer: adamw_bnb_8bit
lr_scheduler: cosine
learning_rate: 0.0002
train_on_inputs: no
bf16: auto
fp16:
tf32: false
gradient_checkpointing: true
flash_attention: true
warmup_steps: 10
evals_per_epoch: 4
saves_per_epoch: 1
deepspeed:
weight_decay: 0.0
fsdp_config:
special_tokens:
  pad_token: <|end_of_text|>
  eos_token: <|eot_id|>
"""
AXOLOTL_SMALLEST = """\
base_model: /models/one
datasets: [{path: /data/rows.jsonl, type: chat_template}]
learning_rate: 1e-5
micro_batch_size: 1
gradient_accumulation_steps: 8
"""
AXOLOTL_TEXT = """\
base_model: ./models/one
datasets:
  - {path: json, data_files: [books/a.jsonl, books/b.jsonl], type: completion, field: body}
sequence_len: 2048
micro_batch_size: 4
gradient_accumulation_steps: 1
max_steps: 500
num_epochs: 1
learning_rate: "2e-5"
lr_scheduler: constant
unfrozen_parameters: [^model.embed_tokens.weight$, "model.layers.2[0-9]+.mlp"]
test_datasets: [{path: books/held-out.jsonl, type: completion, field: body, split: train}]
eval_steps: 50
save_steps: 50
early_stopping_patience: 3
seed: 7
"""
LLAMAFACTORY_LORA = """\
### model
model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
quantization_bit: 4
quantization_method: bnb
double_quantization: false
trust_remote_code: true
### method
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: q_proj,v_proj
additional_target: embed_tokens,lm_head
### dataset
dataset: identity,tickets
template: llama3
cutoff_len: 2048
max_samples: 1000
overwrite_cache: true
preprocessing_num_workers: 16
neat_packing: false
### train
output_dir: saves/llama3-8b/lora/sft
logging_steps: 10
save_steps: 500
plot_loss: true
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
ddp_timeout: 180000000
### eval
val_size: 0.1
per_device_eval_batch_size: 1
eval_strategy: steps
eval_steps: 500
"""
LLAMAFACTORY_SMALLEST = "model_name_or_path: Qwen/Qwen2.5-7B\nstage: sft\ndataset: identity\ntemplate: qwen\n"
LLAMAFACTORY_TEXT = """\
model_name_or_path: /models/one
stage: pt
do_train: true
finetuning_type: full
dataset: books
eval_dataset: identity
cutoff_len: 4096
learning_rate: 1e-5
packing: true
"""
INFO = DatasetInfo(
    json.dumps(
        {
            "identity": {"file_name": "identity.json"},
            "books": {"file_name": "books.json", "columns": {"prompt": "body"}},
            "tickets": {
                "file_name": "tickets.json",
                "formatting": "sharegpt",
                "columns": {"messages": "turns", "tools": "functions"},
                "tags": {
                    "role_tag": "role",
                    "content_tag": "content",
                    "user_tag": "user",
                    "assistant_tag": "assistant",
                    "system_tag": "system",
                },
            },
            "old": {"file_name": "old.json", "formatting": "sharegpt", "columns": {"system": "persona"}},
            "pairs": {"file_name": "pairs.json", "ranking": True, "columns": {"chosen": "good", "rejected": "bad"}},
            "far": {"hf_hub_url": "org/far"},
            "odd": {"file_name": "odd.json", "formatting": "sharegpt", "tags": {"user_tag": "client"}, "folder": "x"},
        },
        indent=1,
    ),
    "dataset_info.json",
    "data",
)
OPENAI_REQUEST = {
    "model": "gpt-4o-mini-2024-07-18",
    "training_file": "file-abc123",
    "validation_file": "file-val456",
    "method": {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 4, "batch_size": "auto"}}},
    "suffix": "support",
    "seed": 7,
    "metadata": {"team": "support"},
    "integrations": [{"type": "wandb", "wandb": {"project": "x"}}],
}
OPENAI_JOB = {
    "object": "fine_tuning.job",
    "id": "ftjob-1",
    "model": "gpt-4o-mini-2024-07-18",
    "created_at": 1721764800,
    "fine_tuned_model": "ft:gpt-4o-mini-2024-07-18:acme::1",
    "organization_id": "org-123",
    "result_files": ["file-result"],
    "status": "succeeded",
    "trained_tokens": 5768,
    "training_file": "file-abc123",
    "validation_file": None,
    "hyperparameters": {"n_epochs": "auto", "batch_size": 8, "learning_rate_multiplier": 0.5},
    "error": {},
    "seed": 7,
}
TOGETHER_REQUEST = {
    "model": "meta-llama/Meta-Llama-3.1-8B-Instruct-Reference",
    "training_file": "file-abc123",
    "validation_file": "file-val456",
    "n_epochs": 2,
    "n_evals": 5,
    "n_checkpoints": 1,
    "batch_size": "max",
    "learning_rate": 1e-5,
    "lr_scheduler": {
        "lr_scheduler_type": "linear",
        "lr_scheduler_args": {"min_lr_ratio": 0.0},
    },
    "warmup_ratio": 0.05,
    "max_grad_norm": 2.0,
    "weight_decay": 0.01,
    "training_type": {
        "type": "Lora",
        "lora_r": 64,
        "lora_alpha": 128,
        "lora_dropout": 0.0,
        "lora_trainable_modules": "q_proj,v_proj",
    },
    "training_method": {"method": "sft", "train_on_inputs": "auto"},
    "suffix": "mine",
    "wandb_api_key": "secret",
}
UPLOADS = {"file-abc123": "/data/train.jsonl", "file-val456": "/data/eval.jsonl"}

SOURCES: dict[str, tuple[str, Supplied]] = {
    "axolotl lora": (AXOLOTL_LORA, Supplied()),
    "axolotl smallest": (AXOLOTL_SMALLEST, Supplied()),
    "axolotl text": (AXOLOTL_TEXT, Supplied()),
    "llamafactory lora": (LLAMAFACTORY_LORA, Supplied(dataset_info=INFO)),
    "llamafactory smallest": (LLAMAFACTORY_SMALLEST, Supplied(dataset_info=INFO)),
    "llamafactory text": (LLAMAFACTORY_TEXT, Supplied(dataset_info=INFO)),
    "openai request": (json.dumps(OPENAI_REQUEST, indent=1), Supplied("Qwen/Qwen2.5-7B-Instruct", UPLOADS)),
    "openai job": (json.dumps(OPENAI_JOB, indent=1), Supplied("Qwen/Qwen2.5-7B-Instruct", UPLOADS)),
    "together request": (json.dumps(TOGETHER_REQUEST, indent=1), Supplied(files=UPLOADS)),
}


def translated(source: str, supplied: Supplied | None = None, kind: Kind | None = None) -> Translation:
    translation = translate(source, supplied or Supplied(dataset_info=INFO), kind)
    assert translation.problems == ()
    return translation


def spec_of(source: str, supplied: Supplied | None = None, kind: Kind | None = None) -> JobSpec:
    return parse_spec(translated(source, supplied, kind).job_file, "job.yaml").spec


def named(name: str) -> JobSpec:
    return spec_of(*SOURCES[name])


def axolotl(extra: str, base: str = AXOLOTL_SMALLEST) -> Translation:
    return translate(base + extra, Supplied(), "axolotl")


def refusals(translation: Translation) -> dict[str, str]:
    """The last word of each place (its key) → what is said."""
    assert translation.job_file == ""
    return {problem.place.split()[-1]: f"{problem.what} {problem.hint}" for problem in translation.problems}


def all_keys(node: text.Node, path: str = "") -> Iterator[str]:
    match node:
        case text.Mapping(entries=entries):
            for entry in entries:
                yield path + entry.key
                yield from all_keys(entry.value, f"{path}{entry.key}.")
        case text.List(items=items):
            for position, item in enumerate(items):
                yield from all_keys(item, f"{path.removesuffix('.')}[{position}].")


def spoken_for(translation: Translation) -> set[str]:
    places = [*translation.kept, *(note.place for note in (*translation.changed, *translation.ignored))]
    return {place.split()[-1] for place in [*places, *(problem.place for problem in translation.problems)]}


def is_spoken_for(key: str, spoken: set[str]) -> bool:
    """By itself, by what it stands in, or by what stands in it."""
    return any(
        key == other or key.startswith((f"{other}.", f"{other}[")) or other.startswith((f"{key}.", f"{key}["))
        for other in spoken
    )


# What holds for every file.


@pytest.mark.parametrize("name", SOURCES)
def test_the_result_is_a_job_file_in_our_own_words(name: str):
    source, supplied = SOURCES[name]
    parsed = parse_spec(translated(source, supplied).job_file, "job.yaml")
    assert parsed.notices == ()


@pytest.mark.parametrize("name", SOURCES)
def test_no_key_of_the_source_goes_unmentioned(name: str):
    source, supplied = SOURCES[name]
    spoken = spoken_for(translated(source, supplied))
    assert [key for key in all_keys(read_tree(source)) if not is_spoken_for(key, spoken)] == []


@pytest.mark.parametrize("name", SOURCES)
def test_a_key_that_nobody_knows_is_refused_with_its_line(name: str):
    source, supplied = SOURCES[name]
    extra = source.replace("{", '{"leraning_rate": 1,', 1) if source.startswith("{") else f"leraning_rate: 1\n{source}"
    assert [problem.place for problem in translate(extra, supplied).problems] == ["line 1   leraning_rate"]


@pytest.mark.parametrize("name", SOURCES)
def test_whose_file_it_is_is_told_by_its_keys(name: str):
    source, supplied = SOURCES[name]
    assert translate(source, supplied).kind == name.split()[0]


def test_a_file_that_may_be_anyones_is_not_guessed_at():
    with pytest.raises(UnknownKind, match="none of the keys"):
        translate("a: 1\nb: 2\n", Supplied())
    with pytest.raises(UnknownKind, match="a job file for finetuned already"):
        translate("base_model: /m\ndatasets: [{path: /d.jsonl}]\nlearning_rate: 1e-4\n", Supplied())


def test_text_that_is_no_yaml_is_refused_with_its_line():
    with pytest.raises(UnreadableText):
        translate("base_model: [", Supplied())


def test_a_key_given_twice_is_refused():
    assert "seed" in refusals(axolotl("seed: 1\nseed: 2\n"))


def test_every_problem_is_told_at_once():
    problems = refusals(axolotl("rl: dpo\nplugins: [my.own.Plugin]\nfsdp: [full_shard]\noptimizer: lion_8bit\n"))
    assert set(problems) == {"rl", "plugins", "fsdp", "optimizer"}


def test_what_our_own_reader_refuses_is_told_by_the_key_that_it_comes_from():
    problems = translate(AXOLOTL_SMALLEST + "num_epochs: 0\n", Supplied(), "axolotl").problems
    assert [problem.place for problem in problems] == ["line 6   num_epochs"]


def test_a_value_of_the_wrong_kind_is_refused():
    assert "expected a number" in refusals(axolotl("weight_decay: much\n"))["weight_decay"]


def test_text_that_yaml_would_read_otherwise_is_quoted():
    assert spec_of(AXOLOTL_SMALLEST.replace("/models/one", '"./yes: #1"')).base_model == "./yes: #1"


def test_a_set_of_rows_that_our_reader_refuses_is_told_by_its_own_line():
    source = AXOLOTL_SMALLEST.replace("}]", ", split: 'test of all'}]")
    assert [problem.place for problem in axolotl("", source).problems] == ["line 2   datasets[0].path"]


ODD_VALUES = ("[a, {b: c}]", "word")


@pytest.mark.parametrize("name", ["axolotl lora", "llamafactory lora"])
def test_whatever_stands_behind_a_key_is_answered_and_the_key_is_mentioned(name: str):
    source, supplied = SOURCES[name]
    entries, lines = read_tree(source).entries, source.splitlines()
    kind = translate(source, supplied).kind
    for entry, after in zip_longest(entries, entries[1:]):
        others = lines[: entry.line - 1] + (lines[after.line - 1 :] if after else [])
        for value in ODD_VALUES:
            translation = translate("\n".join([*others, f"{entry.key}: {value}"]), supplied, kind)
            assert is_spoken_for(entry.key, spoken_for(translation)), (entry.key, value)


@pytest.mark.parametrize("name", ["openai request", "openai job", "together request"])
def test_whatever_stands_behind_a_key_of_a_service_is_answered(name: str):
    source, supplied = SOURCES[name]
    kind = translate(source, supplied).kind
    request = json.loads(source)
    for key in request:
        for value in ([1, {"b": "c"}], {"a": ["b"]}, "word", -1):
            translation = translate(json.dumps({**request, key: value}), supplied, kind)
            assert is_spoken_for(key, spoken_for(translation)), (key, value)


# axolotl.


def test_axolotls_lora_recipe_means_the_same_here():
    spec = named("axolotl lora")
    assert spec == JobSpec.model_validate(
        {
            "base_model": "meta-llama/Meta-Llama-3-8B-Instruct",
            "datasets": [{"path": "data/chats.jsonl", "format": "chat", "columns": {"messages": "dialogue"}}],
            "val_set_size": 0.05,
            "finetuning_type": "qlora",
            "load_in_8bit": True,
            "lora_r": 32,
            "lora_alpha": 16,
            "lora_dropout": 0.05,
            "chat_template": "llama3",
            "max_seq_length": 4096,
            "learning_rate": 2e-4,
            "optim": "adamw_8bit",
            "warmup_steps": 10,
            "num_train_epochs": 4,
            "global_batch_size": 8,
            "gradient_checkpointing": True,
            "load_best_model_at_end": False,
        }
    )


def test_axolotls_silence_is_written_out():
    spec = named("axolotl smallest")
    assert (spec.finetuning_type, spec.num_train_epochs, spec.max_seq_length) == ("full", 1, 512)
    assert (spec.val_set_size, spec.warmup_ratio, spec.lr_scheduler_type) == (0, 0.03, "cosine")
    assert (spec.global_batch_size, spec.excess_length_strategy, spec.chat_template) == (8, "drop", None)


def test_an_empty_bf16_is_no_auto_for_axolotl():
    assert spec_of(AXOLOTL_SMALLEST + "bf16:\n").bf16 is False
    assert spec_of(AXOLOTL_SMALLEST + "bf16:\nfloat32: true\n").bf16 is False
    assert spec_of(AXOLOTL_SMALLEST).bf16 is None


def test_no_warm_up_stays_none_for_axolotl_whatever_ratio_stands_beside_it():
    spec = spec_of(AXOLOTL_SMALLEST + "warmup_steps: 0\nwarmup_ratio: 0.1\n")
    assert (spec.warmup_steps, spec.warmup_ratio) == (0, None)


def test_no_adapter_with_single_weights_is_freeze_with_axolotls_patterns():
    spec = named("axolotl text")
    assert spec.finetuning_type == "freeze"
    assert spec.unfrozen_parameters == (r"^model\.embed_tokens\.weight$", r"^model\.layers\.2[0-9]+\.mlp")


def test_completion_rows_are_pretraining_with_their_column():
    spec = named("axolotl text")
    assert spec.method == "pretrain"
    assert [(each.path, each.format, each.columns) for each in spec.datasets] == [
        ("books/a.jsonl", "text", {"text": "body"}),
        ("books/b.jsonl", "text", {"text": "body"}),
    ]


def test_steps_win_over_epochs_and_constant_has_no_warm_up():
    spec = named("axolotl text")
    assert (spec.max_steps, spec.num_train_epochs, spec.lr_scheduler_type, spec.warmup_steps) == (
        500,
        None,
        "constant",
        0,
    )


def test_early_stopping_takes_the_best_as_there():
    spec = named("axolotl text")
    assert (spec.early_stopping_patience, spec.load_best_model_at_end, spec.eval_steps) == (3, True, 50)


BEST = AXOLOTL_SMALLEST + "val_set_size: 0.1\nload_best_model_at_end: true\n"


@pytest.mark.parametrize(
    ("steps", "is_best"),
    [
        ("eval_steps: 50\nsave_steps: 100\n", True),
        ("eval_steps: 50\nsave_steps: 75\n", False),
        ("eval_steps: 0.05\nsave_steps: 0.1\n", True),
        ("eval_steps: 50\n", False),
        ("num_epochs: 2\nevals_per_epoch: 4\nsaves_per_epoch: 1\n", True),
        ("num_epochs: 2\nevals_per_epoch: 2\nsaves_per_epoch: 4\n", False),
        ("num_epochs: 2\nevals_per_epoch: 3\nsaves_per_epoch: 1\n", False),
        ("num_epochs: 1\nevals_per_epoch: 4\nsaves_per_epoch: 1\n", False),
        ("", False),
    ],
)
def test_axolotl_takes_the_best_it_is_asked_for_only_where_saves_fall_on_evaluations(steps: str, is_best: bool):
    translation = translated(BEST + steps, kind="axolotl")
    assert parse_spec(translation.job_file, "job.yaml").spec.load_best_model_at_end is is_best
    assert ("load_best_model_at_end" in {note.place.split()[-1] for note in translation.changed}) is not is_best


def test_axolotl_takes_the_last_weights_unless_it_is_asked_for_the_best():
    steps = "eval_steps: 50\nsave_steps: 50\n"
    silent = translated(BEST.replace("load_best_model_at_end: true\n", "") + steps, kind="axolotl")
    assert "load_best_model_at_end: false  # axolotl's default" in silent.job_file
    assert spec_of(BEST.replace("end: true", "end: false") + steps).load_best_model_at_end is False
    assert spec_of(BEST.replace("end: true", "end:") + steps).load_best_model_at_end is True


def test_early_stopping_takes_the_best_whatever_else_is_said():
    source = BEST.replace("true", "false") + "eval_steps: 50\nsave_steps: 50\nearly_stopping_patience: 2\n"
    translation = translated(source, kind="axolotl")
    assert parse_spec(translation.job_file, "job.yaml").spec.load_best_model_at_end is True
    assert "load_best_model_at_end" in {note.place.split()[-1] for note in translation.changed}


@pytest.mark.parametrize(
    "line",
    [
        "warmup_steps: 10.7",
        "warmup_steps: -0.5",
        "eval_steps: 50.5",
        "eval_steps: -5",
        "save_steps: 100.5",
        "max_steps: 1.5",
        "max_steps: .inf",
        "sequence_len: 1e300",
        "seed: true",
        "evals_per_epoch: 0.5",
        "batch_size: -8",
    ],
)
def test_what_counts_and_is_no_count_is_refused(line: str):
    source = AXOLOTL_SMALLEST + "val_set_size: 0.1\n" + line + "\n"
    problems = translate(source, Supplied(rows_per_pack=2), "axolotl").problems
    assert [problem.place.split()[-1] for problem in problems] == [line.partition(":")[0]]


@pytest.mark.parametrize("value", ["-2", "0", "1.5", "1e300", "true", ".nan", "9999999999999999999"])
def test_a_batch_of_no_count_is_refused_before_it_is_multiplied(value: str):
    source = AXOLOTL_SMALLEST.replace("micro_batch_size: 1", f"micro_batch_size: {value}").replace(
        "accumulation_steps: 8", f"accumulation_steps: {value}"
    )
    problems = translate(source + "sample_packing: true\n", Supplied(rows_per_pack=14), "axolotl").problems
    assert [problem.place.split()[-1] for problem in problems] == ["micro_batch_size", "gradient_accumulation_steps"]


def test_packs_are_not_rows_and_that_is_said():
    translation = axolotl("sample_packing: true\n")
    assert "--rows-per-pack" in {note.place.split()[-1]: note.what for note in translation.changed}["sample_packing"]
    spec = spec_of(AXOLOTL_SMALLEST + "sample_packing: true\n", Supplied(rows_per_pack=14), "axolotl")
    assert spec.global_batch_size == 112


def test_sharegpt_by_mapping_and_by_its_old_name_are_the_same():
    names = "field_messages: conversations, message_property_mappings: {role: from, content: value}"
    new = "{path: /d.jsonl, type: chat_template, " + names + "}"
    old = "{path: /d.jsonl, type: sharegpt, conversation: chatml}"
    rows = [
        spec_of(
            AXOLOTL_SMALLEST.replace("{path: /data/rows.jsonl, type: chat_template}", each), kind="axolotl"
        ).datasets
        for each in (new, old)
    ]
    assert [(each[0].format, each[0].columns) for each in rows] == [("sharegpt", {}), ("sharegpt", {})]


def test_alpaca_rows_keep_their_prompt():
    source = AXOLOTL_SMALLEST.replace("type: chat_template", "type: alpaca")
    assert spec_of(source, kind="axolotl").chat_template == ALPACA
    chat = [{"role": "user", "content": "Add 1 and 2."}, {"role": "assistant", "content": "3"}]
    rendered = jinja2.Environment().from_string(ALPACA).render(messages=chat, bos_token="<s>", eos_token="</s>")
    assert rendered == (
        "<s>Below is an instruction that describes a task. "
        "Write a response that appropriately completes the request.\n\n"
        "### Instruction:\nAdd 1 and 2.\n\n### Response:\n3</s>"
    )


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("my_module.load_rows", "a function of one's own"),
        ("chatml.intel", "preferences"),
        ("input_output", "segments"),
        ("gpteacher", "not known here"),
        (
            '{field_instruction: q, field_output: a, format: "[INST] {instruction} [/INST]"}',
            "prompt format of one's own",
        ),
    ],
)
def test_rows_that_are_not_known_are_refused_with_what_to_write(kind: str, said: str):
    translation = axolotl("", AXOLOTL_SMALLEST.replace("chat_template", kind))
    assert said in refusals(translation)["datasets[0].type"]


def rendered_by(source: str, chat: list[dict[str, str]], supplied: Supplied | None = None) -> str:
    template = spec_of(source, supplied).chat_template
    assert template is not None
    return jinja2.Environment().from_string(template).render(messages=chat, bos_token="<s>", eos_token="</s>")


def test_a_template_called_alpaca_is_another_one_in_each_tool():
    chat = [{"role": role, "content": text} for role, text in (("user", "1+2"), ("assistant", "3"), ("user", "4+5"))]
    system = [{"role": "system", "content": "Add."}, *chat]
    axolotls = AXOLOTL_SMALLEST + "chat_template: alpaca\n"
    turns = "### Instruction:\n1+2\n\n### Response:\n3</s>\n\n### Instruction:\n4+5"
    assert rendered_by(axolotls, chat) == "<s>" + turns
    assert rendered_by(axolotls, system) == "<s>Add.\n\n" + turns
    factorys = LLAMAFACTORY_SMALLEST.replace("template: qwen", "template: alpaca")
    begin = (
        "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
    )
    assert rendered_by(factorys, chat) == begin + turns + "\n\n### Response:\n"
    assert rendered_by(factorys, system) == "Add." + turns + "\n\n### Response:\n"


def test_two_templates_in_one_job_are_refused():
    both = AXOLOTL_SMALLEST.replace(
        "}]", ", chat_template: chatml}, {path: /e.jsonl, type: chat_template, chat_template: llama3}]"
    )
    assert "another template" in refusals(axolotl("", both))["datasets[1].chat_template"]


def test_a_template_that_the_model_brings_along_is_the_models_own():
    gemma = AXOLOTL_SMALLEST.replace("/models/one", "google/gemma-2-9b-it") + "chat_template: gemma\n"
    assert spec_of(gemma, kind="axolotl").chat_template is None
    assert "preview.txt" in translated(gemma, kind="axolotl").changed[-1].what
    assert "chat_template" in refusals(axolotl("chat_template: gemma\n"))


@pytest.mark.parametrize(
    "line",
    [
        "rl: dpo",
        "reward_model: true",
        "plugins: [axolotl.integrations.kd.KDPlugin]",
        "deepspeed: deepspeed_configs/zero3.json",
        "fsdp_config: {fsdp_offload_params: true}",
        "tensor_parallel_size: 2",
        "streaming: true",
        "pretraining_dataset: [{path: org/corpus, type: pretrain}]",
        "special_tokens: {bos_token: <s>}",
        "neftune_noise_alpha: 5",
        "lr_scheduler: rex",
        "cosine_min_lr_ratio: 0.1",
        "optimizer: muon",
        "fp16: true",
        "relora: true",
        "shuffle_merged_datasets: false",
        "default_system_message: You are a pirate.",
        "overrides_of_model_config: {rope_scaling: {factor: 2}}",
        "resume_from_checkpoint: ./out/checkpoint-100",
        "unfrozen_parameters: ['model.embed_tokens.weight[:32000]']",
        "load_in_4bit: true",
    ],
)
def test_what_would_change_the_run_and_cannot_be_had_is_refused(line: str):
    problems = axolotl(line + "\n").problems
    assert [problem.place.split()[-1].partition(".")[0] for problem in problems] == [line.partition(":")[0]]
    assert all(problem.hint for problem in problems)


@pytest.mark.parametrize(
    "line",
    [
        "plugins: [axolotl.integrations.liger.LigerPlugin]",
        "liger_rms_norm: true",
        "wandb_project: mine",
        "hub_model_id: me/mine",
        "fsdp:",
        "trust_remote_code: true",
        "special_tokens: {pad_token: <pad>}",
        "shuffle_merged_datasets: true",
        "neftune_noise_alpha: 0",
    ],
)
def test_what_changes_no_result_is_left_out_and_said(line: str):
    translation = axolotl(line + "\n")
    assert translation.problems == ()
    assert any(note.place.split()[-1].startswith(line.partition(":")[0]) for note in translation.ignored)


def test_an_adapter_needs_what_axolotl_has_no_default_for():
    assert set(refusals(axolotl("adapter: lora\n"))) == {"lora_r", "lora_alpha", "lora_target_modules"}


def test_qlora_and_new_tokens_come_along():
    spec = spec_of(
        AXOLOTL_SMALLEST
        + "adapter: qlora\nload_in_4bit: true\nlora_r: 8\nlora_alpha: 16\nlora_target_modules: [q_proj, v_proj]\n"
        + "lora_modules_to_save: [embed_tokens, lm_head]\npeft_use_dora: true\nloraplus_lr_ratio: 16\n"
        + "tokens: [<a>, <b>]\n"
        + "lora_model_dir: ./earlier\nbnb_config_kwargs: {bnb_4bit_use_double_quant: false}\n"
    )
    assert (spec.finetuning_type, spec.lora_target_modules) == ("qlora", ("q_proj", "v_proj"))
    assert (spec.modules_to_save, spec.use_dora, spec.loraplus_lr_ratio) == (("embed_tokens", "lm_head"), True, 16)
    assert (spec.added_tokens, spec.init_adapter, spec.bnb_4bit_use_double_quant) == (
        ("<a>", "<b>"),
        "./earlier",
        False,
    )


def test_rows_on_a_hub_need_to_be_fetched_and_named():
    hub = AXOLOTL_SMALLEST.replace("/data/rows.jsonl", "org/rows")
    assert "--data org/rows=" in refusals(axolotl("", hub))["datasets[0].path"]
    assert spec_of(hub, Supplied(files={"org/rows": "./rows"})).datasets[0].path == "./rows"


def test_files_in_a_folder_are_named_with_it_and_those_in_a_hubs_are_not_taken_for_files_here():
    local = AXOLOTL_SMALLEST.replace("path: /data/rows.jsonl", "path: ./rows, data_files: [a.jsonl, b.jsonl]")
    assert [each.path for each in spec_of(local, kind="axolotl").datasets] == ["./rows/a.jsonl", "./rows/b.jsonl"]
    hub = local.replace("./rows", "org/rows")
    assert set(refusals(axolotl("", hub))) == {"datasets[0].path"}
    assert [each.path for each in spec_of(hub, Supplied(files={"org/rows": "/r"}), "axolotl").datasets] == ["/r"]


def test_text_and_chats_in_one_job_are_refused():
    both = AXOLOTL_SMALLEST.replace("}]", "}, {path: /e.jsonl, type: completion}]")
    assert "mixes plain text" in refusals(axolotl("", both))["datasets"]


def test_what_needs_evaluation_is_left_out_where_nothing_is_evaluated():
    source = AXOLOTL_SMALLEST + "eval_steps: 50\nevals_per_epoch: 2\nload_best_model_at_end: true\n"
    spec = spec_of(source)
    assert (spec.val_set_size, spec.eval_steps, spec.load_best_model_at_end) == (0, None, None)
    assert {"eval_steps", "evals_per_epoch"} <= {note.place.split()[-1] for note in translated(source).ignored}


# LLaMA-Factory.


def test_llamafactorys_lora_recipe_means_the_same_here():
    spec = named("llamafactory lora")
    assert spec == JobSpec.model_validate(
        {
            "base_model": "meta-llama/Meta-Llama-3-8B-Instruct",
            "datasets": [
                {"path": "./data/identity.json", "format": "alpaca", "split": "[:1000]"},
                {
                    "path": "./data/tickets.json",
                    "format": "chat",
                    "columns": {"messages": "turns", "tools": "functions"},
                    "split": "[:1000]",
                },
            ],
            "val_set_size": 0.1,
            "finetuning_type": "qlora",
            "load_in_4bit": True,
            "bnb_4bit_use_double_quant": False,
            "lora_r": 8,
            "lora_alpha": 16,
            "lora_target_modules": ["q_proj", "v_proj"],
            "modules_to_save": ["embed_tokens", "lm_head"],
            "chat_template": "llama3",
            "max_seq_length": 2048,
            "excess_length_strategy": "truncate",
            "learning_rate": 1e-4,
            "warmup_ratio": 0.1,
            "num_train_epochs": 3,
            "global_batch_size": 8,
            "bf16": True,
            "eval_steps": 500,
            "save_steps": 500,
            "logging_steps": 10,
            "load_best_model_at_end": False,
        }
    )


def test_llamafactorys_silence_is_written_out():
    spec = named("llamafactory smallest")
    assert (spec.finetuning_type, spec.lora_r, spec.lora_alpha) == ("lora", 8, 16)
    assert (spec.learning_rate, spec.lr_scheduler_type, spec.warmup_steps) == (5e-5, "linear", 0)
    assert (spec.num_train_epochs, spec.global_batch_size, spec.max_seq_length) == (3, 8, 2048)
    assert (spec.val_set_size, spec.chat_template) == (0, None)


def test_stage_pt_learns_the_prompt_column_as_text():
    source = LLAMAFACTORY_TEXT.replace("eval_dataset: identity\n", "")
    spec = spec_of(source)
    assert (spec.method, spec.finetuning_type) == ("pretrain", "full")
    assert (spec.datasets[0].format, spec.datasets[0].columns) == ("text", {"text": "body"})
    assert {"packing", "cutoff_len"} <= {note.place.split()[-1] for note in translated(source).changed}


def test_stage_pt_packs_by_itself_and_that_is_said():
    silent = LLAMAFACTORY_TEXT.replace("eval_dataset: identity\n", "").replace("packing: true\n", "")
    changed = [note for note in translated(silent).changed if "--rows-per-pack" in note.what]
    assert [note.place.split()[-1] for note in changed] == ["stage"]
    assert "max_seq_length tokens" in changed[0].what
    assert spec_of(silent, Supplied(dataset_info=INFO, rows_per_pack=3)).global_batch_size == 24
    off = silent + "packing: false\n"
    assert not any("--rows-per-pack" in note.what for note in translated(off).changed)
    assert spec_of(off, Supplied(dataset_info=INFO, rows_per_pack=3)).global_batch_size == 8


def test_without_packing_stage_pt_learns_only_the_beginning_of_a_text_and_that_is_said():
    off = LLAMAFACTORY_TEXT.replace("eval_dataset: identity\n", "").replace("packing: true", "packing: false")
    for source, key in ((off, "cutoff_len"), (off.replace("cutoff_len: 4096\n", ""), "stage")):
        told = {note.place.split()[-1]: note.what for note in translated(source).changed}
        assert "leaves out what a text has beyond cutoff_len" in told[key]


def test_rows_held_out_and_never_looked_at_stay_so():
    spec = spec_of(LLAMAFACTORY_SMALLEST + "val_size: 0.1\neval_steps: 50\n")
    assert (spec.val_set_size, spec.eval_strategy, spec.eval_steps) == (0.1, "no", None)


def test_the_columns_of_dataset_info_are_told_in_our_names():
    spec = spec_of(LLAMAFACTORY_SMALLEST.replace("identity", "old"))
    assert (spec.datasets[0].format, spec.datasets[0].columns) == ("sharegpt", {"system": "persona"})


def test_columns_that_llamafactory_would_not_read_are_told():
    changed = {note.place.split()[-1]: note.what for note in translated(LLAMAFACTORY_SMALLEST).changed}
    assert "system, history" in changed["identity"]


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("pairs", {"pairs.ranking", "pairs.columns.chosen", "pairs.columns.rejected"}),
        ("far", {"far.hf_hub_url"}),
        ("odd", {"odd.tags.user_tag", "odd.folder"}),
        ("nowhere", {"dataset"}),
    ],
)
def test_sets_that_cannot_be_learned_from_are_refused_where_they_are_described(name: str, keys: set[str]):
    translation = translate(LLAMAFACTORY_SMALLEST.replace("identity", name), Supplied(dataset_info=INFO))
    assert set(refusals(translation)) == keys
    assert all(("dataset_info.json" in problem.place) == (name != "nowhere") for problem in translation.problems)


def test_a_set_without_dataset_info_needs_a_path():
    assert "--dataset-info" in refusals(translate(LLAMAFACTORY_SMALLEST, Supplied()))["dataset"]
    spec = spec_of(LLAMAFACTORY_SMALLEST, Supplied(files={"identity": "/d.jsonl"}))
    assert (spec.datasets[0].path, spec.datasets[0].format) == ("/d.jsonl", "auto")


@pytest.mark.parametrize(
    "line",
    [
        "stage: dpo",
        "finetuning_type: freeze",
        "quantization_bit: 3",
        "mask_history: true",
        "streaming: true",
        "mix_strategy: interleave_over",
        "deepspeed: ds_z3_config.json",
        "use_galore: true",
        "template: baichuan2",
        "tokenized_path: cache/rows",
        "rope_scaling: linear",
        "pure_bf16: true",
        "train_from_scratch: true",
        "adapter_name_or_path: a,b",
        "pissa_init: true",
        "resume_from_checkpoint: saves/checkpoint-100",
    ],
)
def test_llamafactorys_other_ways_are_refused(line: str):
    key = line.partition(":")[0]
    others = "\n".join(each for each in LLAMAFACTORY_SMALLEST.splitlines() if not each.startswith(f"{key}:"))
    problems = translate(f"{others}\n{line}\n", Supplied(dataset_info=INFO), "llamafactory").problems
    assert [problem.place.split()[-1] for problem in problems] == [key]


# OpenAI and Together.


def test_openais_request_is_a_lora_run_on_a_model_of_ones_own():
    spec = named("openai request")
    assert (spec.base_model, spec.finetuning_type, spec.learning_rate) == ("Qwen/Qwen2.5-7B-Instruct", "lora", 2e-4)
    assert (spec.datasets[0].path, spec.datasets[0].format) == ("/data/train.jsonl", "chat")
    assert (spec.eval_datasets[0].path, spec.load_best_model_at_end) == ("/data/eval.jsonl", False)
    assert (spec.num_train_epochs, spec.global_batch_size, spec.seed) == (4, None, 7)
    assert (spec.suffix, spec.metadata) == ("support", {"team": "support"})


def test_openais_auto_and_multiplier_become_numbers_and_that_is_said():
    spec = named("openai job")
    assert (spec.num_train_epochs, spec.global_batch_size, spec.learning_rate) == (3, 8, 1e-4)
    changed = {note.place.split()[-1] for note in translated(*SOURCES["openai job"]).changed}
    assert {"hyperparameters.n_epochs", "hyperparameters.learning_rate_multiplier", "model"} <= changed


def test_what_only_openai_has_is_refused_with_the_option_that_helps():
    problems = refusals(translate(json.dumps(OPENAI_REQUEST), Supplied()))
    assert "--base-model" in problems["model"]
    assert "--data file-abc123=" in problems["training_file"]
    assert "--data file-val456=" in problems["validation_file"]


@pytest.mark.parametrize("kind", ["dpo", "reinforcement"])
def test_openais_other_methods_are_refused(kind: str):
    request: dict[str, Any] = {**OPENAI_REQUEST, "method": {"type": kind, kind: {"hyperparameters": {}}}}
    problems = refusals(translate(json.dumps(request), Supplied("/m", UPLOADS)))
    assert set(problems) == {"method.type", f"method.{kind}"}


def test_togethers_request_means_the_same_here():
    spec = named("together request")
    assert spec.base_model == "meta-llama/Meta-Llama-3.1-8B-Instruct"
    assert (spec.lora_r, spec.lora_alpha, spec.lora_target_modules) == (64, 128, ("q_proj", "v_proj"))
    assert (spec.lr_scheduler_type, spec.warmup_ratio, spec.learning_rate) == ("linear", 0.05, 1e-5)
    assert (spec.weight_decay, spec.max_grad_norm, spec.num_train_epochs) == (0.01, 2.0, 2)
    assert (spec.global_batch_size, spec.train_on_inputs, spec.suffix) == (None, False, "mine")


@pytest.mark.parametrize("value", ["inf", "nan", "1.5", 1.5, 0, -1, True, "max", 1e300, "9" * 5000])
@pytest.mark.parametrize("key", ["batch_size", "n_epochs"])
def test_what_openai_counts_and_is_no_count_is_refused(key: str, value: Any):
    request = {**OPENAI_JOB, "hyperparameters": {key: value}}
    problems = translate(json.dumps(request), Supplied("/m", UPLOADS), "openai").problems
    assert [problem.place.split()[-1] for problem in problems] == [f"hyperparameters.{key}"]


@pytest.mark.parametrize("value", ["inf", "nan", "two", True, [2]])
def test_a_multiplier_that_is_no_number_is_refused(value: Any):
    request = {**OPENAI_JOB, "hyperparameters": {"learning_rate_multiplier": value}}
    problems = translate(json.dumps(request), Supplied("/m", UPLOADS), "openai").problems
    assert [problem.place.split()[-1] for problem in problems] == ["hyperparameters.learning_rate_multiplier"]


def test_hyperparameters_left_null_are_openais_to_choose():
    nothing = {"n_epochs": None, "batch_size": None, "learning_rate_multiplier": None}
    spec = spec_of(json.dumps({**OPENAI_JOB, "hyperparameters": nothing}), Supplied("/m", UPLOADS), "openai")
    assert (spec.num_train_epochs, spec.global_batch_size, spec.learning_rate) == (3, None, 2e-4)


@pytest.mark.parametrize("value", ["inf", "nan", 1.5, 0, -1, True, 1e300])
@pytest.mark.parametrize("packing", [True, False])
def test_a_batch_of_together_that_is_no_count_is_refused(value: Any, packing: bool):
    request = {**TOGETHER_REQUEST, "batch_size": value, "packing": packing}
    problems = translate(json.dumps(request), Supplied(files=UPLOADS, rows_per_pack=10)).problems
    assert [problem.place.split()[-1] for problem in problems] == ["batch_size"]


def test_together_counts_packs_too():
    packed = {**TOGETHER_REQUEST, "batch_size": 8}
    assert "batch_size" in {
        note.place.split()[-1] for note in translated(json.dumps(packed), Supplied(files=UPLOADS)).changed
    }
    rows = Supplied(files=UPLOADS, rows_per_pack=10)
    assert spec_of(json.dumps(packed), rows).global_batch_size == 80
    assert spec_of(json.dumps({**packed, "packing": False}), rows).global_batch_size == 8


def test_togethers_full_training_and_its_ends_that_cannot_be_had():
    full = {**TOGETHER_REQUEST, "training_type": {"type": "Full"}}
    assert spec_of(json.dumps(full), Supplied(files=UPLOADS)).finetuning_type == "full"
    odd = {
        **TOGETHER_REQUEST,
        "training_method": {"method": "dpo", "dpo_beta": 0.1},
        "lr_scheduler": {"lr_scheduler_type": "cosine", "lr_scheduler_args": {"min_lr_ratio": 0.1}},
        "from_checkpoint": "ft-1:10",
    }
    problems = refusals(translate(json.dumps(odd), Supplied(files=UPLOADS)))
    assert set(problems) == {
        "training_method.method",
        "training_method.dpo_beta",
        "lr_scheduler.lr_scheduler_args.min_lr_ratio",
        "from_checkpoint",
    }


def test_a_secret_is_not_repeated():
    translation = translated(*SOURCES["together request"])
    assert "secret" not in translation.model_dump_json()


def test_llamafactorys_adapter_to_go_on_from_keeps_its_shape_whatever_is_said_or_left_out():
    source = f"{LLAMAFACTORY_SMALLEST}\nadapter_name_or_path: saves/earlier\n"
    for more in ("", "lora_rank: 64\nlora_target: q_proj\n"):
        asked = spec_of(source + more, Supplied(dataset_info=INFO), "llamafactory")
        assert asked.init_adapter == "saves/earlier"
        assert not asked.model_fields_set & {"lora_r", "lora_alpha", "lora_target_modules"}
