"""Text of a job file → a tree of nodes that know their lines.

YAML 1.2 or JSON. Scalars keep the text that was written: what it means is decided where the field is known, so that
`no`, `on` or a commit made of digits stay what they are. Nothing is built from tags, anchors or aliases.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)
from ruamel.yaml.reader import ReaderError

LARGEST_TEXT = 256 * 1024
"""Characters. The longest sensible job file is a few kilobytes; reading this much takes about a second."""
MOST_NODES = 10_000
DEEPEST = 20

_SYNTAX_HINTS = {
    "\\t": "indent with spaces, not with tabs",
    "mapping values are not allowed": 'begin each field on a line of its own, and put text that holds ": " in quotes',
    "could not find expected ':'": "write each field as NAME: VALUE",
    "expected ',' or": "a bracket or a comma is missing before this place",
    "<stream end>": "the file ends too early: a bracket or a quote is not closed",
    "end of stream": "the file ends too early: a bracket or a quote is not closed",
    "expected <block end>": "lines that belong together must be indented alike",
    "cannot start any token": "put a value that begins with this character in quotes",
}


class UnreadableText(Exception):
    """The text is no job file at all; says where, what was found and what to do."""

    def __init__(self, line: int | None, what: str, hint: str = ""):
        self.line = line
        self.what = what
        self.hint = hint
        super().__init__(what)


@dataclass(frozen=True)
class Scalar:
    line: int
    text: str
    is_plain: bool
    """Written without quotes."""

    @property
    def is_empty(self) -> bool:
        """YAML's null: nothing, `~` or `null`."""
        return self.is_plain and self.text in ("", "~", "null", "Null", "NULL")


@dataclass(frozen=True)
class List:
    line: int
    items: tuple["Node", ...]


@dataclass(frozen=True)
class Entry:
    line: int
    key: str
    value: "Node"


@dataclass(frozen=True)
class Mapping:
    line: int
    entries: tuple[Entry, ...]


Node = Scalar | List | Mapping


def read_tree(text: str) -> Mapping:
    """The fields of a job file. Raises UnreadableText, and nothing else, whatever the text."""
    if len(text) > LARGEST_TEXT:
        raise UnreadableText(
            None,
            f"is {len(text):,} characters long; a job file has at most {LARGEST_TEXT:,}",
            "data belongs in files of its own, which datasets names",
        )
    root = _root(text)
    if root is None or (isinstance(root, Scalar) and root.is_empty):
        raise UnreadableText(None, "is empty", "a job file needs at least base_model and datasets")
    if not isinstance(root, Mapping):
        kind = "a list" if isinstance(root, List) else "plain text"
        raise UnreadableText(
            root.line, f"is {kind}; expected fields such as base_model: /path/to/model", "write each as NAME: VALUE"
        )
    return root


@dataclass
class _Open:
    """A list or mapping whose end has not come yet; a mapping's children are key, value, key, value, …"""

    line: int
    is_mapping: bool
    children: list[Node]

    def closed(self) -> Node:
        if not self.is_mapping:
            return List(self.line, tuple(self.children))
        pairs = zip(self.children[::2], self.children[1::2], strict=True)
        return Mapping(self.line, tuple(_entry(key, value) for key, value in pairs))


def _root(text: str) -> Node | None:
    """The only document's node. Built from events with a stack of our own: depth never meets Python's limit."""
    outermost = _Open(0, is_mapping=False, children=[])
    open_nodes = [outermost]
    documents = 0
    for count, event in enumerate(_events(text)):
        line = event.start_mark.line + 1
        if count > MOST_NODES:
            raise UnreadableText(line, f"is the {MOST_NODES:,}th value; a job file has fewer")
        match event:
            case DocumentStartEvent():
                documents += 1
                if documents > 1:
                    raise UnreadableText(
                        line, "begins a second document (---); expected one job a file", "drop each job as its own file"
                    )
            case MappingStartEvent() | SequenceStartEvent():
                _refuse_extras(event, line)
                if len(open_nodes) > DEEPEST:
                    raise UnreadableText(line, f"is nested more than {DEEPEST} levels deep; a job file needs 3")
                open_nodes.append(_Open(line, isinstance(event, MappingStartEvent), []))
            case MappingEndEvent() | SequenceEndEvent():
                closed = open_nodes.pop().closed()
                open_nodes[-1].children.append(closed)
            case AliasEvent():
                _refuse_extras(event, line)
            case ScalarEvent():
                _refuse_extras(event, line)
                open_nodes[-1].children.append(_scalar(event, line))
    return outermost.children[0] if outermost.children else None


def _events(text: str) -> Iterator[Any]:
    """ruamel's events, with all that it may raise turned into UnreadableText."""
    try:
        yield from YAML(typ="safe", pure=True).parse(text)
    except ReaderError as error:
        raise UnreadableText(
            text.count("\n", 0, error.position) + 1,
            f"holds the character U+{error.character:04X}, which no text file has",
            "a job file is YAML or JSON text in UTF-8",
        ) from error
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = " ".join(str(error.problem or error.context).split())
        hint = next((hint for sign, hint in _SYNTAX_HINTS.items() if sign in what), "")
        raise UnreadableText(
            mark.line + 1 if mark else None,
            f"cannot be read as YAML: {what}" + (f" (column {mark.column + 1})" if mark else ""),
            hint,
        ) from error
    except Exception as error:
        # The scanner lets Python's own errors through, e.g. OverflowError for "\UFFFFFFFF"; the text is a stranger's.
        raise UnreadableText(None, f"cannot be read as YAML: {error}") from error


def _refuse_extras(event: Any, line: int) -> None:
    if isinstance(event, AliasEvent) or event.anchor is not None:
        sign = f"*{event.anchor}" if isinstance(event, AliasEvent) else f"&{event.anchor}"
        raise UnreadableText(
            line,
            f"holds {sign}: YAML's anchors (&) and aliases (*) are not read here",
            "write the value out, or put text that begins with & or * in quotes",
        )
    if event.tag is not None and event.tag != "!":
        raise UnreadableText(
            line,
            f"holds the tag {event.tag}: YAML's tags (!) are not read here",
            "leave the tag out, or put text that begins with ! in quotes",
        )


def _scalar(event: ScalarEvent, line: int) -> Scalar:
    return Scalar(line, _whole_characters(event.value, line), is_plain=event.style in (None, ""))


def _whole_characters(text: str, line: int) -> str:
    """JSON writes an emoji as two escapes; put such pairs together, and refuse what no path or name can hold."""
    try:
        whole = text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError as error:
        raise UnreadableText(line, "holds half of a character (a lone \\ud800…\\udfff escape)") from error
    odd = next((char for char in whole if ord(char) < 32 and char not in "\t\n"), None)
    if odd is not None:
        raise UnreadableText(line, f"holds the control character U+{ord(odd):04X}, which no field can have")
    return whole


def _entry(key: Node, value: Node) -> Entry:
    if not isinstance(key, Scalar):
        raise UnreadableText(key.line, "has a list or a mapping where a field's name should be")
    return Entry(key.line, key.text, value)
