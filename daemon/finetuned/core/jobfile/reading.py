"""The tree of a job file → a value for each field, with aliases, foreign values and typing mistakes answered."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel

from finetuned.core.jobfile import text
from finetuned.core.jobfile.findings import Findings, one_of, shown
from finetuned.core.jobfile.later import ANYTHING, NotYet
from finetuned.core.jobfile.shape import Shape, shapes
from finetuned.core.jobfile.text import Node, Scalar
from finetuned.core.jobfile.values import WrongValue, asks_for_nothing, found, number, single_value
from finetuned.core.jobfile.words import Words

_WORDS_WITH_COMMAS = re.compile(r"[\w.-]+(\s*,\s*[\w.-]+)+")
_LONGEST_NAME = 80
_MOST_SUGGESTIONS = 20
"""Each takes milliseconds, and a stranger's file may hold thousands of unknown names."""


@dataclass(frozen=True)
class Given:
    """What a person gave for one field. `name` as written. `value` None: auto, or refused already."""

    name: str
    line: int
    value: Any


@dataclass(frozen=True)
class Form:
    """How a record may be written: its fields, the words that may stand for them, and the forms inside it."""

    record: type[BaseModel]
    words: Words
    rules: Callable[[Mapping[str, Given], Findings], None] | None = None
    inner: Mapping[str, "Form"] = field(default_factory=dict)


def read_record(form: Form, tree: text.Mapping, findings: Findings, path: str = "") -> dict[str, Given]:
    """The fields given in `tree`; problems and notices go to `findings`. `path`: before each name."""
    return _RecordReader(form, findings, path).read(tree)


