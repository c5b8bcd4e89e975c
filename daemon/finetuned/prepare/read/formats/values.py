"""Values of a record, taken out with a check: what was expected and what was found."""

import json
from collections.abc import Mapping
from typing import Any

from finetuned.host.data.jsontext import Malformed, parse
from finetuned.host.data.records import keys_of, kind_of

__all__ = ["Malformed", "keys_of", "kind_of", "optional_string", "required", "shown", "string", "structure"]


def required(row: Mapping[str, Any], key: str) -> Any:
    if key not in row:
        raise Malformed(f"has no `{key}`; its keys are {keys_of(row)}")
    return row[key]


def string(row: Mapping[str, Any], key: str) -> str:
    value = required(row, key)
    if not isinstance(value, str):
        raise Malformed(f"{key}: expected a string, got {kind_of(value)}")
    return value


def optional_string(row: Mapping[str, Any], key: str) -> str:
    """ "" where it is absent, null or blank."""
    value = row.get(key)
    if value is not None and not isinstance(value, str):
        raise Malformed(f"{key}: expected a string, got {kind_of(value)}")
    return value if value and value.strip() else ""


def structure(place: str, value: Any) -> Any:
    """A list or object; where a cell of a table holds it as JSON text, what that says."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("[", "{"):
        return value
    try:
        return parse(value)
    except Malformed as error:
        raise Malformed(f"{place}: the string {error}", error.hint) from error


def shown(value: Any) -> str:
    """A short value as JSON writes it, for a message."""
    return json.dumps(value, ensure_ascii=False, default=str)[:60]
