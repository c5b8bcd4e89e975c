"""Which chat template renders the rows, how it begins a text, and which tokens end an assistant's turn under it."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from finetuned.core.jobfile.data_rules import is_inline_template
from finetuned.core.problems import StageFailed
from finetuned.host.paths import Unusable
from finetuned.host.sources import BUILT_IN_TEMPLATES, locate_template
from finetuned.prepare.render.sandbox import Unrenderable, render
from finetuned.prepare.render.today import TODAY, asks_for_today, with_fixed_today

_OFFER = "set chat_template: chatml, chat_template: llama3, or the path of a Jinja file"
_BUILT_IN_END = {"chatml": "<|im_end|>", "llama3": "<|eot_id|>"}
_QUESTION, _ANSWER = "finetuned asks", "finetuned answers"
_CHAT = ({"role": "user", "content": _QUESTION}, {"role": "assistant", "content": _ANSWER})
_LONGER = (*_CHAT, {"role": "user", "content": "finetuned goes on"}, {"role": "assistant", "content": "finetuned ends"})
_TOOL = {
    "type": "function",
    "function": {
        "name": "finetuned_tool",
        "description": "finetuned asks this tool",
        "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
    },
}
_CALL = (
    _CHAT[0],
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "type": "function",
                "id": "finetuned",  # Mistral's templates want nine letters.
                "function": {"name": "finetuned_tool", "arguments": {"key": _ANSWER}},
            }
        ],
    },
)
_RESULT = {"role": "tool", "name": "finetuned_tool", "content": "finetuned result", "tool_call_id": "finetuned"}


@dataclass(frozen=True)
class Mark:
    """A token that ends an assistant's turn."""

    text: str
    token_id: int


@dataclass(frozen=True)
class Template:
    text: str
    """Jinja, complete: saved with the model, it renders at inference what was trained on."""
    ends: tuple[Mark, ...]
    """Every mark that ends an assistant's turn, that of a plain last answer first where it has one; none where the
    template ends turns with no token of its own."""
    notices: tuple[str, ...] = ()

    @property
    def fixed(self) -> str:
        """What rows are rendered with: `text`, but for a date, which is always the same."""
        return with_fixed_today(self.text)

    @property
    def end_ids(self) -> tuple[int, ...]:
        return tuple(mark.token_id for mark in self.ends)


def choose_template(asked: str | None, folder: Path | None, tokenizer: Any) -> Template:
    """The template that the job file names, else the model's own. Raises StageFailed (no retry)."""
    notices: list[str] = []
    if asked in BUILT_IN_TEMPLATES:
        text = _built_in(asked, tokenizer, notices)
    elif asked is not None:
        text = asked if is_inline_template(asked) else _read_template(asked, folder)
    else:
        text = _own_template(tokenizer)
    try:
        text = _beginning_once(text, tokenizer, notices)
        ends = _ends_of_turns(with_fixed_today(text), tokenizer, notices)
        notices += _odd_generation_prompt(with_fixed_today(text), tokenizer)
    except Unrenderable as error:
        raise StageFailed(
            f"the chat template cannot render one question and its answer: {error}", retry=False, hint=_OFFER
        ) from error
    if not ends:
        if tokenizer.eos_token_id is None:
            raise StageFailed(
                "neither the chat template nor the tokenizer has a token that ends a turn: "
                "the tuned model would never learn to stop",
                retry=False,
                hint=_OFFER,
            )
        notices.append(
            f"the chat template ends an answer with no token of its own; {tokenizer.eos_token} is learned after the "
            "last answer of each row, so that the model stops"
        )
    if asks_for_today(text):
        notices.append(
            f"the chat template writes the day's date; rows are prepared as of {TODAY:%Y-%m-%d}, whenever they are, "
            "so that they do not change from day to day"
        )
    return Template(text, ends, tuple(notices))


def adds_bos(tokenizer: Any) -> bool:
    """Whether this tokenizer puts a beginning-of-sequence token before plain text."""
    ids = tokenizer("a")["input_ids"]
    return tokenizer.bos_token_id is not None and ids[:1] == [tokenizer.bos_token_id]


def special_ids(tokenizer: Any) -> frozenset[int]:
    """Tokens that are marks rather than text."""
    return frozenset(tokenizer.all_special_ids) | frozenset(tokenizer.added_tokens_decoder)


def _built_in(name: str, tokenizer: Any, notices: list[str]) -> str:
    """A template of our own, fitted to the tokenizer: its BOS where it has one, its EOS where the mark is no token."""
    text = files("finetuned.prepare.render").joinpath("templates", f"{name}.jinja").read_text()
    end = _BUILT_IN_END[name]
    if end in tokenizer.get_vocab():
        end_of_turn = f"'{end}'"
    else:
        end_of_turn = "eos_token"
        notices.append(f"the tokenizer has no {end}; under {name} turns end with {tokenizer.eos_token} instead")
    return text.replace("@BOS@", "bos_token" if adds_bos(tokenizer) else "''").replace("@END_OF_TURN@", end_of_turn)


def _read_template(asked: str, folder: Path | None) -> str:
    try:
        path = locate_template(asked, folder)
        assert path is not None, "built-in templates have no file"
        return path.read_text(encoding="utf-8-sig")
    except (Unusable, OSError, UnicodeDecodeError) as error:
        raise StageFailed(f"chat_template: {error}", retry=False, hint=getattr(error, "hint", _OFFER)) from error


