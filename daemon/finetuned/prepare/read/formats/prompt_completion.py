"""`prompt` and `completion`, of which only the second is learned: plain text, or messages the way TRL has them."""

from typing import Any

from finetuned.prepare.read.content import Completion, Conversation
from finetuned.prepare.read.formats.chat import conversation, read_messages, read_tools
from finetuned.prepare.read.formats.values import Malformed, kind_of, required, structure


def read_prompt_completion(row: dict[str, Any]) -> Completion | Conversation:
    prompt, completion = (_side(row, key) for key in ("prompt", "completion"))
    if isinstance(prompt, str) and isinstance(completion, str):
        return Completion(prompt, completion)
    asked = read_messages("prompt", _as_messages(prompt, "user"))
    answered = read_messages("completion", _as_messages(completion, "assistant"))
    return conversation([message | {"weight": 0} for message in asked] + answered, read_tools(row))


def is_chat(row: dict[str, Any]) -> bool:
    """Whether such a row is a conversation; a set holds rows of one kind."""
    return any(not isinstance(_side(row, key), str) for key in ("prompt", "completion"))


def _side(row: dict[str, Any], key: str) -> Any:
    value = required(row, key)
    found = structure(key, value) if isinstance(value, str) and value.lstrip().startswith("[{") else value
    if not isinstance(found, str | list):
        raise Malformed(f"{key}: expected a string or a list of messages, got {kind_of(value)}")
    return found


def _as_messages(side: Any, role: str) -> Any:
    return [{"role": role, "content": side}] if isinstance(side, str) else side
