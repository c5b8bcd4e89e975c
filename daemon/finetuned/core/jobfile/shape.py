"""What a field accepts, read off its type: for reading values, for messages, for the reference page and the schema."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from finetuned.core.jobfile.findings import one_of

Kind = Literal["text", "whole number", "number", "truth", "choice", "words", "list", "records", "record", "pairs"]


@dataclass(frozen=True)
class Shape:
    """`at_least` to `below` bound numbers; `fewest` is a list's length; `record` is what one or a list of them holds.

    "words": a word or several; "list": several words, of which one may be written alone.
    """

    kind: Kind
    is_required: bool
    choices: tuple[str, ...] = ()
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    fewest: int = 0
    record: type[BaseModel] | None = None

    def holds(self, number: float) -> bool:
        return not (
            (self.at_least is not None and number < self.at_least)
            or (self.above is not None and number <= self.above)
            or (self.at_most is not None and number > self.at_most)
            or (self.below is not None and number >= self.below)
        )

    @property
    def expected(self) -> str:
        """As it stands after "expected"."""
        match self.kind:
            case "choice":
                return one_of(self.choices)
            case "whole number" | "number":
                return ", ".join([f"a {self.kind}", *self._bounds()])
            case "truth":
                return "true or false"
            case "words":
                return "a word or a list of words"
            case "list":
                return "a list of words"
            case "records":
                return "a list such as [{path: /path/to/rows.jsonl}]"
            case "record":
                return f"settings such as {{{next(iter(self.record.model_fields))}: …}}" if self.record else "settings"
            case "pairs":
                return "names with values, such as {team: support}"
            case "text":
                return "text"

    def _bounds(self) -> list[str]:
        bounds = {"at least": self.at_least, "above": self.above, "at most": self.at_most, "below": self.below}
        return [f"{word} {bound:.12g}" for word, bound in bounds.items() if bound is not None]


@cache
def shapes(model: type[BaseModel]) -> Mapping[str, Shape]:
    """The shape of every field of a record. Raises TypeError for a type or a constraint that nobody taught it."""
    return {name: _shape(info) for name, info in model.model_fields.items()}


def _shape(info: FieldInfo) -> Shape:
    kind, constraints = _parts(info.annotation)
    limits = {"is_required": info.is_required()} | kind
    for constraint in [*constraints, *info.metadata]:
        match constraint:
            case Ge(ge=bound):
                limits["at_least"] = bound
            case Gt(gt=bound):
                limits["above"] = bound
            case Le(le=bound):
                limits["at_most"] = bound
            case Lt(lt=bound):
                limits["below"] = bound
            case MinLen(min_length=length):
                limits["fewest"] = length
            case _:
                raise TypeError(f"no words for the constraint {constraint!r}")
    return Shape(**limits)


def _parts(annotation: Any) -> tuple[dict[str, Any], list[Any]]:
    """What to build a Shape from, and the constraints found inside the annotation. `X | None` is X."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        kind, constraints = _parts(arguments[0])
        return kind, [*constraints, *(each for info in arguments[1:] for each in info.metadata)]
    if origin in (Union, UnionType):
        members = [member for member in arguments if member is not type(None)]
        if len(members) == 1:
            return _parts(members[0])
        if members == [str, tuple[str, ...]]:
            return {"kind": "words"}, []
    if origin is Literal:
        return {"kind": "choice", "choices": arguments}, []
    if origin is tuple and arguments[0] is not str:
        return {"kind": "records", "record": arguments[0]}, []
    if annotation == tuple[str, ...]:
        return {"kind": "list"}, []
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {"kind": "record", "record": annotation}, []
    if annotation == dict[str, str]:
        return {"kind": "pairs"}, []
    simple: dict[Any, Kind] = {str: "text", int: "whole number", float: "number", bool: "truth"}
    if annotation in simple:
        return {"kind": simple[annotation]}, []
    raise TypeError(f"no words for the type {annotation!r}")
