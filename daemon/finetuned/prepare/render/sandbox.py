"""Conversations through a chat template: a stranger's program, which may reach nothing and must come to an end."""

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from finetuned.core.problems import StageFailed

_RENDER_SECONDS = 60.0
"""Rows take milliseconds; the largest that may be read, 64 MB, some seconds."""


class Unrenderable(Exception):
    """The template cannot render a conversation; the message is the template's own where it has one."""


def render(
    tokenizer: Any,
    template: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Any] | None = None,
    *,
    add_generation_prompt: bool = False,
) -> str:
    """The conversation as the (sandboxed) template spells it.

    Raises Unrenderable, and StageFailed (no retry) for a template that does not come to an end. Main thread only.
    """
    try:
        with _time_limit():
            return tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tools=list(tools) if tools is not None else None,
                chat_template=template,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
            )
    except _TookTooLong as error:
        raise StageFailed(
            f"the chat template was still rendering one conversation after {_RENDER_SECONDS:.0f} s: does it loop?",
            retry=False,
            hint="set chat_template: chatml, chat_template: llama3, or the path of a Jinja file",
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