def _own_template(tokenizer: Any) -> str:
    """The model's own; of several named ones the two that transformers would choose from, in one text."""
    own = tokenizer.chat_template or _template_of_a_processor(Path(tokenizer.name_or_path))
    if isinstance(own, Mapping):
        if "default" not in own:
            raise StageFailed(
                f"the model has the chat templates {', '.join(sorted(own)) or 'none'}, and none of them is its default",
                retry=False,
                hint="save the one that is meant to a file and name that in chat_template",
            )
        return _by_tools(own["default"], own["tool_use"]) if "tool_use" in own else str(own["default"])
    if not own:
        raise StageFailed("the model has no chat template, and the data are chats", retry=False, hint=_OFFER)
    return str(own)


def _template_of_a_processor(folder: Path) -> Any:
    """Models that see and read keep their template in a file of its own, which tokenizers do not look at."""
    try:
        return json.loads((folder / "chat_template.json").read_bytes())["chat_template"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return None


def _by_tools(default: str, tool_use: str) -> str:
    """One template that renders as `tool_use` what comes with tools, and as `default` what does not."""
    # The empty strings keep Jinja from trimming white space that the parts have at their ends.
    guard = "{{ '' }}"
    parts = [guard + part.removesuffix("\n") + guard for part in (tool_use, default)]
    return f"{{% if tools is defined and tools is not none %}}{parts[0]}{{% else %}}{parts[1]}{{% endif %}}"


def _beginning_once(template: str, tokenizer: Any, notices: list[str]) -> str:
    """`template`, or one that writes the BOS before it, which the tokenizer puts before plain text at inference.

    Raises StageFailed (no retry) for a template that writes two.
    """
    text = render(tokenizer, with_fixed_today(template), _CHAT)
    bos = tokenizer.bos_token
    if bos is None:
        return template
    ids = tokenizer([text], add_special_tokens=False)["input_ids"][0]
    if ids[:2] == [tokenizer.bos_token_id] * 2:
        raise StageFailed(
            f"the chat template begins a text with {bos} twice, which no model was trained on",
            retry=False,
            hint="take one of them out of the template, and name the file in chat_template",
        )
    if not adds_bos(tokenizer) or bos in text.partition(_QUESTION)[0]:
        return template
    notices.append(
        f"the chat template writes no {bos}, and the tokenizer begins every text with one; the template that rows are "
        "rendered with, and that is saved with the model, writes it"
    )
    return "{{ bos_token }}" + template


def _ends_of_turns(template: str, tokenizer: Any, notices: list[str]) -> tuple[Mark, ...]:
    """The marks after a last answer, after an earlier one, and after a tool call, each once."""
    text = render(tokenizer, template, _CHAT)
    if _ANSWER not in text:
        raise Unrenderable("the answer is not in what it renders")
    last = _mark_behind(text, text.rindex(_ANSWER) + len(_ANSWER), tokenizer)
    earlier, of_call = last, None
    try:
        longer = render(tokenizer, template, _LONGER)
        earlier = _mark_behind(longer, longer.index(_ANSWER) + len(_ANSWER), tokenizer)
        if last is not None and earlier is None:
            notices.append(
                f"the chat template writes {last.text} after the last answer of a chat alone; earlier answers are "
                "learned without an end"
            )
    except (Unrenderable, ValueError):  # ValueError: it leaves earlier answers out.
        pass
    known = [mark for mark in (last, earlier) if mark is not None]
    try:
        call = render(tokenizer, template, _CALL, [_TOOL])
        of_call = _last_mark(call, call.rindex(_ANSWER) + len(_ANSWER), known, tokenizer)
        if of_call is None and not any(mark.text in call[call.rindex(_ANSWER) :] for mark in known):
            answered = render(tokenizer, template, (*_CALL, _RESULT), [_TOOL])
            of_call = _mark_behind(answered, len(call), tokenizer) if answered.startswith(call) else None
    except (Unrenderable, ValueError):  # ValueError: it leaves tool calls out.
        pass
    return tuple(dict.fromkeys(mark for mark in (*known, of_call) if mark is not None))


def _mark_behind(text: str, end: int, tokenizer: Any) -> Mark | None:
    """The first token behind `end`, if it is one of the tokenizer's own marks rather than text."""
    for mark, start in _tokens_behind(text, end, tokenizer):
        is_next = not text[end:start].strip()
        return mark if is_next and mark.token_id in special_ids(tokenizer) else None
    return None


def _last_mark(text: str, end: int, known: Sequence[Mark], tokenizer: Any) -> Mark | None:
    """A mark that ends a tool call and is not `known`: the last one, as a call has marks of its own."""
    if any(mark.text in text[end:] for mark in known):
        return None
    marks = [mark for mark, _ in _tokens_behind(text, end, tokenizer) if mark.token_id in special_ids(tokenizer)]
    return marks[-1] if marks else None


def _tokens_behind(text: str, end: int, tokenizer: Any) -> Iterator[tuple[Mark, int]]:
    """The tokens behind `end` that are not white space, and where they start."""
    encoding = tokenizer([text], add_special_tokens=False).encodings[0]
    for token_id, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
        if start >= end and (spelled := text[start:stop].strip()):
            yield Mark(spelled, token_id), start


def _odd_generation_prompt(template: str, tokenizer: Any) -> Iterable[str]:
    """What a person should know where an answer does not simply go on from the generation prompt."""
    asked, whole = _CHAT[:1], render(tokenizer, template, _CHAT)
    try:
        plain = render(tokenizer, template, asked)
        shown = render(tokenizer, template, asked, add_generation_prompt=True)
    except Unrenderable:
        return
    if not whole.startswith(shown):
        added = shown.removeprefix(plain)
        yield (
            f"the chat template asks for an answer with {added!r}, which it leaves out of answers that are given; "
            "an answer is learned from its text on"
        )
    elif shown == plain and any(character.isalnum() for character in whole[len(shown) : whole.rindex(_ANSWER)]):
        header = whole[len(shown) : whole.rindex(_ANSWER)]
        yield f"the chat template has no generation prompt; {header!r} is learned with each answer"
