"""Where each value of a job file stands in its text, so that a change touches nothing else: no comment, no quote."""

from collections.abc import Iterator
from dataclasses import dataclass

from ruamel.yaml import YAML
from ruamel.yaml.events import (
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)


@dataclass(frozen=True)
class Leaf:
    start: int
    end: int
    text: str
    is_plain: bool


@dataclass(frozen=True)
class Items:
    start: int
    end: int
    is_flow: bool
    """Written in brackets, as JSON is."""
    items: tuple["Span", ...]


@dataclass(frozen=True)
class Fields:
    start: int
    end: int
    is_flow: bool
    entries: tuple[tuple[str, "Span"], ...]


Span = Leaf | Items | Fields


def read_spans(text: str) -> Span | None:
    """The root value; None for a text without one. Raises whatever ruamel does for a text that is not YAML."""
    events = iter(YAML(typ="safe", pure=True).parse(text))
    for event in events:
        if isinstance(event, ScalarEvent | MappingStartEvent | SequenceStartEvent):
            return _span(event, events, text)
    return None


def _span(event: Event, events: Iterator[Event], text: str) -> Span:
    start, end = event.start_mark.index, event.end_mark.index
    match event:
        case MappingStartEvent():
            children, end = _children(event, events, text)
            pairs = zip(children[::2], children[1::2], strict=True)
            entries = tuple(_entry(key, value, text) for key, value in pairs)
            if entries and not event.flow_style:
                end = entries[-1][1].end
            return Fields(start, end, bool(event.flow_style), entries)
        case SequenceStartEvent():
            children, end = _children(event, events, text)
            return Items(start, end, bool(event.flow_style), tuple(children))
        case ScalarEvent():
            # A block scalar (| or >) ends behind its last line break, which is not part of what is replaced.
            return Leaf(start, start + len(text[start:end].rstrip()), event.value, event.style in (None, ""))
    raise ValueError(f"{type(event).__name__} where a value should be (an alias?)")


def _entry(key: Span, value: Span, text: str) -> tuple[str, Span]:
    """An empty value stands right behind its colon, not where the next thing begins."""
    if isinstance(value, Leaf) and value.start == value.end:
        colon = text.index(":", key.end)
        if text[key.end : colon].strip():
            raise ValueError("a field without a colon")
        value = Leaf(colon + 1, colon + 1, value.text, value.is_plain)
    return key.text if isinstance(key, Leaf) else "", value


def _children(
    parent: MappingStartEvent | SequenceStartEvent, events: Iterator[Event], text: str
) -> tuple[list[Span], int]:
    children: list[Span] = []
    for event in events:
        if isinstance(event, MappingEndEvent | SequenceEndEvent):
            # A block ends where the next thing begins; what belongs to it ends with its last child.
            end = event.end_mark.index if parent.flow_style or not children else children[-1].end
            return children, end
        children.append(_span(event, events, text))
    raise ValueError("the text ends inside a list or a mapping")
