"""Which chat template renders the rows, and which token ends a turn under it."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from finetuned.core.problems import StageFailed
from finetuned.host.sources import BUILT_IN_TEMPLATES, Unusable, locate_template

_OFFER = "set chat_template: chatml, chat_template: llama3, or the path of a Jinja file"
_BUILT_IN_END = {"chatml": "<|im_end|>", "llama3": "<|eot_id|>"}
_PROBE = ({"role": "user", "content": "finetuned asks"}, {"role": "assistant", "content": "finetuned answers"})


@dataclass(frozen=True)
class Mark:
    """The token that ends an assistant's turn."""

    text: str
    token_id: int


@dataclass(frozen=True)
class Template:
    text: str
    """Jinja, complete: saved with the model, it renders at inference what was trained on."""
    end_of_turn: Mark | None
    """None where the template ends turns with no token of its own."""
    notices: tuple[str, ...] = ()


_RENDER_SECONDS = 60.0
"""Rows take milliseconds; the largest that may be read, 64 MB, some seconds."""


class Unrenderable(Exception):
    """The template cannot render a conversation; the message is the template's own where it has one."""


def choose_template(asked: str | None, folder: Path | None, tokenizer: Any) -> Template:
    """The template that the job file names, else the model's own. Raises StageFailed (no retry)."""
    notices: list[str] = []
    if asked in BUILT_IN_TEMPLATES:
        text = _built_in(asked, tokenizer, notices)
    elif asked is not None:
        text = _read_template(asked, folder)
    else:
        text = _own_template(tokenizer)
    try:
        end_of_turn = _find_end_of_turn(text, tokenizer)
    except Unrenderable as error:
        raise StageFailed(
            f"the chat template cannot render one question and its answer: {error}", retry=False, hint=_OFFER
        ) from error
    if end_of_turn is None:
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
    return Template(text, end_of_turn, tuple(notices))


def render(
    tokenizer: Any, template: str, messages: Any, tools: Any = None, *, add_generation_prompt: bool = False
) -> str:
    """The conversation as the (sandboxed) template spells it.

    Raises Unrenderable, and StageFailed (no retry) for a template that does not come to an end. Main thread only.
    """
    try:
        with _time_limit():
            return tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tools=tools,
                chat_template=template,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
            )
    except _TookTooLong as error:
        raise StageFailed(
            f"the chat template was still rendering one conversation after {_RENDER_SECONDS:.0f} s: does it loop?",
            retry=False,
            hint=_OFFER,
        ) from error
    except Exception as error:  # A template is a stranger's program: it may raise anything.
        raise Unrenderable(f"{str(error).strip() or type(error).__name__}".splitlines()[0][:300]) from error


class _TookTooLong(Exception):
    pass


@contextmanager
def _time_limit() -> Iterator[None]:
    """Raises _TookTooLong in what is inside: the sandbox limits what a template may reach, not for how long it runs."""

    def stop(_number: int, _frame: object) -> None:
        raise _TookTooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, _RENDER_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def adds_bos(tokenizer: Any) -> bool:
    """Whether this tokenizer puts a beginning-of-sequence token before plain text."""
    ids = tokenizer("a")["input_ids"]
    return tokenizer.bos_token_id is not None and ids[:1] == [tokenizer.bos_token_id]


def _built_in(name: str, tokenizer: Any, notices: list[str]) -> str:
    """A template of our own, fitted to the tokenizer: its BOS where it has one, its EOS where the mark is no token."""
    text = files("finetuned.prepare").joinpath("templates", f"{name}.jinja").read_text()
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
    try:
        return tokenizer.get_chat_template()
    except ValueError as error:
        raise StageFailed("the model has no chat template, and the data are chats", retry=False, hint=_OFFER) from error


def _find_end_of_turn(template: str, tokenizer: Any) -> Mark | None:
    """The first token after an answer, if it is one of the tokenizer's own marks rather than text."""
    text = render(tokenizer, template, _PROBE)
    answer_end = text.rfind(_PROBE[1]["content"]) + len(_PROBE[1]["content"])
    if answer_end < len(_PROBE[1]["content"]):
        raise Unrenderable("the answer is not in what it renders")
    marks = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    encoding = tokenizer([text], add_special_tokens=False).encodings[0]
    for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
        if start < answer_end or not text[start:end].strip():
            continue
        is_next = not text[answer_end:start].strip()
        return Mark(text[start:end].strip(), token_id) if is_next and token_id in marks else None
    return None
