"""Tool calls as a template takes them: arguments are objects, as transformers wants them; some take only their JSON."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from finetuned.prepare.render.sandbox import Unrenderable

Message = Mapping[str, Any]


def as_template_takes(
    messages: Sequence[Message], render: Callable[[Sequence[Message]], str]
) -> tuple[tuple[Message, ...], str]:
    """The messages in the form that the template takes, and as it spells them. Raises Unrenderable."""
    written = _with_written_arguments(messages)
    if written is None:
        return tuple(messages), render(messages)
    try:
        text = render(messages)
    except Unrenderable as refusal:
        try:
            return written, render(written)
        except Unrenderable:
            raise refusal from None
    if any(str(each) in text and json.dumps(each, ensure_ascii=False) not in text for each in _arguments(messages)):
        return written, render(written)  # It writes an object as Python does.
    return tuple(messages), text


def _arguments(messages: Sequence[Message]) -> list[Mapping[str, Any]]:
    """What the tool calls of a conversation hand over, where that is something."""
    calls = (call for message in messages for call in message.get("tool_calls") or ())
    found = ((call.get("function") or call).get("arguments") for call in calls if isinstance(call, Mapping))
    return [each for each in found if isinstance(each, Mapping) and each]


def _with_written_arguments(messages: Sequence[Message]) -> tuple[Message, ...] | None:
    """The messages with the arguments of tool calls as JSON; None where there are none."""
    if not _arguments(messages):
        return None
    return tuple(
        {**message, "tool_calls": [_written(call) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else message
        for message in messages
    )


def _written(call: Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(call.get("function"), Mapping):
        return {**call, "function": _written(call["function"])}
    if not isinstance(call.get("arguments"), Mapping):
        return call
    return {**call, "arguments": json.dumps(call["arguments"], ensure_ascii=False)}
