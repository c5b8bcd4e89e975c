"""Rows → token ids and which of them are learned.

A conversation is rendered whole and encoded once, without specials added: exactly what the tokenizer does at
inference. What is learned of it is found by rendering its beginnings: an assistant's turn is what its template adds
between the generation prompt and the next turn, up to the end-of-turn token, included. That needs no generation
markers in the template. Where a template rewrites earlier turns, so that a beginning does not begin the whole, the
turn is found by its text.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from finetuned.core.problems import Problem
from finetuned.prepare.read import Conversation, Row, Text
from finetuned.prepare.template import Template, Unrenderable, render


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
class Opening:
    """A row up to where the model takes over: what it is shown, and what the row says there."""

    prompt: str
    prompt_ids: list[int]
    reference: str


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
        self._roles_to_train = frozenset(roles_to_train)

    def examples(self, rows: Sequence[Row]) -> list[Example | Problem]:
        """One Example a row, or the Problem of a row that the template cannot render."""
        rendered: list[tuple[Row, str, list[tuple[int, int]]]] = []
        answers: dict[str, Example | Problem] = {}
        for row in rows:
            try:
                rendered.append((row, *self._spell(row.content)))
            except Unrenderable as error:
                answers[row.place] = Problem(place=row.place, what=f"the chat template refuses it: {error}")
        for chats in (True, False):
            part = [each for each in rendered if isinstance(each[0].content, Conversation) == chats]
            for (row, text, spans), encoding in zip(part, self._encode([t for _, t, _ in part], chats), strict=True):
                answers[row.place] = self._example(row, text, spans, encoding)
        return [answers[row.place] for row in rows]

    def opening(self, row: Row) -> Opening | None:
        """The first learned answer of a chat with all before it, or the first part of a text; None if it has none."""
        if isinstance(row.content, Text):
            return self._text_opening(row.content.text)
        chat = row.content
        index = next((i for i, learned in enumerate(self._learned(chat)) if learned), None)
        if index is None or not chat.messages[index].get("content"):
            return None
        before = chat.messages[:index]
        try:
            assert self.template is not None, "chats are rendered with a template"
            text = render(self.tokenizer, self.template.text, before, chat.tools, add_generation_prompt=True)
        except Unrenderable:
            return None
        if len(before) == 1:
            shown = str(before[0].get("content"))
        else:
            shown = "\n".join(f"{message['role']}: {message.get('content') or ''}" for message in before)
        ids = list(self._encode([text], True)[0].ids)
        return Opening(shown, ids, str(chat.messages[index]["content"]))

    def _text_opening(self, text: str) -> Opening | None:
        encoding = self._encode([text], False)[0]
        cut = min(len(encoding.ids) // 2, 64)
        if cut == 0:
            return None
        at = encoding.offsets[cut - 1][1]
        return Opening(text[:at], list(encoding.ids[:cut]), text[at:])

    def _encode(self, texts: Iterable[str], are_chats: bool) -> Any:
        batch = list(texts)
        if not batch:
            return []
        return self.tokenizer(batch, add_special_tokens=not are_chats, return_attention_mask=False).encodings

    def _spell(self, content: Conversation | Text) -> tuple[str, list[tuple[int, int]]]:
        """The text of a row and the spans of it that are learned (of a plain text: all)."""
        if isinstance(content, Text):
            return content.text, [(0, len(content.text))]
        assert self.template is not None, "chats are rendered with a template"
        text = render(self.tokenizer, self.template.text, content.messages, content.tools)
        return text, _learned_spans(self.tokenizer, self.template, content, self._learned(content), text)

    def _example(self, row: Row, text: str, spans: list[tuple[int, int]], encoding: Any) -> Example:
        ids = list(encoding.ids)
        if isinstance(row.content, Text):
            end_id = self.tokenizer.eos_token_id
            if text.strip() and end_id is not None and ids[-1:] != [end_id]:
                ids.append(end_id)
            is_target = np.full(len(ids), bool(text.strip()))
        else:
            is_target = _mask(encoding.offsets, spans)
            if self._ends_unmarked(row.content, text):
                ids.append(self._stop_id())
                is_target = np.append(is_target, True)
            if self._train_on_inputs:
                is_target[:] = True
        is_target[:1] = False
        return Example(row.place, row.digest, np.array(ids, dtype=np.int32), is_target)

    def _ends_unmarked(self, content: Conversation, text: str) -> bool:
        """The row ends in an answer that is learned and that no token ends."""
        if not self._learned(content)[-1]:
            return False
        assert self.template is not None
        mark = self.template.end_of_turn
        return mark is None or not text.rstrip().endswith(mark.text)

    def _learned(self, chat: Conversation) -> tuple[bool, ...]:
        """One a message: its turn is learned."""
        turns = zip(chat.messages, chat.counts, strict=True)
        return tuple(counts and message["role"] in self._roles_to_train for message, counts in turns)

    def _stop_id(self) -> int:
        assert self.template is not None
        mark = self.template.end_of_turn
        return int(self.tokenizer.eos_token_id if mark is None else mark.token_id)


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


def _learned_spans(
    tokenizer: Any, template: Template, chat: Conversation, learned: Sequence[bool], text: str
) -> list[tuple[int, int]]:
    """Character spans [start, end) of `text` for each learned turn, in order, end-of-turn mark included."""
    spans: list[tuple[int, int]] = []
    for index, is_learned in enumerate(learned):
        if is_learned:
            earliest = spans[-1][1] if spans else 0
            spans.append(_turn_span(tokenizer, template, chat, text, index, earliest))
    return spans


def _turn_span(
    tokenizer: Any, template: Template, chat: Conversation, text: str, index: int, earliest: int
) -> tuple[int, int]:
    """Span of turn `index`, which does not begin before `earliest`. Raises Unrenderable when it cannot be told."""
    mark = template.end_of_turn.text if template.end_of_turn else None
    content = (chat.messages[index].get("content") or "").strip()
    before = _beginning(tokenizer, template, chat, index, add_generation_prompt=True)
    if before is not None and text.startswith(before) and len(before) >= earliest:
        start = content_end = len(before)
    else:
        start = text.find(content, _behind(chat.messages[:index], text)) if content else -1
        if start < 0:
            raise Unrenderable(f"it rewrites messages[{index}], so that the answer cannot be found in what it renders")
        content_end = start + len(content)
    is_last = index + 1 == len(chat.messages)
    after = text if is_last else _beginning(tokenizer, template, chat, index + 1)
    if after is not None and text.startswith(after) and len(after) > content_end:
        end = len(after)
    elif mark is not None and (found := text.find(mark, content_end)) >= 0:
        end = found + len(mark)
    elif content_end > start:
        end = content_end
    else:
        raise Unrenderable(f"it rewrites messages[{index}], so that its end cannot be found in what it renders")
    end = start + len(text[start:end].rstrip())
    if mark is not None and not text[start:end].endswith(mark) and text.startswith(mark, end):
        end += len(mark)
    return start, end


def _beginning(
    tokenizer: Any, template: Template, chat: Conversation, messages: int, *, add_generation_prompt: bool = False
) -> str | None:
    """The first `messages` of a chat rendered alone; None where the template does not render so few."""
    if messages == 0:
        return None
    try:
        return render(
            tokenizer,
            template.text,
            chat.messages[:messages],
            chat.tools,
            add_generation_prompt=add_generation_prompt,
        )
    except Unrenderable:
        return None


def _behind(messages: Iterable[Any], text: str) -> int:
    """Where the text of `messages` ends in `text`, as far as it is found there."""
    cursor = 0
    for message in messages:
        content = (message.get("content") or "").strip()
        found = text.find(content, cursor)
        cursor = found + len(content) if found >= 0 else cursor
    return cursor


def _mask(offsets: Sequence[tuple[int, int]], spans: Iterable[tuple[int, int]]) -> np.ndarray:
    """bool, one a token: it covers at least one character of a span.

    Tokenizers may leave white space out of offsets, and give the bytes of one character the same ones; so a token
    counts from where it ends at the left edge of a span, and from where it starts at the right.
    """
    starts = [start for start, _ in offsets]
    ends = [end for _, end in offsets]
    mask = np.zeros(len(offsets), dtype=bool)
    for start, end in spans:
        mask[bisect_right(ends, start) : bisect_left(starts, end)] = True
    return mask