class _RecordReader:
    def __init__(self, form: Form, findings: Findings, path: str):
        self.form = form
        self.words = form.words
        self.shapes = shapes(form.record)
        self.findings = findings
        self.path = path
        self.given: dict[str, Given] = {}
        self.unknown_names = 0
        self.excused: set[str] = set()
        """Required fields whose name seems to be there, mistyped."""

    def read(self, tree: text.Mapping) -> dict[str, Given]:
        first_lines: dict[str, int] = {}
        for entry in tree.entries:
            if entry.key in first_lines:
                what = f"is given twice, first in line {first_lines[entry.key]}"
                self.findings.refuse(entry.line, self.path + entry.key, what, "keep one of them")
                continue
            first_lines[entry.key] = entry.line
            self._read_entry(entry)
        self._refuse_missing(tree.line)
        if self.form.rules:
            self.form.rules(self.given, self.findings)
        return self.given

    def _read_entry(self, entry: text.Entry) -> None:
        meant = self._meant(entry)
        if meant is None:
            return
        name, node = meant
        value = self._value(name, entry, node)
        self._keep(name, Given(self.path + entry.key, entry.line, value))

    def _keep(self, name: str, new: Given) -> None:
        old = self.given.get(name)
        if old is None or old.value is None:
            self.given[name] = new
        elif new.value is None:
            return
        elif new.value == old.value:
            self.findings.notice(new.line, new.name, f"says the same as {old.name} in line {old.line}")
        else:
            what = f"and {old.name} in line {old.line} are two names of {name}, with different values"
            self.findings.refuse(new.line, new.name, what, "keep one of them")

    def _refuse_missing(self, line: int) -> None:
        for name, shape in self.shapes.items():
            if shape.is_required and name not in self.given and name not in self.excused:
                where = line if self.path else None
                self.findings.refuse(where, self.path + name, f"is missing; expected {shape.expected}")

    # Which field a name means.

    def _meant(self, entry: text.Entry) -> tuple[str, Node] | None:
        """The field and its value in our words; None when there is nothing left to read."""
        key, node = entry.key, entry.value
        empty_means = self.words.ambiguous_when_empty.get(key)
        if empty_means and isinstance(node, Scalar) and node.is_empty:
            name = self.words.other_names[key]
            self._refuse(entry, f"has no value: {empty_means}", f"write {name}: {self._choices(name)}")
            return None
        if key in self.shapes:
            return self._as_fraction(key, entry)
        if key in self.words.other_names:
            name = self.words.other_names[key]
            self._notice(entry, f"is read as {name}")
            return self._as_fraction(name, entry)
        if key in self.words.reworded:
            return self._reworded(entry)
        if not_yet := self.words.not_yet_about(key):
            self._answer_not_yet(entry, not_yet)
            return None
        self._refuse_unknown(entry)
        return None

    def _as_fraction(self, name: str, entry: text.Entry) -> tuple[str, Node]:
        """`warmup_steps: 0.1` is a common way to write a ratio."""
        other = self.words.fractions.get(name)
        part = number(entry.value.text) if isinstance(entry.value, Scalar) else None
        if other is None or part is None or not 0 < part < 1:
            return name, entry.value
        self._notice(entry, f"is {part:g}, less than one step; it is read as {other}")
        return other, entry.value

    def _reworded(self, entry: text.Entry) -> tuple[str, Node] | None:
        reworded = self.words.reworded[entry.key]
        node = entry.value
        if isinstance(node, Scalar) and node.is_empty:
            return None
        text = node.text.casefold() if isinstance(node, Scalar) else ""
        if text in reworded.values:
            word = reworded.values[text]
            self._notice(entry, f"is read as {reworded.field}: {word}")
            return reworded.field, Scalar(node.line, word, is_plain=True)
        if isinstance(node, Scalar) and (not_yet := self._value_not_yet(reworded.field, node)):
            self._refuse_value_not_yet(entry, node, not_yet)
        else:
            expected = one_of(tuple(reworded.values))
            self._refuse(entry, f"is {found(node)}; expected {expected}", f"or write {reworded.field} instead")
        return None

    def _answer_not_yet(self, entry: text.Entry, not_yet: NotYet) -> None:
        if not_yet.harmless == ANYTHING:
            self._notice(entry, not_yet.what)
        elif asks_for_nothing(entry.value, not_yet.harmless):
            self._notice(entry, "asks for nothing that would not happen anyway")
        else:
            what = f"is {found(entry.value)}: known, but this version cannot do it yet ({not_yet.what})"
            self._refuse(entry, what, not_yet.instead)

    def _refuse_unknown(self, entry: text.Entry) -> None:
        self.unknown_names += 1
        known = [*self.shapes, *self.words.other_names, *self.words.reworded, *self.words.not_yet]
        asked = entry.key[:_LONGEST_NAME].casefold().replace("-", "_")
        likely = get_close_matches(asked, known, n=1, cutoff=0.7) if self.unknown_names <= _MOST_SUGGESTIONS else []
        if not likely:
            self._refuse(entry, "is not a known field", "docs/job-file.md and finetunectl schema list them all")
            return
        name = self.words.other_names.get(likely[0], likely[0])
        self.excused.add(name)
        self._refuse(entry, f"is not a known field; did you mean {name}?")

    # What a value means.

    def _value(self, name: str, entry: text.Entry, node: Node) -> Any:
        """In the field's Python type; None for auto, and for what was refused."""
        shape = self.shapes[name]
        if isinstance(node, Scalar):
            if node.is_empty:
                if shape.is_required:
                    self._refuse(entry, f"has no value; expected {shape.expected}")
                return None
            in_our_words = self._in_our_words(name, entry, node)
            if in_our_words is None or self._is_auto(shape, in_our_words):
                return None
            node = in_our_words
        match shape.kind:
            case "records":
                return self._records(name, entry, node, shape)
            case "pairs":
                return self._pairs(entry, node, shape)
            case "record":
                return self._record(self.form.inner[name], node, self.path + entry.key, shape.expected)
            case "words":
                return self._words(entry, node, shape)
            case "list":
                words = self._words(entry, node, shape)
                return (words,) if isinstance(words, str) else words
            case _:
                return self._scalar(entry, node, shape)

    def _is_auto(self, shape: Shape, node: Scalar) -> bool:
        return node.text == "auto" and not shape.is_required and "auto" not in shape.choices

    def _in_our_words(self, name: str, entry: text.Entry, node: Scalar) -> Scalar | None:
        if not_yet := self._value_not_yet(name, node):
            self._refuse_value_not_yet(entry, node, not_yet)
            return None
        text = node.text.casefold()
        choices = self.shapes[name].choices
        word = text if text in choices else self.words.other_values.get(name, {}).get(text)
        if word is None or word == node.text:
            return node
        self._notice(entry, f"is {shown(node.text)}, read as {word}")
        return Scalar(node.line, word, is_plain=True)

    def _value_not_yet(self, name: str, node: Scalar) -> NotYet | None:
        return self.words.values_not_yet.get(name, {}).get(node.text.casefold())

    def _refuse_value_not_yet(self, entry: text.Entry, node: Scalar, not_yet: NotYet) -> None:
        what = f"is {found(node)}: known, but this version cannot do it yet ({not_yet.what})"
        self._refuse(entry, what, not_yet.instead)

    def _scalar(self, entry: text.Entry, node: Node, shape: Shape) -> Any:
        if not isinstance(node, Scalar):
            self._refuse_value(entry, node, shape)
            return None
        try:
            return single_value(shape, node)
        except WrongValue as wrong:
            self._refuse_value(entry, node, shape, wrong.hint)
            return None

    def _words(self, entry: text.Entry, node: Node, shape: Shape) -> str | tuple[str, ...] | None:
        if isinstance(node, Scalar):
            if not _WORDS_WITH_COMMAS.fullmatch(node.text):
                return node.text
            self._notice(entry, "has commas and is read as a list")
            return tuple(word.strip() for word in node.text.split(","))
        items = node.items if isinstance(node, text.List) else ()
        texts = [item.text for item in items if isinstance(item, Scalar) and not item.is_empty]
        if "" in texts or not texts or len(texts) < len(items):
            self._refuse_value(entry, node, shape)
            return None
        return "all-linear" if texts == ["all-linear"] else tuple(texts)

    def _pairs(self, entry: text.Entry, node: Node, shape: Shape) -> dict[str, str] | None:
        if not isinstance(node, text.Mapping):
            self._refuse_value(entry, node, shape)
            return None
        pairs: dict[str, str] = {}
        for each in node.entries:
            name = f"{self.path}{entry.key}.{each.key}"
            if each.key in pairs:
                self.findings.refuse(each.line, name, "is given twice", "keep one of them")
            elif isinstance(each.value, Scalar):
                pairs[each.key] = "" if each.value.is_empty else each.value.text
            else:
                self.findings.refuse(each.line, name, f"is {found(each.value)}; expected text")
        return pairs

    def _records(self, name: str, entry: text.Entry, node: Node, shape: Shape) -> tuple[BaseModel, ...] | None:
        items = node.items if isinstance(node, text.List) else (node,)
        if len(items) < shape.fewest:
            self._refuse_value(entry, node, shape)
            return None
        if not isinstance(node, text.List):
            self._notice(entry, "is one file; it is read as a list of one")
        form = self.form.inner[name]
        records = [self._listed_record(form, item, f"{entry.key}[{n}]") for n, item in enumerate(items)]
        whole = tuple(record for record in records if record is not None)
        return whole if len(whole) == len(records) else None

    def _listed_record(self, form: Form, node: Node, name: str) -> BaseModel | None:
        if isinstance(node, Scalar) and not node.is_empty:
            first = next(iter(form.record.model_fields))
            node = text.Mapping(node.line, (text.Entry(node.line, first, node),))
        return self._record(form, node, name, "{path: /path/to/rows.jsonl}")

    def _record(self, form: Form, node: Node, name: str, expected: str) -> BaseModel | None:
        if not isinstance(node, text.Mapping):
            self.findings.refuse(node.line, name, f"is {found(node)}; expected {expected}")
            return None
        problems_before = self.findings.problem_count
        given = read_record(form, node, self.findings, f"{name}.")
        if self.findings.problem_count > problems_before:
            return None
        return form.record.model_validate(values_of(given))

    # How it is said.

    def _choices(self, name: str) -> str:
        return one_of(self.shapes[name].choices)

    def _refuse_value(self, entry: text.Entry, node: Node, shape: Shape, hint: str = "") -> None:
        self._refuse(entry, f"is {found(node)}; expected {shape.expected}", hint)

    def _refuse(self, entry: text.Entry, what: str, hint: str = "") -> None:
        self.findings.refuse(entry.line, self.path + entry.key, what, hint)

    def _notice(self, entry: text.Entry, what: str) -> None:
        self.findings.notice(entry.line, self.path + entry.key, what)


def values_of(given: Mapping[str, Given]) -> dict[str, Any]:
    """What the record is built from: fields left to their defaults are left out."""
    return {name: each.value for name, each in given.items() if each.value is not None}
