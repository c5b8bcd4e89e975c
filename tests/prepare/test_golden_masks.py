"""Golden masks: what is learned of three turns under the template of each family, stretch by stretch, as text."""

from collections.abc import Sequence
from typing import Any

import pytest

from families import FAMILIES, tokenizer_of
from finetuned.core.problems import Problem
from finetuned.prepare.read import Conversation, Row
from finetuned.prepare.render.renderer import Example, Renderer
from finetuned.prepare.render.template import choose_template

Message = dict[str, Any]


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def assistant(content: str) -> Message:
    return {"role": "assistant", "content": content}


def call(city: str, number: int) -> Message:
    function = {"name": "get_weather", "arguments": {"city": city}}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "id": f"call0000{number}", "function": function}],
    }


def result(content: str, number: int) -> Message:
    return {"role": "tool", "name": "get_weather", "content": content, "tool_call_id": f"call0000{number}"}


SYSTEM: Message = {"role": "system", "content": "say yes, or  say no"}
# Every answer stands in a question, too, and one is the name of a role.
CHAT = (user("say yes"), assistant("yes"), user("no\n\n  é😀 or  yes?"), assistant("no\n\n  é😀"))
CHAT = (*CHAT, user("yes, user"), assistant("user"))
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TOOL_CHAT = (
    *(user("how warm is Oslo?"), call("Oslo", 1), result('{"degrees": 3}', 1), assistant("3 degrees")),
    *(user("and Rome?"), call("Rome", 2), result('{"degrees": 20}', 2), assistant("20 degrees")),
    *(user("thanks"), assistant("bye")),
)

ENDED_BY_IM_END = ["yes<|im_end|>", "no\n\n  é😀<|im_end|>", "user<|im_end|>"]
LEARNED = {
    "chatml": ENDED_BY_IM_END,
    "llama-3": ["yes<|eot_id|>", "no\n\n  é😀<|eot_id|>", "user<|eot_id|>"],
    "llama-3.1": ["yes<|eot_id|>", "no\n\n  é😀<|eot_id|>", "user<|eot_id|>"],
    "mistral-v3": [" yes</s>", " no\n\n  é😀</s>", " user</s>"],
    "mistral-v7": ["yes</s>", "no\n\n  é😀</s>", "user</s>"],
    "gemma-2": ["yes<end_of_turn>", "no\n\n  é😀<end_of_turn>", "user<end_of_turn>"],
    "gemma-3": ["yes<end_of_turn>", "no\n\n  é😀<end_of_turn>", "user<end_of_turn>"],
    "phi-3": ["yes<|end|>", "no\n\n  é😀<|end|>", "user<|end|>"],
    "phi-4": ENDED_BY_IM_END,
    "phi-4-mini": ["yes<|end|>", "no\n\n  é😀<|end|>", "user<|end|>"],
    "qwen-2.5": ENDED_BY_IM_END,
    "qwen-3": ["yes<|im_end|>", "no\n\n  é😀<|im_end|>", "<think>\n\n</think>\n\nuser<|im_end|>"],
}
QWEN_CALLS = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call><|im_end|>',
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call><|im_end|>',
)
LEARNED_WITH_TOOLS = {
    "llama-3.1": [
        '{"name": "get_weather", "parameters": {"city": "Oslo"}}<|eot_id|>',
        "3 degrees<|eot_id|>",
        '{"name": "get_weather", "parameters": {"city": "Rome"}}<|eot_id|>',
        "20 degrees<|eot_id|>",
        "bye<|eot_id|>",
    ],
    "mistral-v3": [
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Oslo"}, "id": "call00001"}]</s>',
        " 3 degrees</s>",
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Rome"}, "id": "call00002"}]</s>',
        " 20 degrees</s>",
        " bye</s>",
    ],
    "qwen-2.5": [QWEN_CALLS[0], "3 degrees<|im_end|>", QWEN_CALLS[1], "20 degrees<|im_end|>", "bye<|im_end|>"],
    "qwen-3": [
        QWEN_CALLS[0],
        "3 degrees<|im_end|>",
        QWEN_CALLS[1],
        "20 degrees<|im_end|>",
        "<think>\n\n</think>\n\nbye<|im_end|>",
    ],
}


def a_row(messages: Sequence[Message], tools: list[Any] | None = None) -> Row:
    return Row("chats.jsonl:1", Conversation(tuple(messages), (True,) * len(messages), tools), 1)


