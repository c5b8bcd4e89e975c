"""Where the turns of a conversation stand in what its template renders.

An answer is what the template adds between the generation prompt and the next turn, up to the mark that ends it. So its
beginning is found by rendering what comes before it, which needs no generation markers in the template. Where a
template rewrites earlier turns, so that a beginning does not begin the whole, a turn is found by marking it: the
conversation is rendered once more with a word put behind (before) the turn's text, and where that word stands, the
text ends (begins). That never takes one occurrence of a text for another.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from finetuned.prepare.render.calls import Message, as_template_takes
from finetuned.prepare.render.sandbox import Unrenderable, render
from finetuned.prepare.render.template import Template, special_ids

_WORD = "Finetuned0Marks0This0Place"
"""Letters and digits, which templates neither trim nor escape."""


@dataclass(frozen=True)
class Span:
    """Characters [start, end) of a rendered text."""

    start: int
    end: int
    is_ended: bool
    """The last of it is a mark that ends turns."""


@dataclass(frozen=True)
class _Place:
    """Where the text of a message stands; what comes before it is its header, what comes behind its end."""

    start: int
    end: int


class RenderedChat:
    """One conversation as its template spells it. Raises Unrenderable, also for a tool call that it leaves out."""

    def __init__(self, tokenizer: Any, template: Template, messages: Sequence[Message], tools: Sequence[Any] | None):
        self._tokenizer, self._fixed, self.tools = tokenizer, template.fixed, tools
        self._ends = [mark.text for mark in template.ends]
        self._last_answer_length: int | None = None
        self.messages, self.text = as_template_takes(messages, self._render)
        self._show_as_at_inference()
        self.rewritten: list[int] = []
        """Messages among the turns that were asked for whose text the template shows in part, or differently."""

    def hidden(self) -> list[tuple[str, str]]:
        """What the row says beside its turns and the template does not show: what kind of thing, and its text."""
        return [(kind, said) for kind, said in self._said() if said not in self.text]

    def beginning(self, count: int) -> str | None:
        """The first `count` messages up to where an answer begins; None where the template does not render so few."""
        return self._render_or_none(self.messages[:count], add_generation_prompt=True)

    def turns(self, wanted: Sequence[bool]) -> dict[int, Span]:
        """The span of each wanted message, without its header, with its end; in order, none within another.

        Raises Unrenderable for one that cannot be found in what the template renders.
        """
        spans: dict[int, Span] = {}
        earliest = 0
        for index in (index for index, is_wanted in enumerate(wanted) if is_wanted):
            is_answer = self.messages[index]["role"] == "assistant"
            spans[index] = self._answer(index, earliest) if is_answer else self._other_turn(index, earliest)
            earliest = spans[index].end
        return spans

    def _said(self) -> list[tuple[str, str]]:
        system = [_content(message) for message in self.messages if message["role"] in ("system", "developer")]
        functions = [tool.get("function", tool) for tool in self.tools or () if isinstance(tool, Mapping)]
        names = [str(each.get("name") or "") for each in functions if isinstance(each, Mapping)]
        said = [*(("system messages", each) for each in system), *(("tools", each) for each in names)]
        return [(kind, each) for kind, each in said if each]

    def _show_as_at_inference(self) -> None:
        """Some templates show the system message only while the last question has no answer yet, as Mistral's do.

        Then the text is what the model is shown at inference, and the last answer behind it.
        """
        last = len(self.messages) - 1
        if last < 1 or self.messages[last]["role"] != "assistant" or not (hidden := self.hidden()):
            return
        before = self.beginning(last)
        if before is None or not any(said in before for _, said in hidden):
            return
        start = self._behind_generation_prompt(last, before, self._place(last))
        self._last_answer_length = len(self.text) - start
        self.text = before + self.text[start:]

    def _answer(self, index: int, earliest: int) -> Span:
        message = self.messages[index]
        before = self.beginning(index) if index else None
        start = len(before) if before is not None and self.text.startswith(before) else -1
        if start >= earliest and not message.get("tool_calls"):
            content = _content(message)
            content_start = start + _blanks(self.text, start)
            content_end = content_start + len(content)
            if self.text.startswith(content, content_start) and (end := self._mark_right_behind(content_end)):
                return Span(start, end, True)
        place = self._place(index)
        if not earliest <= start <= place.start:
            start = self._behind_generation_prompt(index, before, place)
        if not earliest <= start <= place.end:
            raise self._lost(index)
        return self._ended(index, start, place.end)

    def _other_turn(self, index: int, earliest: int) -> Span:
        place = self._place(index)
        if place.start < earliest:
            raise self._lost(index)
        if end := self._mark_right_behind(place.end):
            return Span(place.start, end, True)
        after = self._after(index)
        return Span(place.start, max(place.end, _without_blanks(self.text, place.start, after)), False)

    def _ended(self, index: int, start: int, content_end: int) -> Span:
        """The span of an answer from `start` to its end, which comes behind `content_end`."""
        after = self._after(index)
        is_last = index + 1 == len(self.messages)
        if self.messages[index].get("tool_calls") and after:
            # The arguments of a tool call stand behind what is known of its place, and may say anything.
            end = max((self._end_of_mark(self.text.rfind, mark, content_end, after) for mark in self._ends), default=0)
            end = end or self._mark_right_behind(after)
        else:
            limit = (None if is_last else self._start_of(index + 1)) or len(self.text)
            found = [self._end_of_mark(self.text.find, mark, content_end, limit) for mark in self._ends]
            end = min((each for each in found if each), default=0)
        if end:
            return Span(start, end, True)
        return Span(start, max(content_end, _without_blanks(self.text, start, after)), False)

    def _behind_generation_prompt(self, index: int, before: str | None, place: _Place) -> int:
        """Where answer `index` begins, if not with `before`.

        Behind the message before it and what `before` has behind that message. Of a generation prompt that the template
        leaves out of answers that are given, as much counts as is there; an answer's text begins where it begins.
        """
        here = self._end_of(index - 1) if before is not None else None
        if before is None or here is None:
            return place.start
        asked = [*self.messages[: index - 1], _marked(self.messages[index - 1], at_end=True)]
        there = self._place_of_word(self._render_or_none(asked, add_generation_prompt=True) or "", before)
        if there is None:
            return place.start
        prompt, rest = before[there:], self.text[here:]
        if rest.startswith(prompt):
            return here + len(prompt)
        if _content(self.messages[index]):
            return place.start
        return min(here + self._shared_marks(prompt, rest), place.start)

    def _shared_marks(self, prompt: str, rest: str) -> int:
        """How far two texts begin alike, not counting what does not end in a mark or white space."""
        shared = next((at for at, (a, b) in enumerate(zip(prompt, rest, strict=False)) if a != b), len(prompt))
        encoding = self._tokenizer([prompt], add_special_tokens=False).encodings[0]
        marks = special_ids(self._tokenizer)
        ends = (
            end
            for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True)
            if end <= shared and (token_id in marks or prompt[start:end][-1:].isspace())
        )
        return max(ends, default=0)

    def _after(self, index: int) -> int:
        """Where the turn of a message ends with all that the template puts behind it; 0 where that cannot be told."""
        if index + 1 == len(self.messages):
            return len(self.text)
        after = self._render_or_none(self.messages[: index + 1])
        return len(after) if after is not None and self.text.startswith(after) else 0

    def _mark_right_behind(self, place: int) -> int:
        """The end of a mark that stands at `place`, or behind white space there; 0 where there is none."""
        at = place + _blanks(self.text, place)
        return next((at + len(mark) for mark in self._ends if self.text.startswith(mark, at)), 0)

    @staticmethod
    def _end_of_mark(find: Callable[[str, int, int], int], mark: str, start: int, end: int) -> int:
        """The end of the first (last) mark in a part of the text, as `find` looks for it; 0 where there is none."""
        place = find(mark, start, end)
        return place + len(mark) if place >= 0 else 0

    def _place(self, index: int) -> _Place:
        """Where the text of a message stands, or the name of its last tool call. Raises Unrenderable."""
        message = self.messages[index]
        content = _content(message)
        ends = [self._end_of(index) if content or not message.get("tool_calls") else None]
        if message.get("tool_calls"):
            called = self._end_of_call(index)
            if called is None:
                raise Unrenderable(f"it leaves out the tool call of messages[{index}]")
            ends.append(called)
        known = [end for end in ends if end is not None]
        if not known:
            raise self._lost(index)
        start = self._start_of(index) if content else None
        if start is None:
            shown = _shared_tail(content, self.text[: known[0]]) if ends[0] is not None else 0
            start = known[0] - shown
        if content and self.text[start : known[0]] != content:
            self.rewritten.append(index)
        return _Place(start, max(known))

    def _start_of(self, index: int) -> int | None:
        return self._place_of_word(self._render_with(_marked(self.messages[index], at_end=False), index), self.text)

    def _end_of(self, index: int) -> int | None:
        return self._place_of_word(self._render_with(_marked(self.messages[index], at_end=True), index), self.text)

    @staticmethod
    def _place_of_word(marked: str, text: str) -> int | None:
        """Where the word stands in `marked`, which is `text` with it; None where the template does more than that."""
        place = marked.find(_WORD)
        is_once = place >= 0 and marked[:place] + marked[place + len(_WORD) :] == text
        return place if is_once else None

    def _render_with(self, message: Message, index: int) -> str:
        """The text with another message in place of one, to which the word was added; empty where it is refused."""
        messages = [*self.messages]
        messages[index] = message
        rendered = self._render_or_none(messages) or ""
        if self._last_answer_length is None or not rendered:
            return rendered
        is_last = index + 1 == len(messages)
        length = self._last_answer_length + (len(_WORD) if is_last else 0)
        before = self._render_or_none(messages[:-1], add_generation_prompt=True) or ""
        return before + rendered[len(rendered) - length :]

    def _end_of_call(self, index: int) -> int | None:
        """Where the name of the last tool call of a message ends; None where the template leaves the call out."""
        message = self.messages[index]
        *calls, last = message["tool_calls"]
        function = last.get("function", last)
        marked = {**function, "name": f"{function['name']}{_WORD}"}
        last = {**last, "function": marked} if "function" in last else marked
        at = self._render_with({**message, "tool_calls": [*calls, last]}, index).find(_WORD)
        return at if at >= 0 else None

    def _render(self, messages: Sequence[Message], *, add_generation_prompt: bool = False) -> str:
        return render(self._tokenizer, self._fixed, messages, self.tools, add_generation_prompt=add_generation_prompt)

    def _render_or_none(self, messages: Sequence[Message], *, add_generation_prompt: bool = False) -> str | None:
        try:
            return self._render(messages, add_generation_prompt=add_generation_prompt)
        except Unrenderable:
            return None

    def _lost(self, index: int) -> Unrenderable:
        return Unrenderable(f"it rewrites messages[{index}], so that the turn cannot be found in what it renders")


def _content(message: Message) -> str:
    return str(message.get("content") or "").strip()


def _marked(message: Message, *, at_end: bool) -> Message:
    """`message` with the word right behind its text (right before it), within the white space around that."""
    raw = str(message.get("content") or "")
    at = len(raw.rstrip()) if at_end else len(raw) - len(raw.lstrip())
    return {**message, "content": raw[:at] + _WORD + raw[at:]}


def _blanks(text: str, start: int) -> int:
    """How many characters from `start` on are white space."""
    end = start
    while end < len(text) and text[end].isspace():
        end += 1
    return end - start


def _without_blanks(text: str, start: int, end: int) -> int:
    """Where `text[start:end]` ends without white space; 0 where it is nothing."""
    return start + len(text[start:end].rstrip()) if end > start else 0


def _shared_tail(one: str, other: str) -> int:
    """How many characters two texts end alike in."""
    shared = 0
    for a, b in zip(reversed(one), reversed(other), strict=False):
        if a != b:
            break
        shared += 1
    return shared
