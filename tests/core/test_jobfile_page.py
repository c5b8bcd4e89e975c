"""The reference page and the schema tell the truth about the code."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from finetuned.core.jobfile.shape import shapes
from finetuned.core.jobfile.words import DATASET_WORDS, JOB_WORDS, Words
from finetuned.core.problems import InvalidSpec
from finetuned.core.spec import Dataset, JobSpec, job_file_page, json_schema, parse_spec

PAGE = Path(__file__).parents[2] / "docs" / "job-file.md"
REGENERATE = (
    'python -c "from finetuned.core.spec import job_file_page; print(job_file_page(), end=str())" > docs/job-file.md'
)


def test_the_page_is_what_the_code_says():
    assert PAGE.read_text() == job_file_page(), f"written anew by: {REGENERATE}"


def test_the_examples_on_the_page_are_sound_jobs():
    examples = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        assert parse_spec(example, "docs/job-file.md").notices == ()


@pytest.mark.parametrize("record", [JobSpec, Dataset])
def test_every_field_has_a_meaning_and_a_shape(record):
    assert shapes(record).keys() == record.model_fields.keys()
    assert all(info.description for info in record.model_fields.values())


@pytest.mark.parametrize(("record", "words"), [(JobSpec, JOB_WORDS), (Dataset, DATASET_WORDS)])
def test_a_word_has_one_meaning(record, words: Words):
    tables = [set(record.model_fields), set(words.other_names), set(words.reworded), set(words.not_yet)]
    assert sum(len(table) for table in tables) == len(set().union(*tables))


@pytest.mark.parametrize(("record", "words"), [(JobSpec, JOB_WORDS), (Dataset, DATASET_WORDS)])
def test_words_are_given_to_fields_and_values_that_exist(record, words: Words):
    fields = shapes(record)
    named = [*words.other_names.values(), *words.other_values, *words.values_not_yet, *words.fractions.values()]
    assert set(named) <= fields.keys()
    readings = [(field, ours) for field, values in words.other_values.items() for ours in values.values()]
    readings += [(each.field, ours) for each in words.reworded.values() for ours in each.values.values()]
    for field, ours in readings:
        assert not fields[field].choices or ours in (*fields[field].choices, "auto"), (field, ours)


JOBS: list[dict[str, Any]] = [
    {"base_model": "a/b", "datasets": [{"path": "/d"}]},
    {"base_model": "a/b", "datasets": ["/d"], "lora_r": "1_6", "learning_rate": "2e-4", "bf16": True},
    {"base_model": "a/b", "datasets": {"path": "/d", "format": "chat"}, "seed": None, "max_steps": "auto"},
    {"base_model": "a/b", "datasets": ["/d"], "lora_target_modules": ["q", "v"], "metadata": {"a": 1, "b": "c"}},
    {"base_model": "a/b", "datasets": ["/d"], "revision": 1234567, "eval_datasets": [], "eval_strategy": "no"},
    {"base_model": "a/b", "datasets": []},
    {"base_model": "a/b"},
    {"base_model": "a/b", "datasets": ["/d"], "lora_r": 0},
    {"base_model": "a/b", "datasets": ["/d"], "lora_dropout": 1},
    {"base_model": "a/b", "datasets": ["/d"], "learning_rate": 0},
    {"base_model": "a/b", "datasets": ["/d"], "priority": 1000},
    {"base_model": "a/b", "datasets": ["/d"], "learning_rate": "fast"},
    {"base_model": "a/b", "datasets": ["/d"], "bf16": "yes"},
    {"base_model": "a/b", "datasets": ["/d"], "method": "dpo"},
    {"base_model": "a/b", "datasets": [{"path": "/d", "color": "red"}]},
    {"base_model": "a/b", "datasets": [{"format": "chat"}]},
    {"base_model": "a/b", "datasets": ["/d"], "lora_target_modules": []},
    {"base_model": "a/b", "datasets": ["/d"], "nonsense": 1},
]


@pytest.mark.parametrize("job", JOBS, ids=str)
def test_the_schema_accepts_what_the_parser_accepts(job):

    try:
        parse_spec(json.dumps(job), "job.json")
        is_sound = True
    except InvalidSpec:
        is_sound = False
    assert accepts(json_schema(), job) == is_sound


def accepts(schema: dict[str, Any], value: Any) -> bool:
    """The few words of JSON Schema that ours uses."""
    types = schema.get("type", [])
    tests = {
        "type": lambda: any(_is_a(name, value) for name in ([types] if isinstance(types, str) else types)),
        "anyOf": lambda: any(accepts(each, value) for each in schema["anyOf"]),
        "enum": lambda: value in schema["enum"],
        "const": lambda: value == schema["const"],
        "pattern": lambda: re.search(schema["pattern"], value) is not None,
        "minimum": lambda: value >= schema["minimum"],
        "maximum": lambda: value <= schema["maximum"],
        "exclusiveMinimum": lambda: value > schema["exclusiveMinimum"],
        "exclusiveMaximum": lambda: value < schema["exclusiveMaximum"],
        "minItems": lambda: len(value) >= schema["minItems"],
        "items": lambda: all(accepts(schema["items"], item) for item in value),
        "required": lambda: set(schema["required"]) <= set(value),
        "properties": lambda: all(
            accepts(each, value[name]) for name, each in schema["properties"].items() if name in value
        ),
        "additionalProperties": lambda: _accepts_others(schema, value),
    }
    silent = {"$schema", "title", "description", "default"}
    assert schema.keys() <= tests.keys() | silent, schema.keys()
    return all(test() for word, test in tests.items() if word in schema)


def _accepts_others(schema: dict[str, Any], value: dict[str, Any]) -> bool:
    others = value.keys() - schema.get("properties", {}).keys()
    rule = schema["additionalProperties"]
    return not others if rule is False else all(accepts(rule, value[name]) for name in others)


def _is_a(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    kinds = {
        "object": dict,
        "array": list,
        "string": str,
        "integer": int,
        "number": (int, float),
        "null": type(None),
        "boolean": bool,
    }
    return isinstance(value, kinds[name])
