"""What a single value in a job file says, given the shape of its field."""

import math
import re
from typing import Any

from finetuned.core.jobfile.findings import shown
from finetuned.core.jobfile.shape import Shape
from finetuned.core.jobfile.text import List, Mapping, Node, Scalar

_WHOLE = re.compile(r"[+-]?[0-9][0-9_]{0,30}")
_NUMBER = re.compile(r"[+-]?([0-9][0-9_]{0,30}(\.[0-9_]{0,30})?|\.[0-9]{1,30})([eE][+-]?[0-9]{1,4})?")
_LIKE_TRUE = {"true", "yes", "on", "y", "1"}
_LIKE_FALSE = {"false", "no", "off", "n", "0"}


class WrongValue(Exception):
    """Not what the field expects. `hint` says what was probably meant, or is empty."""

    def __init__(self, hint: str = ""):
        self.hint = hint
        super().__init__(hint)


def single_value(shape: Shape, node: Scalar) -> Any:
    """Text, a choice, true or false, or a number within its bounds. Raises WrongValue."""
    match shape.kind:
        case "text":
            return node.text
        case "choice" if node.text in shape.choices:
            return node.text
        case "truth":
            return _truth(node)
        case "whole number" | "number":
            return _number_within(shape, node.text)
    raise WrongValue()


def number(text: str) -> int | float | None:
    """1e-4, 5e-5, 1_000, .5 → a finite number; None for anything else."""
    text = text.strip()
    if _WHOLE.fullmatch(text):
        return int(text.replace("_", ""))
    if not _NUMBER.fullmatch(text):
        return None
    value = float(text.replace("_", ""))
    return value if math.isfinite(value) else None


def found(node: Node) -> str:
    """What stands there: numbers, true and false bare, text in quotes."""
    match node:
        case List(items=items):
            return _found_list(items)
        case Mapping(entries=entries):
            return "a mapping" if entries else "an empty mapping"
    if node.is_empty:
        return "empty"
    is_bare = node.is_plain and (node.text.casefold() in ("true", "false") or number(node.text) is not None)
    return node.text if is_bare else shown(node.text)


def _found_list(items: tuple[Node, ...]) -> str:
    words = ", ".join(item.text for item in items if isinstance(item, Scalar))
    if not items:
        return "an empty list"
    return f"[{words}]" if words.isprintable() and 0 < len(words) < 60 else "a list"


def asks_for_nothing(node: Node, harmless: frozenset[str]) -> bool:
    """Nothing, or only words that change nothing."""
    match node:
        case List(items=items):
            return all(asks_for_nothing(item, harmless) for item in items)
        case Mapping(entries=entries):
            return not entries
    return node.is_empty or node.text.casefold() in ("", *harmless)


def _truth(node: Scalar) -> bool:
    word = node.text.casefold()
    if node.is_plain and word in ("true", "false"):
        return word == "true"
    if word in _LIKE_TRUE:
        raise WrongValue("write true, without quotes")
    if word in _LIKE_FALSE:
        raise WrongValue("write false, without quotes")
    raise WrongValue()


def _number_within(shape: Shape, text: str) -> int | float:
    value = number(text)
    if value is None:
        raise WrongValue("write 0.05 for 5 %" if text.endswith("%") else "")
    if not shape.holds(value) or (shape.kind == "whole number" and value != int(value)):
        raise WrongValue()
    return int(value) if shape.kind == "whole number" else float(value)
