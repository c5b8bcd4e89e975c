"""What may stand in a job file, as JSON Schema for editors and as a reference page for people."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel

from finetuned.core.jobfile.later import ANYTHING, NotYet
from finetuned.core.jobfile.reading import Form
from finetuned.core.jobfile.shape import Shape, shapes
from finetuned.core.jobfile.words import Words

_NUMBER_IN_QUOTES = r"^[+-]?([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_SECTIONS = {
    "base_model": "Model and data",
    "method": "What is trained",
    "chat_template": "Text",
    "learning_rate": "Optimizer",
    "num_train_epochs": "Length and batch",
    "bf16": "Machine",
    "eval_strategy": "Evaluation, checkpoints, the best",
    "export": "Results",
    "priority": "The job itself",
}
"""First field of each section of the page → its heading."""

_INTRODUCTION = """\
# The job file

The smallest job is two lines:

```yaml
base_model: /srv/finetuned/models/llama-3.1-8b-instruct     # a folder, or org/name on the hub
datasets: [{path: /srv/finetuned/data/support.jsonl}]
```

A fuller one:

```yaml
base_model: meta-llama/Llama-3.1-8B-Instruct
revision: main
datasets:
  - path: /srv/finetuned/data/support.jsonl
  - path: /srv/finetuned/data/tone.jsonl
    format: chat
val_set_size: 0.05

finetuning_type: lora
lora_r: 32
lora_alpha: 64
max_seq_length: 2048

learning_rate: 1e-4
num_train_epochs: 2
global_batch_size: 16
early_stopping_patience: 3

suffix: support-tone
priority: 10
metadata: {team: support, ticket: FT-12}
```

A row of chat data is one line of JSON,
`{"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}`; a row of plain text is
`{"text": "…"}`.