def prepared(family: str, messages: Sequence[Message], tools: list[Any] | None = None, **choices: Any) -> Example:
    tokenizer = tokenizer_of(family)
    [example] = Renderer(tokenizer, choose_template(None, None, tokenizer), **choices).examples(
        [a_row(messages, tools)]
    )
    assert isinstance(example, Example), example
    return example


def stretches(family: str, example: Example) -> list[str]:
    """What is learned, each unbroken stretch by itself."""
    found: list[list[int]] = [[]]
    for token, is_learned in zip(example.input_ids.tolist(), example.is_target.tolist(), strict=True):
        if is_learned:
            found[-1].append(token)
        elif found[-1]:
            found.append([])
    return [tokenizer_of(family).decode(ids) for ids in found if ids]


@pytest.mark.parametrize("family", FAMILIES)
def test_each_answer_is_learned_with_its_end_and_nothing_else_is(family: str) -> None:
    assert stretches(family, prepared(family, CHAT)) == LEARNED[family]


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "gemma-2"])
def test_a_system_message_changes_nothing_of_what_is_learned(family: str) -> None:
    example = prepared(family, (SYSTEM, *CHAT))
    assert stretches(family, example) == LEARNED[family]
    assert SYSTEM["content"] in tokenizer_of(family).decode(example.input_ids)


def test_a_system_message_that_the_template_shows_only_at_inference_is_shown_before_the_last_answer() -> None:
    """Mistral's goes into the last question, as long as that has no answer."""
    tokenizer = tokenizer_of("mistral-v3")
    example = prepared("mistral-v3", (SYSTEM, *CHAT))
    inference = tokenizer.apply_chat_template([SYSTEM, *CHAT[:-1]], tokenize=False, add_generation_prompt=True)
    assert inference.endswith("[INST] say yes, or  say no\n\nyes, user[/INST]")
    assert tokenizer.decode(example.input_ids) == f"{inference} user</s>"


