"""What one row says, whatever format and file it came in."""

import hashlib
import json
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from finetuned.host.data.jsontext import Malformed

_SAID = ("role", "content", "name", "reasoning_content", "reasoning", "thinking", "tool_plan")
"""What of a message templates show, besides tool calls; the rest is about it (id, created and the like)."""


@dataclass(frozen=True)
class Conversation:
    messages: tuple[Mapping[str, Any], ...]
    """In the form that chat templates expect, without `weight`; absent keys stay absent."""
    counts: tuple[bool, ...]
    """One a message: False where the row says `weight: 0`. Which roles are learned is not the row's to say."""
    tools: list[Any] | None = None


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class Completion:
    """Plain text of which only the second part is learned."""

    prompt: str
    completion: str


@dataclass(frozen=True)
class Tokens:
    """A row that was tokenized elsewhere; one bool a token: it is learned."""

    input_ids: tuple[int, ...]
    is_target: tuple[bool, ...]


Content = Conversation | Text | Completion | Tokens


@dataclass(frozen=True)
class Row:
    place: str
    """file:line"""
    content: Content
    digest: int
    """64 bits of the hash of the content: equal for rows that say the same, whatever else they carry."""


def digest_of(content: Content) -> int:
    """The same for every model and template, so that each keeps the same rows for evaluation.

    Raises Malformed for values that are no JSON, as a table may hold.
    """
    match content:
        case Text(text):
            said = _canonical(text)
        case Completion(prompt, completion):
            said = _canonical([prompt, completion])
        case Tokens(input_ids, is_target):
            said = b"tokens" + array("q", input_ids).tobytes() + bytes(is_target)
        case Conversation(messages, counts, tools):
            _canonical(messages)  # Also of what is not said: the template gets it.
            said = _canonical([_said(messages), counts, _without_nulls(tools)])
    return int.from_bytes(hashlib.sha256(said).digest()[:8], "big")


def _said(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages without what is only about them; null is the same as nothing, and one call id as good as another."""
    calls_seen: dict[str, int] = {}

    def call_number(call_id: Any) -> int | None:
        return None if call_id is None else calls_seen.setdefault(str(call_id), len(calls_seen))

    said = []
    for message in messages:
        found = {key: message[key] for key in _SAID if message.get(key) is not None}
        if calls := message.get("tool_calls"):
            functions = [call.get("function") or call for call in calls]
            found["tool_calls"] = [
                [call_number(call.get("id")), function.get("name"), function.get("arguments")]
                for call, function in zip(calls, functions, strict=True)
            ]
        if message.get("tool_call_id") is not None:
            found["tool_call_id"] = call_number(message["tool_call_id"])
        said.append(found)
    return said


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_without_nulls(each) for each in value]
    return value


def size_of(content: Content) -> int:
    """About how many characters a row has, to tell large ones from small."""
    match content:
        case Text(text):
            return len(text)
        case Completion(prompt, completion):
            return len(prompt) + len(completion)
        case Tokens(input_ids, _):
            return 4 * len(input_ids)
        case Conversation(messages, _, _):
            return sum(len(message.get("content") or "") for message in messages)


def _canonical(said: Any) -> bytes:
    try:
        return json.dumps(said, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise Malformed(f"holds what is no JSON: {error}") from error
