"""Rows → token ids and which of them are learned.

A conversation is rendered whole and encoded once, without specials added: exactly what the tokenizer does at
inference. What is learned of it are its answers with their ends (see spans.py). Everything is decided by where a token
stands, never by which token it is: an end of turn, a padding token or a BOS inside an answer is learned like any other.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from finetuned.core.problems import Problem
from finetuned.prepare.read import Completion, Conversation, Row, Text, Tokens
from finetuned.prepare.read.formats.chat import SPOKEN_AS
from finetuned.prepare.render.sandbox import Unrenderable
from finetuned.prepare.render.spans import RenderedChat, Span
from finetuned.prepare.render.template import Template, adds_bos, special_ids


@dataclass(frozen=True)
class Example:
    """What the model sees of one row (of a part of it, in pretraining)."""

    source: str
    digest: int
    input_ids: np.ndarray
    """int32, one a token."""
    is_target: np.ndarray
    """bool, one a token: token i is learned, predicted from those before it; never true of the first."""

    @property
    def tokens(self) -> int:
        return len(self.input_ids)

    @property
    def targets(self) -> int:
        return int(self.is_target.sum())


@dataclass(frozen=True)
class _Written:
    """A row as text."""

    row: Row
    text: str
    learned: tuple[tuple[int, int], ...]
    """Characters [start, end)."""
    never_learned: tuple[tuple[int, int], ...] = ()
    """Also not where everything else is."""
    closing_id: int | None = None
    """A token that is learned behind the text, unless it ends in that."""


@dataclass
class _Oddities:
    """What templates do to rows that a person should know: how often, and where first."""

    counts: dict[str, int] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)

    def note(self, what: str, place: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1
        self.places.setdefault(what, place)

    def told(self) -> tuple[str, ...]:
        return tuple(
            f"{what}: {'1 row' if count == 1 else f'{count:,} rows'}, the first of them {self.places[what]}"
            for what, count in self.counts.items()
        )


class Renderer:
    """Renders, encodes and masks rows with one tokenizer and, for chats, one template."""

    def __init__(
        self,
        tokenizer: Any,
        template: Template | None,
        *,
        train_on_inputs: bool = False,
        roles_to_train: Sequence[str] = ("assistant",),
    ):
        self.tokenizer = tokenizer
        self.template = template
        self._train_on_inputs = train_on_inputs
        self._roles_to_train = frozenset(SPOKEN_AS.get(role, role) for role in roles_to_train)
        self._marks = special_ids(tokenizer)
        self._bos_id: int | None = tokenizer.bos_token_id if adds_bos(tokenizer) else None
        self._oddities = _Oddities()

    def examples(self, rows: Sequence[Row]) -> list[Example | Problem]:
        """One Example a row, or the Problem of a row that cannot be rendered or holds odd tokens."""
        written: list[_Written] = []
        answers: dict[int, Example | Problem] = {}
        for index, row in enumerate(rows):
            if isinstance(row.content, Tokens):
                answers[index] = self._given(row, row.content)
                continue
            try:
                written.append(self._write(row))
            except Unrenderable as error:
                answers[index] = Problem(place=row.place, what=f"the chat template refuses it: {error}")
        for are_chats in (True, False):
            part = [each for each in written if isinstance(each.row.content, Conversation) == are_chats]
            encodings = self.encode([each.text for each in part], are_chats)
            encoded = iter([self._example(each, encoding) for each, encoding in zip(part, encodings, strict=True)])
            for index, row in enumerate(rows):
                if index not in answers and isinstance(row.content, Conversation) == are_chats:
                    answers[index] = next(encoded)
        return [answers[index] for index in range(len(rows))]

    def notices(self) -> tuple[str, ...]:
        """What the template did to the rows so far that a person should know."""
        return self._oddities.told()

    def encode(self, texts: Iterable[str], are_chats: bool) -> Any:
        """The encodings of texts, as the tokenizer gives them at inference."""
        batch = list(texts)
        if not batch:
            return []
        return self.tokenizer(batch, add_special_tokens=not are_chats, return_attention_mask=False).encodings

    def without_second_bos(self, ids: list[int]) -> list[int]:
        """A text that begins with the BOS itself needs none from the tokenizer."""
        return ids[1:] if self._bos_id is not None and ids[:2] == [self._bos_id] * 2 else ids

    def learned(self, chat: Conversation) -> tuple[bool, ...]:
        """One a message: its turn is learned."""
        turns = zip(chat.messages, chat.counts, strict=True)
        return tuple(counts and message["role"] in self._roles_to_train for message, counts in turns)

    def _write(self, row: Row) -> _Written:
        match row.content:
            case Text(text=text):
                is_said = bool(text.strip())
                return _Written(row, text, ((0, len(text)),) if is_said else (), closing_id=self._eos_id(is_said))
            case Completion(prompt=prompt, completion=completion):
                text = prompt + completion
                is_said = bool(completion.strip())
                learned = ((len(prompt), len(text)),) if is_said else ()
                return _Written(row, text, learned, closing_id=self._eos_id(is_said))
            case Conversation() as chat:
                return self._write_chat(row, chat)
            case Tokens():
                raise AssertionError("rows of tokens are not written")

    def _eos_id(self, is_said: bool) -> int | None:
        return self.tokenizer.eos_token_id if is_said else None

    def _write_chat(self, row: Row, chat: Conversation) -> _Written:
        assert self.template is not None, "chats are rendered with a template"
        rendered = RenderedChat(self.tokenizer, self.template, chat.messages, chat.tools)
        learned = self.learned(chat)
        never = tuple(self._train_on_inputs and not counts for counts in chat.counts)
        turns = rendered.turns([a or b for a, b in zip(learned, never, strict=True)])
        self._note_oddities(row, chat, rendered)
        spans = {index: turn for index, turn in turns.items() if learned[index]}
        last = spans.get(len(learned) - 1)
        is_open = last is not None and not last.is_ended and chat.messages[-1]["role"] == "assistant"
        if is_open and last is not None:
            # With the white space that the template has behind it: the model must write that, too, to come to its end.
            spans[len(learned) - 1] = Span(last.start, len(rendered.text), False)
        return _Written(
            row,
            rendered.text,
            tuple((span.start, span.end) for span in spans.values()),
            tuple((turn.start, turn.end) for index, turn in turns.items() if never[index]),
            self._stop_id() if is_open else None,
        )

    def _note_oddities(self, row: Row, chat: Conversation, rendered: RenderedChat) -> None:
        if rendered.rewritten:
            place = f"{row.place}, messages[{rendered.rewritten[0]}]"
            self._oddities.note(
                "the chat template leaves out a part of an answer or writes it differently, and what it writes is "
                "learned",
                place,
            )
        for kind in sorted({kind for kind, _ in rendered.hidden()}):
            self._oddities.note(f"the chat template does not show {kind}, and will not at inference", row.place)

    def _example(self, written: _Written, encoding: Any) -> Example | Problem:
        row = written.row
        ids, offsets = list(encoding.ids), encoding.offsets
        is_target = _mask(offsets, written.learned, ids, self._marks)
        if isinstance(row.content, Text):
            is_target[:] = bool(written.learned)
        if written.closing_id is not None and ids[-1:] != [written.closing_id]:
            ids.append(written.closing_id)
            is_target = np.append(is_target, True)
        elif written.closing_id is not None:
            is_target[-1] = True  # The tokenizer's own end has no place in the text.
        if self._train_on_inputs and (written.learned or isinstance(row.content, Conversation)):
            is_target[:] = True
            is_target[_mask(offsets, written.never_learned, ids, self._marks).nonzero()] = False
        if self._bos_id is not None:
            if isinstance(row.content, Conversation) and (odd := self._odd_beginning(ids)):
                return Problem(place=row.place, what=odd)
            if not isinstance(row.content, Conversation):
                kept = self.without_second_bos(ids)
                ids, is_target = kept, is_target[len(ids) - len(kept) :]
        is_target[:1] = False
        return Example(row.place, row.digest, np.array(ids, dtype=np.int32), is_target)

    def _odd_beginning(self, ids: Sequence[int]) -> str:
        """What is wrong with the BOS of a rendered chat, if anything."""
        bos = self.tokenizer.bos_token
        if self._bos_id not in ids:
            return f"the chat template writes no {bos} before it, and does before other rows"
        if ids[1:2] == [self._bos_id]:
            return f"begins with {bos} twice: the chat template writes it, and so does the row"
        return ""

    def _given(self, row: Row, content: Tokens) -> Example | Problem:
        """A row that was tokenized elsewhere: as it is."""
        size = len(self.tokenizer)
        odd = next((place for place, token in enumerate(content.input_ids) if not 0 <= token < size), None)
        if odd is not None:
            return Problem(
                place=row.place,
                what=f"input_ids[{odd}] is {content.input_ids[odd]:,}, and the tokenizer has 0 to {size - 1:,}",
                hint="tokenize with the tokenizer of base_model",
            )
        is_target = np.array(content.is_target, dtype=bool)
        if self._train_on_inputs:
            is_target[:] = True
        is_target[:1] = False
        return Example(row.place, row.digest, np.array(content.input_ids, dtype=np.int32), is_target)

    def _stop_id(self) -> int:
        assert self.template is not None
        ends = self.template.end_ids
        return ends[0] if ends else int(self.tokenizer.eos_token_id)


def cut(example: Example, max_tokens: int) -> list[Example]:
    """`example` in consecutive parts of at most `max_tokens` (two or more); none is so short that it learns nothing."""
    parts: list[Example] = []
    start = 0
    while start < example.tokens:
        end = min(start + max_tokens, example.tokens)
        if example.tokens - end == 1 and end - start > 2:
            end -= 1
        is_target = example.is_target[start:end].copy()
        is_target[:1] = False
        parts.append(Example(example.source, example.digest, example.input_ids[start:end], is_target))
        start = end
    return parts


def _mask(
    offsets: Sequence[tuple[int, int]], spans: Iterable[tuple[int, int]], ids: Sequence[int], marks: Collection[int]
) -> np.ndarray:
    """bool, one a token: it covers at least one character of a span.

    Tokenizers may leave white space out of offsets, and give the bytes of one character the same ones; so a token
    counts from where it ends at the left edge of a span, and from where it starts at the right. A mark that swallows
    white space behind it, as Phi's do, belongs to what comes before.
    """
    starts = [start for start, _ in offsets]
    ends = [end for _, end in offsets]
    mask = np.zeros(len(ids), dtype=bool)
    for start, end in spans:
        first = bisect_right(ends, start)
        if first < len(starts) and starts[first] < start and ids[first] in marks:
            first += 1
        mask[first : bisect_left(starts, end)] = True
    return mask
