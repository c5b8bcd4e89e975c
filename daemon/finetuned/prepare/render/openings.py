"""A row up to where the model takes over: what it is asked before and after training, and what exports are tried on."""

from dataclasses import dataclass
from typing import Any

from finetuned.prepare.read import Completion, Conversation, Row, Text, Tokens
from finetuned.prepare.render.renderer import Renderer
from finetuned.prepare.render.sandbox import Unrenderable
from finetuned.prepare.render.spans import RenderedChat
from finetuned.prepare.render.today import asks_for_today


@dataclass(frozen=True)
class Opening:
    """What the model is shown, and what the row says there."""

    prompt: str
    prompt_ids: list[int]
    reference: str
    messages: list[Any] | None = None
    """Of a chat: what its template is given; rendered with a generation prompt it is `prompt_ids` again."""
    tools: list[Any] | None = None
    chat_template: str | None = None
    """What to render `messages` with where that is not the saved template: one whose date stands still."""


def open_row(row: Row, renderer: Renderer) -> Opening | None:
    """A row up to its first learned answer, or the first part of a text; None if it has none."""
    match row.content:
        case Text(text=text):
            return _open_text(text, renderer)
        case Completion(prompt=prompt, completion=completion):
            return _open_completion(prompt, completion, renderer)
        case Tokens() as content:
            return _open_tokens(content, renderer.tokenizer)
        case Conversation() as chat:
            try:
                return _open_chat(chat, renderer)
            except Unrenderable:
                return None


def _open_chat(chat: Conversation, renderer: Renderer) -> Opening | None:
    answers = (
        index
        for index, (message, is_learned) in enumerate(zip(chat.messages, renderer.learned(chat), strict=True))
        if is_learned and message["role"] == "assistant" and message.get("content")
    )
    index = next(answers, None)
    if not index:
        return None
    template = renderer.template
    assert template is not None, "chats are rendered with a template"
    rendered = RenderedChat(renderer.tokenizer, template, chat.messages, chat.tools)
    text = rendered.beginning(index)
    if text is None:
        return None
    before = rendered.messages[:index]
    if len(before) == 1:
        shown = str(before[0].get("content"))
    else:
        shown = "\n".join(f"{message['role']}: {message.get('content') or ''}" for message in before)
    return Opening(
        shown,
        list(renderer.encode([text], True)[0].ids),
        str(chat.messages[index]["content"]),
        [dict(message) for message in before],
        chat.tools,
        template.fixed if asks_for_today(template.text) else None,
    )


def _open_text(text: str, renderer: Renderer) -> Opening | None:
    encoding = renderer.encode([text], False)[0]
    cut = min(len(encoding.ids) // 2, 64)
    if cut == 0:
        return None
    at = encoding.offsets[cut - 1][1]
    return Opening(text[:at], renderer.without_second_bos(list(encoding.ids[:cut])), text[at:])


def _open_completion(prompt: str, completion: str, renderer: Renderer) -> Opening | None:
    ids = renderer.without_second_bos(list(renderer.encode([prompt], False)[0].ids))
    if ids[-1:] == [renderer.tokenizer.eos_token_id]:
        ids.pop()
    return Opening(prompt, ids, completion) if ids and completion.strip() else None


def _open_tokens(content: Tokens, tokenizer: Any) -> Opening | None:
    start = next((index for index, learned in enumerate(content.is_target) if learned and index), 0)
    if start == 0:
        return None
    rest = range(start, len(content.input_ids))
    end = next((index for index in rest if not content.is_target[index]), len(content.input_ids))
    prompt, answer = list(content.input_ids[:start]), list(content.input_ids[start:end])
    return Opening(tokenizer.decode(prompt), prompt, tokenizer.decode(answer, skip_special_tokens=True))