@pytest.mark.parametrize("system", [(), (SYSTEM,)], ids=["alone", "with a system message"])
@pytest.mark.parametrize("family", LEARNED_WITH_TOOLS)
def test_tool_calls_are_learned_and_what_tools_answer_is_not(family: str, system: tuple[Message, ...]) -> None:
    example = prepared(family, (*system, *TOOL_CHAT), [TOOL])
    assert stretches(family, example) == LEARNED_WITH_TOOLS[family]
    assert "The weather in a city" in tokenizer_of(family).decode(example.input_ids)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_learned_goes_back_to_the_answers_and_ends_as_generation_does(family: str) -> None:
    """Row 22 of what people complain about, and row 14."""
    tokenizer = tokenizer_of(family)
    template = choose_template(None, None, tokenizer)
    ends = [mark.text for mark in template.ends]
    answers = [message["content"] for message in CHAT if message["role"] == "assistant"]
    thinks = ["", "", "<think>\n\n</think>\n\n"] if family == "qwen-3" else [""] * 3
    learned = [stretch.lstrip(" ") for stretch in stretches(family, prepared(family, CHAT))]
    assert any(
        learned == [before + answer + end for before, answer in zip(thinks, answers, strict=True)] for end in ends
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_chat_has_the_very_tokens_that_the_tokenizer_gives_at_inference(family: str) -> None:
    tokenizer = tokenizer_of(family)
    template = choose_template(None, None, tokenizer)
    chats = [(CHAT, None), *([(TOOL_CHAT, [TOOL])] if family in LEARNED_WITH_TOOLS else [])]
    for messages, tools in chats:
        inference = tokenizer.apply_chat_template(
            list(messages), tools=tools, chat_template=template.fixed, tokenize=True, return_dict=True
        )
        assert prepared(family, messages, tools).input_ids.tolist() == inference["input_ids"]


@pytest.mark.parametrize("family", [name for name, family in FAMILIES.items() if family.bos])
def test_there_is_exactly_one_beginning_of_sequence_in_a_chat(family: str) -> None:
    """Row 24: the template writes it, and the tokenizer adds one to every plain text."""
    tokenizer = tokenizer_of(family)
    assert tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id
    ids = prepared(family, CHAT).input_ids.tolist()
    assert ids[0] == tokenizer.bos_token_id
    assert ids.count(tokenizer.bos_token_id) == 1


def test_a_system_message_that_a_family_has_no_place_for_is_refused_in_its_templates_words() -> None:
    tokenizer = tokenizer_of("gemma-2")
    [problem] = Renderer(tokenizer, choose_template(None, None, tokenizer)).examples([a_row((SYSTEM, *CHAT))])
    assert isinstance(problem, Problem)
    assert problem.what == "the chat template refuses it: System role not supported"


@pytest.mark.parametrize("family", ["chatml", "llama-3", "phi-3", "phi-4"])
def test_a_tool_call_that_the_template_leaves_out_is_refused(family: str) -> None:
    tokenizer = tokenizer_of(family)
    [problem] = Renderer(tokenizer, choose_template(None, None, tokenizer)).examples([a_row(TOOL_CHAT, [TOOL])])
    assert isinstance(problem, Problem)
    assert "it leaves out the tool call of messages[1]" in problem.what


def test_the_end_after_the_very_last_turn_is_not_learned_where_generation_has_stopped_before() -> None:
    """Phi writes <|end|> after every turn, and once more <|endoftext|>."""
    example = prepared("phi-3", CHAT)
    tail = tokenizer_of("phi-3").convert_ids_to_tokens(example.input_ids.tolist())[-2:]
    assert tail == ["<|end|>", "<|endoftext|>"]
    assert example.is_target[-2:].tolist() == [True, False]


def test_a_mark_that_swallows_the_white_space_of_an_answer_stays_a_header() -> None:
    example = prepared("phi-3", (user("hi"), assistant("\n\n  ho")))
    assert stretches("phi-3", example) == ["ho<|end|>"]


@pytest.mark.parametrize(
    ("chat", "learned"),
    [
        (
            (
                user("one"),
                assistant("<think>\nhm\n</think>\n\ntwo"),
                user("3"),
                assistant("<think>\nha\n</think>\n\n4"),
            ),
            ["two<|im_end|>", "<think>\nha\n</think>\n\n4<|im_end|>"],
        ),
        (
            (user("think"), assistant("think"), user("<think>"), assistant("</think>")),
            ["think<|im_end|>", "<think>\n\n</think>\n\n<|im_end|>"],
        ),
        (
            (user("one"), {**assistant("two"), "reasoning_content": "hm"}, user("3"), assistant("4")),
            ["two<|im_end|>", "<think>\n\n</think>\n\n4<|im_end|>"],
        ),
        (
            (user("one"), {**assistant("two"), "reasoning_content": "two"}),
            ["<think>\ntwo\n</think>\n\ntwo<|im_end|>"],
        ),
    ],
    ids=["left out of earlier turns", "words of the template", "in a field of its own", "saying the same"],
)
def test_thoughts_are_learned_where_the_template_shows_them(chat: tuple[Message, ...], learned: list[str]) -> None:
    assert stretches("qwen-3", prepared("qwen-3", chat)) == learned


def test_roles_to_train_are_learned_without_their_headers() -> None:
    choices = {"roles_to_train": ["user", "tool", "developer"]}  # Who is read as system.
    assert stretches("chatml", prepared("chatml", (SYSTEM, *CHAT), **choices)) == [
        "say yes, or  say no<|im_end|>",
        "say yes<|im_end|>",
        "no\n\n  é😀 or  yes?<|im_end|>",
        "yes, user<|im_end|>",
    ]
    assert stretches("llama-3.1", prepared("llama-3.1", TOOL_CHAT, [TOOL], **choices)) == [
        "how warm is Oslo?<|eot_id|>",
        '{\\"degrees\\": 3}"<|eot_id|>',
        "and Rome?<|eot_id|>",
        '{\\"degrees\\": 20}"<|eot_id|>',
        "thanks<|eot_id|>",
    ]
    assert stretches("mistral-v3", prepared("mistral-v3", CHAT, roles_to_train=["user", "assistant"])) == [
        "say yes[/INST] yes</s>",
        "no\n\n  é😀 or  yes?[/INST] no\n\n  é😀</s>",
        "yes, user[/INST] user</s>",
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_marks_inside_an_answer_are_learned_like_the_rest_of_it(family: str) -> None:
    """Nothing is masked by which token it is: also not where padding is the end of sequence."""
    tokenizer = tokenizer_of(family)
    inside = tokenizer.pad_token or tokenizer.eos_token
    chat = (user("hi"), assistant(f"a {inside}b"), user("hi"), assistant(f"{inside}c"))
    learned = stretches(family, prepared(family, chat))
    assert [f"a {inside}b" in learned[0], f"{inside}c" in learned[1]] == [True, True]