The file is YAML 1.2 or JSON, in UTF-8. Numbers may be written `1e-4`, `"2e-4"` or `1_000`; true and false are only
`true` and `false`; `no`, `on` and the like are text. A field that is left out, empty or `auto` has its default.
Unknown fields, fields given twice and contradictions are refused, all at once and with their lines. Names from other
tools are read with a notice; the same thing said twice with different values is refused. YAML's anchors, aliases and
tags are not read. `finetunectl check FILE` says what would happen; `finetunectl schema` prints a JSON Schema for
editors."""


def reference_page(job: Form) -> str:
    """The page as Markdown, in the order of the fields."""
    dataset = job.inner["datasets"]
    lines = [_INTRODUCTION]
    for name in job.record.model_fields:
        if name in _SECTIONS:
            lines += [f"\n## {_SECTIONS[name]}\n", *_TABLE_HEAD]
        lines.append(_field_row(job, name))
    lines += ["\n## One of `datasets`\n", *_TABLE_HEAD, *(_field_row(dataset, name) for name in shapes(dataset.record))]
    export = job.inner["export"]
    lines += ["\n## `export`\n", *_TABLE_HEAD, *(_field_row(export, name) for name in shapes(export.record))]
    lines += ["\n## Values with other names\n", "| field | written | read as |", "| --- | --- | --- |"]
    lines += _value_rows(job.words, "") + _value_rows(dataset.words, "datasets[].")
    lines += _value_rows(export.words, "export.")
    lines += ["\n## Fields with other names and other values\n", "| written | read as |", "| --- | --- |"]
    lines += _reworded_rows(job.words)
    lines += ["\n## Read and not needed\n", "Whatever they say, these change nothing here.\n"]
    lines += [f"- {_joined(names)}: {entry.what}." for entry, names in _grouped(job.words.not_yet, wanted=True)]
    lines += [
        "\n## Known, not yet\n",
        "Refused with a sentence of their own, except for values that ask for nothing.\n",
    ]
    lines += ["| written | asks for | instead |", "| --- | --- | --- |"]
    lines += _later_rows(job.words, "") + _later_rows(dataset.words, "datasets[].")
    lines += _later_rows(export.words, "export.")
    return "\n".join(lines) + "\n"


_TABLE_HEAD = ("| field | meaning | takes | default | also known as |", "| --- | --- | --- | --- | --- |")


def _field_row(form: Form, name: str) -> str:
    info, shape = form.record.model_fields[name], shapes(form.record)[name]
    others = [f"`{other}`" for other, field in form.words.other_names.items() if field == name]
    cells = (f"`{name}`", info.description or "", shape.expected, _default(form.record, name), " ".join(others))
    return _row(*cells)


def _default(record: type[BaseModel], name: str) -> str:
    info = record.model_fields[name]
    if info.is_required():
        return "**required**"
    value = info.get_default(call_default_factory=True)
    match value:
        case None:
            return "auto"
        case bool():
            return str(value).lower()
        case () | {}:
            return "none"
        case tuple():
            return ", ".join(value)
        case BaseModel():
            return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _value_rows(words: Words, path: str) -> list[str]:
    rows = []
    for name, values in words.other_values.items():
        for ours in dict.fromkeys(values.values()):
            theirs = [f"`{other}`" for other, meant in values.items() if meant == ours]
            rows.append(_row(f"`{path}{name}`", " ".join(theirs), f"`{ours}`"))
    return rows


def _reworded_rows(words: Words) -> list[str]:
    groups: dict[tuple[str, str, str], list[str]] = {}
    for name, reworded in words.reworded.items():
        for value, ours in reworded.values.items():
            groups.setdefault((value, reworded.field, ours), []).append(name)
    return [
        _row(" ".join(f"`{name}: {value}`" for name in names), f"`{field}: {ours}`")
        for (value, field, ours), names in groups.items()
    ]


def _later_rows(words: Words, path: str) -> list[str]:
    rows = [
        _row(_joined(names, path), entry.what, entry.instead) for entry, names in _grouped(words.not_yet, wanted=False)
    ]
    for name, values in words.values_not_yet.items():
        for entry, named in _grouped(values, wanted=False):
            rows.append(_row(f"`{path}{name}`: {_joined(named)}", entry.what, entry.instead))
    return rows


def _grouped(entries: Mapping[str, NotYet], *, wanted: bool) -> list[tuple[NotYet, list[str]]]:
    """Names that share an answer; `wanted`: those that are read whatever they say."""
    groups: dict[NotYet, list[str]] = {}
    for name, entry in entries.items():
        if (entry.harmless == ANYTHING) == wanted:
            groups.setdefault(entry, []).append(name)
    return list(groups.items())


def _joined(names: Iterable[str], path: str = "") -> str:
    return " ".join(f"`{path}{name}`" for name in names)


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def editor_schema(job: Form) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of what a person may write, in our own words; other tools' names are left out."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "finetuned job file",
        **_record_schema(job),
    }


def _record_schema(form: Form) -> dict[str, Any]:
    fields = shapes(form.record)
    return {
        "type": "object",
        "description": " ".join((form.record.__doc__ or "").split()),
        "properties": {name: _field_schema(form, name, shape) for name, shape in fields.items()},
        "required": [name for name, shape in fields.items() if shape.is_required],
        "additionalProperties": False,
    }


def _field_schema(form: Form, name: str, shape: Shape) -> dict[str, Any]:
    info = form.record.model_fields[name]
    forms = _written_forms(form, name, shape)
    if not shape.is_required:
        forms += [{"const": "auto"}, {"type": "null"}]
    schema: dict[str, Any] = {"description": info.description, "anyOf": forms}
    if not info.is_required():
        default = info.get_default(call_default_factory=True)
        schema["default"] = _as_json(default)
    return schema


def _as_json(default: Any) -> Any:
    match default:
        case tuple():
            return list(default)
        case BaseModel():
            return default.model_dump(mode="json")
    return default


def _written_forms(form: Form, name: str, shape: Shape) -> list[dict[str, Any]]:
    match shape.kind:
        case "choice":
            return [{"enum": list(shape.choices)}]
        case "truth":
            return [{"type": "boolean"}]
        case "whole number" | "number":
            number = {"type": "integer" if shape.kind == "whole number" else "number", **_bounds(shape)}
            return [number, {"type": "string", "pattern": _NUMBER_IN_QUOTES}]
        case "words":
            return [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]
        case "list":
            return [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]
        case "record":
            return [_record_schema(form.inner[name])]
        case "pairs":
            return [{"type": "object", "additionalProperties": {"type": ["string", "number", "boolean", "null"]}}]
        case "records":
            one = _record_schema(form.inner[name])
            return [{"type": "array", "items": {"anyOf": [one, {"type": "string"}]}, "minItems": shape.fewest}, one]
        case "text":
            return [{"type": ["string", "number"]}]


def _bounds(shape: Shape) -> dict[str, float]:
    bounds = {
        "minimum": shape.at_least,
        "exclusiveMinimum": shape.above,
        "maximum": shape.at_most,
        "exclusiveMaximum": shape.below,
    }
    return {word: bound for word, bound in bounds.items() if bound is not None}
