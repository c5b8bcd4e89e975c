"""ShareGPT's `conversations`: turns of `from` and `value`, with `system` and `tools` beside them."""

import difflib
from typing import Any

from finetuned.prepare.read.content import Conversation
from finetuned.prepare.read.formats.chat import conversation, read_message, read_tools, tool_call
from finetuned.prepare.read.formats.values import (
    Malformed,
    keys_of,
    kind_of,
    optional_string,
    required,
    shown,
    structure,
)

_ROLES = {
    "system": "system",
    **dict.fromkeys(("human", "user", "prompter"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "bot", "model", "bing", "bard"), "assistant"),
    **dict.fromkeys(("tool", "observation", "function_response", "function", "ipython"), "tool"),
    "function_call": "assistant",
}


def read_sharegpt(row: dict[str, Any]) -> Conversation:
    turns = structure("conversations", required(row, "conversations"))
    if not isinstance(turns, list) or not turns:
        raise Malformed(f"conversations: expected a list of turns, got {kind_of(turns)}")
    messages = [_message(f"conversations[{index}]", turn) for index, turn in enumerate(turns)]
    if system := optional_string(row, "system"):
        if messages[0]["role"] == "system":
            raise Malformed("has a system prompt in `system` and in `conversations`; expected one of them")
        messages.insert(0, {"role": "system", "content": system})
    return conversation(messages, read_tools(row))


def _message(place: str, turn: Any) -> dict[str, Any]:
    if not isinstance(turn, dict):
        raise Malformed(f"{place}: expected an object with from and value, got {kind_of(turn)}")
    if "from" not in turn and "role" in turn:
        return read_message(place, turn)
    if "from" not in turn:
        raise Malformed(f"{place} has no `from`; its keys are {keys_of(turn)}")
    speaker = turn["from"]
    role = _ROLES.get(speaker.lower()) if isinstance(speaker, str) else None
    if role is None:
        close = difflib.get_close_matches(str(speaker), _ROLES, n=1)
        raise Malformed(
            f"{place}.from: expected human, gpt, system or tool, got {shown(speaker)}",
            f"did you mean {close[0]}?" if close else "",
        )
    if not isinstance(turn.get("value"), str):
        found = kind_of(turn["value"]) if "value" in turn else "nothing"
        raise Malformed(f"{place}.value: expected a string, got {found}")
    message: dict[str, Any] = {"role": role, "content": turn["value"]}
    if speaker.lower() == "function_call":
        message = {"role": role, "tool_calls": _calls(f"{place}.value", turn["value"])}
    if "weight" in turn:
        message["weight"] = turn["weight"]
    return read_message(place, message)


def _calls(place: str, value: str) -> list[dict[str, Any]]:
    """A call or a list of them, written as JSON."""
    calls = structure(place, value)
    if isinstance(calls, dict):
        calls = [calls]
    if not isinstance(calls, list) or not calls:
        raise Malformed(f"{place}: expected a call as JSON, with name and arguments, got {kind_of(calls)}")
    read = [tool_call(f"{place}[{index}]", call) for index, call in enumerate(calls)]
    return [call if "function" in call else {"type": "function", "function": call} for call in read]
