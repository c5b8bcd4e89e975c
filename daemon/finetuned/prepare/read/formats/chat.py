"""OpenAI's `messages`: tools and tool calls, also in their first form (`functions`), and a `weight` for each turn."""

import difflib
from collections.abc import Sequence
from typing import Any

from finetuned.prepare.read.content import Conversation
from finetuned.prepare.read.formats.values import Malformed, keys_of, kind_of, required, shown, structure

ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython")
# A developer's message is what OpenAI calls the system prompt of later models; no other template knows the word.
SPOKEN_AS = {"developer": "system", "function": "tool"}


def read_chat(row: dict[str, Any]) -> Conversation:
    messages = structure("messages", required(row, "messages"))
    return conversation(read_messages("messages", messages), read_tools(row))


def conversation(messages: Sequence[dict[str, Any]], tools: list[Any] | None) -> Conversation:
    """A Conversation of messages that may carry a `weight`."""
    counts = tuple(message.get("weight", 1) != 0 for message in messages)
    plain = tuple({key: value for key, value in message.items() if key != "weight"} for message in messages)
    return Conversation(plain, counts, tools)


def read_messages(place: str, messages: Any) -> list[dict[str, Any]]:
    """The messages as chat templates expect them, `weight` still in them."""
    if not isinstance(messages, list) or not messages:
        raise Malformed(f"{place}: expected a list of messages, got {kind_of(messages)}")
    return [read_message(f"{place}[{index}]", message) for index, message in enumerate(messages)]


def read_message(place: str, message: Any) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise Malformed(f"{place}: expected an object with role and content, got {kind_of(message)}")
    if "role" not in message:
        hint = "are these ShareGPT's from and value? say format: sharegpt" if "from" in message else ""
        raise Malformed(f"{place} has no `role`; its keys are {keys_of(message)}", hint)
    role = message["role"]
    if role not in ROLES:
        close = difflib.get_close_matches(str(role), ROLES, n=1)
        raise Malformed(
            f"{place}.role: expected system, user, assistant or tool, got {shown(role)}",
            f"did you mean {close[0]}?" if close else "",
        )
    read = _with_tool_calls(place, message) | {"role": SPOKEN_AS.get(role, role)}
    if isinstance(read.get("content"), list):
        read["content"] = _joined(f"{place}.content", read["content"])
    if read.get("content") is None and not read.get("tool_calls"):
        found = "null" if "content" in read else "nothing"
        raise Malformed(f"{place}.content: expected a string, got {found}")
    if not isinstance(read.get("content", ""), str | None):
        raise Malformed(f"{place}.content: expected a string, got {kind_of(read['content'])}")
    if read.get("weight", 1) not in (0, 1):
        raise Malformed(f"{place}.weight: expected 0 or 1, got {shown(read['weight'])}")
    return read


def _joined(place: str, parts: list[Any]) -> str:
    """The text of content in parts, one after another; there is nothing to see or hear for a text model."""
    texts = []
    for index, part in enumerate(parts):
        if not isinstance(part, dict):
            raise Malformed(f"{place}: expected a string, got {kind_of(parts)}")
        if part.get("type", "text") != "text" or not isinstance(part.get("text"), str):
            raise Malformed(f"{place}[{index}]: expected a part of type text, got {shown(part.get('type'))}")
        texts.append(part["text"])
    return "".join(texts)


def read_tools(row: dict[str, Any]) -> list[Any] | None:
    """What the model may call, as JSON schemas of functions; None for nothing."""
    tools, functions = (structure(key, row.get(key)) or None for key in ("tools", "functions"))
    if tools is not None and functions is not None:
        raise Malformed("has `tools` and `functions`; expected one of them")
    if tools is None:
        key, tools = "functions", functions
    else:
        key = "tools"
    if tools is None:
        return None
    if not isinstance(tools, list):
        raise Malformed(f"{key}: expected a list, got {kind_of(tools)}")
    return [_tool(f"{key}[{index}]", tool) for index, tool in enumerate(tools)]


def _tool(place: str, tool: Any) -> Any:
    """A function's schema as templates expect it; one that stands alone gets the frame that OpenAI puts around it."""
    if not isinstance(tool, dict):
        raise Malformed(f"{place}: expected an object, got {kind_of(tool)}")
    if "name" in tool and "function" not in tool and "type" not in tool:
        return {"type": "function", "function": tool}
    return tool


def _with_tool_calls(place: str, message: dict[str, Any]) -> dict[str, Any]:
    """The message with calls in their present form and their arguments as objects."""
    read = dict(message)
    if (legacy := read.pop("function_call", None)) is not None:
        if read.get("tool_calls"):
            raise Malformed(f"{place} has `tool_calls` and `function_call`; expected one of them")
        read["tool_calls"] = [{"type": "function", "function": legacy}]
    calls = structure(f"{place}.tool_calls", read.get("tool_calls"))
    if calls is None:
        return read
    if not isinstance(calls, list):
        raise Malformed(f"{place}.tool_calls: expected a list, got {kind_of(calls)}")
    read["tool_calls"] = [tool_call(f"{place}.tool_calls[{index}]", call) for index, call in enumerate(calls)]
    return read


def tool_call(place: str, call: Any) -> dict[str, Any]:
    """A call with its arguments as an object: templates would quote a string once more."""
    if not isinstance(call, dict):
        raise Malformed(f"{place}: expected an object, got {kind_of(call)}")
    if "function" in call:
        return call | {"function": _function(f"{place}.function", call["function"])}
    return _function(place, call)


def _function(place: str, function: Any) -> dict[str, Any]:
    if not isinstance(function, dict):
        raise Malformed(f"{place}: expected an object with name and arguments, got {kind_of(function)}")
    if not isinstance(function.get("name"), str):
        raise Malformed(f"{place}.name: expected a string, got {kind_of(function.get('name'))}")
    if "arguments" not in function:
        return function
    arguments = function["arguments"]
    if isinstance(arguments, str):
        arguments = structure(f"{place}.arguments", arguments) if arguments.strip() else {}
    if not isinstance(arguments, dict):
        hint = 'OpenAI writes them as JSON text, such as "{\\"city\\": \\"Rome\\"}"'
        raise Malformed(f"{place}.arguments: expected a JSON object, got {kind_of(arguments)}", hint)
    return function | {"arguments": arguments}
