"""Alpaca: `instruction`, `input`, `output`, with `system` and a `history` of earlier questions and answers."""

from typing import Any

from finetuned.prepare.read.content import Conversation
from finetuned.prepare.read.formats.values import Malformed, kind_of, optional_string, string, structure


def read_alpaca(row: dict[str, Any]) -> Conversation:
    """As a chat: a question of instruction and input on lines of their own, as LLaMA-Factory joins them."""
    asked = "\n".join(part for part in (string(row, "instruction"), optional_string(row, "input")) if part)
    turns = [*_history(row), ("user", asked), ("assistant", string(row, "output"))]
    if system := optional_string(row, "system"):
        turns.insert(0, ("system", system))
    messages = tuple({"role": role, "content": content} for role, content in turns)
    return Conversation(messages, (True,) * len(messages))


def _history(row: dict[str, Any]) -> list[tuple[str, str]]:
    history = structure("history", row.get("history")) or []
    if not isinstance(history, list):
        raise Malformed(f"history: expected a list of [question, answer], got {kind_of(history)}")
    turns = []
    for index, pair in enumerate(history):
        if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(each, str) for each in pair)):
            raise Malformed(f"history[{index}]: expected [question, answer], got {kind_of(pair)}")
        turns += [("user", pair[0]), ("assistant", pair[1])]
    return turns
