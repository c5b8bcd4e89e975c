"""A job file in the making: fields in the order of the reference page, each with a comment on where it comes from."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from finetuned.core.importers.ledger import Found, Ledger
from finetuned.core.spec import Dataset, JobSpec

Value = str | bool | int | float | Sequence[str] | Mapping[str, str | bool]

_PLAIN = re.compile(r"[A-Za-z0-9_./][\w./@+-]*( [\w./@+-]+)*")
_NOT_PLAIN = re.compile(r"(true|false|null|yes|no|on|off|auto|~|[+-]?[0-9._]+([eE][+-]?[0-9]+)?)", re.IGNORECASE)


@dataclass(frozen=True)
class RowKind:
    """What a row of a set holds, where; and the keys that say so."""

    format: str
    columns: Mapping[str, str] = field(default_factory=dict)
    origins: tuple[Found, ...] = ()


@dataclass(frozen=True)
class DatasetDraft:
    """One set of rows in our words."""

    path: str
    kind: RowKind
    split: str = ""
    comment: str = ""


@dataclass
class Draft:
    """Fields as they are decided. Each is given once; `parse_spec` looks at the whole."""

    ledger: Ledger
    _fields: dict[str, tuple[Value, str]] = field(default_factory=dict)
    _datasets: dict[str, list[DatasetDraft]] = field(default_factory=dict)
    origins: dict[str, Found] = field(default_factory=dict)
    """Field → the key that it comes from first."""

    def put(self, name: str, value: Value, *origins: Found, why: str = "") -> None:
        """`origins`: the keys it comes from, which are thereby taken over. `why`: what the comment says beside them."""
        for found in origins:
            self.ledger.keep(found)
            self.origins.setdefault(name, found)
        is_namesake = len(origins) == 1 and origins[0].key == name
        told = f"line {origins[0].line}" if is_namesake else " and ".join(found.origin for found in origins)
        self._fields[name] = value, ": ".join(part for part in (told, why) if part)

    def add_dataset(self, name: str, dataset: DatasetDraft, origin: Found) -> None:
        """To `datasets` or `eval_datasets`."""
        others = self._datasets.setdefault(name, [])
        self.origins[f"{name}[{len(others)}]"] = origin
        others.append(dataset)

    def has(self, name: str) -> bool:
        return name in self._fields or name in self._datasets

    def value(self, name: str) -> Value | None:
        return self._fields[name][0] if name in self._fields else None

    def text(self, headline: str) -> str:
        lines = [f"# {headline}"]
        for name in JobSpec.model_fields:
            if name in self._datasets:
                lines += self._dataset_lines(name)
            elif name in self._fields:
                value, comment = self._fields[name]
                lines += _with_comment(f"{name}: ", value, comment)
        return "\n".join(lines) + "\n"

    def _dataset_lines(self, name: str) -> list[str]:
        lines = [f"{name}:"]
        for dataset in self._datasets[name]:
            lines += _with_comment("  - path: ", dataset.path, dataset.comment)
            said: dict[str, Value] = {
                "format": dataset.kind.format,
                "columns": dataset.kind.columns,
                "split": dataset.split,
            }
            lines += [f"    {part}: {_shown(said[part])}" for part in Dataset.model_fields if said.get(part)]
        return lines


def _with_comment(start: str, value: Value, comment: str) -> list[str]:
    remark = f"  # {' '.join(comment.split())}" if comment else ""
    if isinstance(value, str) and "\n" in value and not value.startswith((" ", "\n")):
        lines = value.rstrip("\n").split("\n")
        if all(line.isprintable() for line in lines):
            return [f"{start}|-{remark}", *(f"  {line}" if line else "" for line in lines)]
    return [f"{start}{_shown(value)}{remark}"]


def _shown(value: Value) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return f"{value:.12g}"
        case str():
            return _shown_text(value)
        case Mapping():
            return "{" + ", ".join(f"{_shown_text(key)}: {_shown(each)}" for key, each in value.items()) + "}"
        case _:
            return "[" + ", ".join(_shown_text(each) for each in value) + "]"


def _shown_text(value: str) -> str:
    """Quoted where YAML, or the reader of job files, would take it for something else."""
    is_plain = _PLAIN.fullmatch(value) and (value == "auto" or not _NOT_PLAIN.fullmatch(value))
    return value if is_plain else json.dumps(value, ensure_ascii=not value.isprintable())
