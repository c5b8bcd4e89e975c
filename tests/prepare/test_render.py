"""What is learned of a row: golden masks. What stands between ⟦ and ⟧ is learned."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from families import FAMILIES, build, tokenizer_of
from finetuned.core.problems import Problem, StageFailed
from finetuned.prepare.facts import stop_token_ids
from finetuned.prepare.read import Completion, Conversation, Row, Text, Tokens
from finetuned.prepare.render.openings import open_row
from finetuned.prepare.render.renderer import Example, Renderer, cut
from finetuned.prepare.render.template import choose_template
from finetuned.prepare.render.today import with_fixed_today
from preparing import FORGETS_THOUGHTS

THREE_TURNS = ("add 1 and 2", "gives 3", "and  é😀?", "that is\n\n  é😀 ", "thanks", "bye")


def a_row(*turns: str, system: str | None = None, weights: tuple[int, ...] = (), **extra: Any) -> Row:
    messages = [{"role": "system", "content": system}] if system else []
    messages += [{"role": ("user", "assistant")[i % 2], "content": turn} for i, turn in enumerate(turns)]
    answers = iter(weights or (1,) * len(turns))
    counts = tuple(message["role"] != "assistant" or next(answers) != 0 for message in messages)
    return Row("chats.jsonl:1", Conversation(tuple(messages), counts, **extra), 1)


def render(tokenizer: Any, row: Row, template: str | None = None, **choices: bool) -> Example:
    chosen = choose_template(template, None, tokenizer)
    [example] = Renderer(tokenizer, chosen, **choices).examples([row])
    assert isinstance(example, Example), example
    return example


def marked(tokenizer: Any, example: Example) -> str:
    from finetuned.prepare.preview import _marked

    return _marked(example.input_ids.tolist(), example.is_target.tolist(), tokenizer)


def with_template(tokenizer: Any, template: str | None) -> Any:
    import copy

    other = copy.deepcopy(tokenizer)
    other.chat_template = template
    return other


def test_chatml_learns_each_answer_with_its_end_of_turn(chatml: Any) -> None:
    example = render(chatml, a_row(*THREE_TURNS))
    assert marked(chatml, example) == (
        "<|im_start|>user\nadd 1 and 2<|im_end|>\n<|im_start|>assistant\n⟦gives 3<|im_end|>⟧\n"
        "<|im_start|>user\nand  é😀?<|im_end|>\n<|im_start|>assistant\n⟦that is\n\n  é😀 <|im_end|>⟧\n"
        "<|im_start|>user\nthanks<|im_end|>\n<|im_start|>assistant\n⟦bye<|im_end|>⟧\n"
    )


def test_a_system_message_is_read_and_not_learned(chatml: Any) -> None:
    example = render(chatml, a_row("hi", "ho", system="be kind"))
    assert marked(chatml, example) == (
        "<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n⟦ho<|im_end|>⟧\n"
    )


@pytest.mark.parametrize("system", [None, "be kind"])
def test_llama3_learns_each_answer_with_its_end_of_turn(llama3: Any, system: str | None) -> None:
    example = render(llama3, a_row(*THREE_TURNS, system=system))
    shown = f"<|start_header_id|>system<|end_header_id|>\n\n{system}<|eot_id|>" if system else ""
    assert marked(llama3, example) == (
        f"<|begin_of_text|>{shown}"
        "<|start_header_id|>user<|end_header_id|>\n\nadd 1 and 2<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n⟦gives 3<|eot_id|>⟧"
        "<|start_header_id|>user<|end_header_id|>\n\nand  é😀?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n⟦that is\n\n  é😀<|eot_id|>⟧"
        "<|start_header_id|>user<|end_header_id|>\n\nthanks<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n⟦bye<|eot_id|>⟧"
    )


@pytest.mark.parametrize("system", [None, "be kind"])
def test_a_template_of_plain_marks_learns_each_answer_with_its_end(inst: Any, system: str | None) -> None:
    example = render(inst, a_row(*THREE_TURNS, system=system))
    shown = f"{system}\n\n" if system else ""
    assert marked(inst, example) == (
        f"<s>[INST] {shown}add 1 and 2 [/INST]⟦ gives 3</s>⟧[INST] and  é😀? [/INST]⟦ that is\n\n  é😀 </s>⟧"
        "[INST] thanks [/INST]⟦ bye</s>⟧"
    )


def test_characters_spelled_in_bytes_are_learned_to_the_last_byte(byte_fallback: Any) -> None:
    example = render(byte_fallback, a_row(*THREE_TURNS))
    assert [piece.partition("⟧")[0] for piece in marked(byte_fallback, example).split("⟦")[1:]] == [
        " gives 3</s>",
        " that is\n\n  é😀 </s>",
        " bye</s>",
    ]


@pytest.mark.parametrize("family", ["chatml", "llama3", "inst", "byte_fallback"])
def test_a_row_is_encoded_exactly_as_the_tokenizer_does_at_inference(
    family: str, request: pytest.FixtureRequest
) -> None:
    tokenizer = request.getfixturevalue(family)
    row = a_row(*THREE_TURNS)
    inference = tokenizer.apply_chat_template([dict(m) for m in row.content.messages], tokenize=True)["input_ids"]
    assert render(tokenizer, row).input_ids.tolist() == inference


@pytest.mark.parametrize("family", ["llama3", "inst"])
@pytest.mark.parametrize("template", [None, "chatml", "llama3"])
def test_there_is_exactly_one_beginning_of_sequence(
    family: str, template: str | None, request: pytest.FixtureRequest
) -> None:
    tokenizer = request.getfixturevalue(family)
    ids = render(tokenizer, a_row("hi", "ho"), template).input_ids.tolist()
    assert ids[0] == tokenizer.bos_token_id
    assert ids.count(tokenizer.bos_token_id) == 1


def test_the_end_of_turn_is_learned_also_where_it_is_the_padding_token(chatml: Any) -> None:
    assert chatml.pad_token_id == chatml.eos_token_id
    example = render(chatml, a_row("hi", "ho"))
    assert example.input_ids[example.is_target][-1] == chatml.eos_token_id


def test_what_is_learned_decodes_to_the_answers(llama3: Any) -> None:
    example = render(llama3, a_row(*THREE_TURNS))
    learned = llama3.decode(example.input_ids[example.is_target], clean_up_tokenization_spaces=False)
    assert learned == "gives 3<|eot_id|>that is\n\n  é😀<|eot_id|>bye<|eot_id|>"


def test_a_turn_of_weight_0_is_read_and_not_learned(chatml: Any) -> None:
    example = render(chatml, a_row("a", "b", "c", "d", weights=(0, 1)))
    assert marked(chatml, example).count("⟦") == 1
    assert "⟦d<|im_end|>⟧" in marked(chatml, example)


def test_train_on_inputs_learns_all_but_the_first_token(llama3: Any) -> None:
    example = render(llama3, a_row("hi", "ho"), train_on_inputs=True)
    assert example.is_target.tolist() == [False] + [True] * (example.tokens - 1)


def test_a_template_that_rewrites_earlier_answers_learns_what_it_shows_of_them(chatml: Any) -> None:
    tokenizer = with_template(chatml, FORGETS_THOUGHTS)
    row = a_row("one", "<think>hm</think>two", "three", "<think>ha</think>four")
    assert marked(tokenizer, render(tokenizer, row)) == (
        "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n⟦two<|im_end|>⟧\n"
        "<|im_start|>user\nthree<|im_end|>\n<|im_start|>assistant\n⟦<think>ha</think>four<|im_end|>⟧\n"
    )


def test_a_template_that_hides_its_generation_prompt_learns_from_the_text_of_the_answer_on(chatml: Any) -> None:
    template = chatml.chat_template.replace("assistant\n' }}{% endif %}", "assistant\n<think>\n' }}{% endif %}")
    tokenizer = with_template(chatml, template)
    assert "⟦yes<|im_end|>⟧" in marked(tokenizer, render(tokenizer, a_row("say yes", "yes")))


def test_a_template_that_ends_answers_with_nothing_learns_the_end_of_sequence_after_the_last(chatml: Any) -> None:
    template = "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
    tokenizer = with_template(chatml, template + "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}")
    chosen = choose_template(None, None, tokenizer)
    assert chosen.ends == ()
    assert "is learned after the last answer" in chosen.notices[0]
    example = render(tokenizer, a_row("hi", "ho", "hi", "hum"))
    assert marked(tokenizer, example) == "user: hi\nassistant:⟦ ho⟧\nuser: hi\nassistant:⟦ hum\n<|im_end|>⟧"


def test_a_row_that_the_template_refuses_is_a_problem_in_the_templates_own_words(inst: Any) -> None:
    row = Row("chats.jsonl:7", Conversation(({"role": "assistant", "content": "ho"},), (True,)), 1)
    renderer = Renderer(inst, choose_template(None, None, inst))
    [problem] = renderer.examples([row])
    assert isinstance(problem, Problem)
    assert (problem.place, problem.what) == ("chats.jsonl:7", "the chat template refuses it: roles must alternate")


def test_tools_reach_the_template(chatml: Any) -> None:
    tokenizer = with_template(chatml, "{{ tools[0]['name'] if tools else '' }}" + chatml.chat_template)
    example = render(tokenizer, a_row("hi", "ho", tools=[{"name": "add"}]))
    assert marked(tokenizer, example).startswith("add<|im_start|>user")


def test_a_text_is_learned_whole_but_for_its_first_token_and_ends_its_sequence(llama3: Any) -> None:
    [example] = Renderer(llama3, None).examples([Row("t:1", Text("add 1 and 2"), 1)])
    assert isinstance(example, Example)
    assert marked(llama3, example) == "<|begin_of_text|>⟦add 1 and 2<|end_of_text|>⟧"


def test_a_long_text_is_cut_into_consecutive_parts_that_all_learn_something() -> None:
    import numpy as np

    for tokens in range(2, 40):
        whole = Example("t:1", 1, np.arange(tokens, dtype=np.int32), np.arange(tokens) > 0)
        parts = cut(whole, 8)
        assert np.concatenate([part.input_ids for part in parts]).tolist() == list(range(tokens))
        assert all(part.targets == part.tokens - 1 > 0 for part in parts)
        assert max(part.tokens for part in parts) <= 8


@pytest.mark.parametrize(("name", "end"), [("chatml", "<|im_end|>"), ("llama3", "<|eot_id|>")])
def test_a_built_in_template_ends_turns_with_eos_where_the_tokenizer_lacks_its_mark(
    name: str, end: str, inst: Any
) -> None:
    chosen = choose_template(name, None, inst)
    assert chosen.notices == (f"the tokenizer has no {end}; under {name} turns end with </s> instead",)
    assert "⟦ho</s>⟧" in marked(inst, render(inst, a_row("hi", "ho"), name))


def test_the_built_in_llama3_template_renders_as_llama3s_own(llama3: Any) -> None:
    row = a_row(*THREE_TURNS, system="be kind")
    assert render(llama3, row, "llama3").input_ids.tolist() == render(llama3, row).input_ids.tolist()


def test_a_model_without_a_template_is_refused_with_an_offer(chatml: Any) -> None:
    with pytest.raises(StageFailed, match="has no chat template") as refused:
        choose_template(None, None, with_template(chatml, None))
    assert "chat_template: chatml" in refused.value.hint


def test_a_broken_template_is_refused_in_the_words_of_its_error(chatml: Any) -> None:
    with pytest.raises(StageFailed, match=r"cannot render one question and its answer: .*endfor"):
        choose_template(None, None, with_template(chatml, "{% for m in messages %}{{ m }}"))


def test_a_template_that_loops_is_refused_instead_of_waited_for(chatml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finetuned.prepare.render.sandbox._RENDER_SECONDS", 0.2)
    loop = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(StageFailed, match=r"still rendering one conversation after 0 s: does it loop\?") as refused:
        choose_template(None, None, with_template(chatml, loop))
    assert not refused.value.retry


def test_a_turn_of_weight_0_is_not_learned_under_train_on_inputs_either(chatml: Any) -> None:
    example = render(chatml, a_row("a", "b", "c", "d", weights=(0, 1)), train_on_inputs=True)
    assert marked(chatml, example) == (
        "<|im_start|>⟦user\na<|im_end|>\n<|im_start|>assistant\n⟧b<|im_end|>⟦\n"
        "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\nd<|im_end|>\n⟧"
    )


def test_no_turn_is_taken_for_another_that_says_the_same(chatml: Any) -> None:
    tokenizer = with_template(chatml, FORGETS_THOUGHTS)
    row = a_row("yes yes", "<think>yes</think>yes", "yes", "<think>yes</think>yes", weights=(1, 0))
    assert marked(tokenizer, render(tokenizer, row)) == (
        "<|im_start|>user\nyes yes<|im_end|>\n<|im_start|>assistant\n⟦yes<|im_end|>⟧\n"
        "<|im_start|>user\nyes<|im_end|>\n<|im_start|>assistant\n<think>yes</think>yes<|im_end|>\n"
    )


def test_what_a_template_leaves_out_of_answers_is_told(chatml: Any) -> None:
    tokenizer = with_template(chatml, FORGETS_THOUGHTS)
    renderer = Renderer(tokenizer, choose_template(None, None, tokenizer))
    renderer.examples([a_row("one", "<think>hm</think>two", "three", "four"), a_row("one", "two")])
    assert renderer.notices() == (
        "the chat template leaves out a part of an answer or writes it differently, and what it writes is learned: "
        "1 row, the first of them chats.jsonl:1, messages[1]",
    )


def test_a_template_that_changes_answers_beyond_recognition_is_refused(chatml: Any) -> None:
    with pytest.raises(StageFailed, match="the answer is not in what it renders"):
        choose_template(chatml.chat_template.replace("message['content']", "message['content'] | upper"), None, chatml)


def test_an_answer_that_the_template_writes_otherwise_is_refused_rather_than_guessed_at(chatml: Any) -> None:
    odd = "('affirmative' if 'yes' in message['content'] else message['content'])"
    tokenizer = with_template(chatml, chatml.chat_template.replace("message['content']", odd))
    renderer = Renderer(tokenizer, choose_template(None, None, tokenizer))
    problem, example = renderer.examples([a_row("hi", "yes"), a_row("hi", "no")])
    assert isinstance(example, Example)
    assert isinstance(problem, Problem)
    assert "it rewrites messages[1], so that the turn cannot be found" in problem.what


def test_an_answer_that_the_template_writes_twice_is_refused(chatml: Any) -> None:
    twice = "(message['content'] if 'finetuned' in message['content'] else message['content'] + message['content'])"
    tokenizer = with_template(chatml, chatml.chat_template.replace("message['content']", twice))
    renderer = Renderer(tokenizer, choose_template(None, None, tokenizer))
    [problem] = renderer.examples([a_row("hi", "yes")])
    assert isinstance(problem, Problem)
    assert "the turn cannot be found" in problem.what


def test_the_mask_does_not_depend_on_generation_markers(chatml: Any) -> None:
    """Row 15 of what people complain about: without markers masks are found, and with them they are the same."""
    plain = chatml.chat_template
    body = "message['content'] + '<|im_end|>'"
    with_markers = (
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
        "{% if message['role'] == 'assistant' %}{% generation %}{{ " + body + " }}{% endgeneration %}"
        "{% else %}{{ " + body + " }}{% endif %}{{ '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    row = a_row(*THREE_TURNS, system="be kind")
    tokenizer = with_template(chatml, with_markers)
    example = render(tokenizer, row)
    theirs = tokenizer.apply_chat_template(
        [dict(message) for message in row.content.messages],
        tokenize=True,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    assert example.input_ids.tolist() == theirs["input_ids"]
    assert example.is_target.tolist() == [bool(each) for each in theirs["assistant_masks"]]
    assert marked(chatml, example) == marked(chatml, render(with_template(chatml, plain), row))


@pytest.mark.parametrize(
    ("family", "end"),
    [("gemma-2", "<end_of_turn>"), ("llama-3", "<|eot_id|>"), ("phi-3", "<|end|>"), ("chatml", "<|im_end|>")],
)
def test_every_learned_answer_ends_in_what_generation_stops_on(family: str, end: str, tmp_path: Path) -> None:
    """Rows 14 and 29: also where that is not the tokenizer's own end, and where it is its padding."""
    tokenizer = tokenizer_of(family)
    template = choose_template(None, None, tokenizer)
    stops = stop_token_ids(tmp_path, LlamaConfig(eos_token_id=None), tokenizer, template.end_ids)
    end_id = tokenizer.convert_tokens_to_ids(end)
    assert end_id in stops
    example = render(tokenizer, a_row("hi", "ho", "hi", "hum"))
    ends = [index for index in range(example.tokens) if example.is_target[index : index + 2].tolist() in ([1, 0], [1])]
    assert example.input_ids[ends].tolist() == [end_id, end_id]


def test_ends_that_differ_from_turn_to_turn_are_all_learned_and_stopped_on() -> None:
    """As Llama 3.1's, which hands a tool call over with <|eom_id|>; and one that ends a chat as a whole differently."""
    family = FAMILIES["llama-3.1"]
    tokenizer = build(replace(family, template=family.template.replace("if builtin_tools is defined", "if tools")))
    assert [mark.text for mark in choose_template(None, None, tokenizer).ends] == ["<|eot_id|>", "<|eom_id|>"]
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": "<|eom_id|>"}}}
    messages = (
        {"role": "user", "content": "1 and 2?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "3"},
        {"role": "assistant", "content": "3"},
    )
    tools = [{"type": "function", "function": {"name": "add", "description": "adds", "parameters": {}}}]
    row = Row("chats.jsonl:1", Conversation(messages, (True,) * 4, tools), 1)
    assert [piece.partition("⟧")[0] for piece in marked(tokenizer, render(tokenizer, row)).split("⟦")[1:]] == [
        '{"name": "add", "parameters": {"a": "<|eom_id|>"}}<|eom_id|>',
        "3<|eot_id|>",
    ]
    last = "{% if loop.last %}{{ eos_token }}{% else %}{{ '<|im_end|>' }}{% endif %}"
    template = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}" + last + "{% endfor %}"
    other = build(replace(FAMILIES["qwen-2.5"], template=template, eos="<|endoftext|>"))
    assert [mark.text for mark in choose_template(None, None, other).ends] == ["<|endoftext|>", "<|im_end|>"]


def test_what_follows_an_answer_is_its_end_where_a_template_has_no_other() -> None:
    """As GLM's: an answer ends where <|user|> begins."""
    template = (
        "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
    )
    tokenizer = build(replace(FAMILIES["phi-4-mini"], template=template))
    example = render(tokenizer, a_row("hi", "ho", "hi", "hum"))
    assert marked(tokenizer, example) == ("<|user|>\nhi<|assistant|>\n⟦ho<|user|>⟧\nhi<|assistant|>\n⟦hum<|user|>⟧")


def a_call(**arguments: str) -> Row:
    call = {"type": "function", "function": {"name": "add", "arguments": arguments}}
    messages = (
        {"role": "user", "content": "1 and 2?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "3"},
        {"role": "assistant", "content": "it is 3"},
    )
    return Row("chats.jsonl:1", Conversation(messages, (True,) * 4, None), 1)


CALLS = (
    "{% for c in m.tool_calls or [] %}"
    "{{ '<tool_call>' + c.function.name + c.function.arguments | tojson + '</tool_call>' }}{% endfor %}"
)


def test_a_tool_call_ends_where_the_tools_answer_begins_if_a_template_has_no_other_end() -> None:
    template = (
        "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content }}" + CALLS + "{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
    )
    tokenizer = build(replace(FAMILIES["phi-4-mini"], template=template))
    assert marked(tokenizer, render(tokenizer, a_call(a="1"))) == (
        '<|user|>\n1 and 2?<|assistant|>\n⟦<tool_call>add{"a": "1"}</tool_call><|tool|>⟧\n3'
        "<|assistant|>\n⟦it is 3<|user|>⟧"
    )


def test_a_tool_call_is_learned_whole_also_behind_a_generation_prompt_that_answers_do_not_show(chatml: Any) -> None:
    """As Qwen 3.5's, which opens a thought for every answer and leaves it out of those that are given."""
    template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
        + CALLS
        + "{{ '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
    )
    learned = marked(chatml, render(chatml, a_call(a="1"), template)).split("⟦")[1:]
    assert [piece.partition("⟧")[0] for piece in learned] == [
        '<tool_call>add{"a": "1"}</tool_call><|im_end|>',
        "it is 3<|im_end|>",
    ]


def test_a_template_that_ends_only_the_last_answer_is_told(chatml: Any) -> None:
    template = "{% for m in messages %}{{ '\n' + m.role + ': ' + m.content }}{% endfor %}{{ eos_token }}"
    chosen = choose_template(template, None, chatml)
    assert chosen.notices[0].startswith("the chat template writes <|im_end|> after the last answer of a chat alone")


def test_a_template_without_a_generation_prompt_learns_the_header_that_the_model_must_write(chatml: Any) -> None:
    template = chatml.chat_template.partition("{% if add")[0]
    chosen = choose_template(template, None, chatml)
    assert chosen.notices == (
        "the chat template has no generation prompt; '<|im_start|>assistant\\n' is learned with each answer",
    )
    assert "<|im_end|>\n⟦<|im_start|>assistant\nho<|im_end|>⟧" in marked(
        chatml, render(chatml, a_row("hi", "ho"), template)
    )


def test_a_template_that_writes_no_beginning_of_sequence_is_given_one_where_the_tokenizer_adds_it(llama3: Any) -> None:
    """Row 24: exactly one, in training as at inference with what is saved."""
    template = llama3.chat_template.replace("bos_token + content", "content")
    chosen = choose_template(template, None, llama3)
    assert chosen.notices[0].startswith("the chat template writes no <|begin_of_text|>")
    example = render(llama3, a_row("hi", "ho"), template)
    assert example.input_ids.tolist().count(llama3.bos_token_id) == 1
    saved = with_template(llama3, chosen.text)
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    assert saved.apply_chat_template(messages, return_dict=True)["input_ids"] == example.input_ids.tolist()
    assert example.input_ids[0] == llama3.bos_token_id


def test_a_template_that_writes_two_beginnings_is_refused(llama3: Any) -> None:
    with pytest.raises(StageFailed, match=r"begins a text with <\|begin_of_text\|> twice"):
        choose_template("{{ bos_token }}" + llama3.chat_template, None, llama3)


def test_a_chat_that_brings_a_second_beginning_itself_is_refused() -> None:
    family = replace(
        FAMILIES["llama-3"], template="{{ bos_token }}{% for m in messages %}{{ m.content + eos_token }}{% endfor %}"
    )
    tokenizer = build(family)
    renderer = Renderer(tokenizer, choose_template(None, None, tokenizer))
    [problem] = renderer.examples([a_row("<|begin_of_text|>hi", "ho")])
    assert isinstance(problem, Problem)
    assert problem.what.startswith("begins with <|begin_of_text|> twice")


@pytest.mark.parametrize("content", [Text("<|begin_of_text|>add 1"), Completion("<|begin_of_text|>add", " 1")])
def test_a_text_that_begins_with_the_beginning_of_sequence_has_it_once(llama3: Any, content: Any) -> None:
    [example] = Renderer(llama3, None).examples([Row("t:1", content, 1)])
    assert isinstance(example, Example)
    assert example.input_ids.tolist().count(llama3.bos_token_id) == 1
    assert llama3.decode(example.input_ids) == "<|begin_of_text|>add 1<|end_of_text|>"
    assert example.tokens == len(example.is_target)
    assert not example.is_target[0]


def test_a_completion_is_learned_with_its_end_and_its_prompt_is_not(llama3: Any) -> None:
    [example] = Renderer(llama3, None).examples([Row("t:1", Completion("add 1 and 2 gives", " é 3"), 1)])
    assert isinstance(example, Example)
    assert marked(llama3, example) == "<|begin_of_text|>add 1 and 2 gives⟦ é 3<|end_of_text|>⟧"
    together = llama3("add 1 and 2 gives é 3")["input_ids"]
    assert example.input_ids.tolist() == [*together, llama3.eos_token_id]


def test_a_completion_that_says_nothing_learns_nothing(llama3: Any) -> None:
    [example] = Renderer(llama3, None).examples([Row("t:1", Completion("add", " "), 1)])
    assert isinstance(example, Example)
    assert example.targets == 0


def test_a_tokenizer_that_ends_texts_itself_ends_them_once() -> None:
    from tokenizers import processors

    tokenizer = build(FAMILIES["llama-3"])
    end = processors.TemplateProcessing(
        single="<|begin_of_text|> $A <|end_of_text|>",
        special_tokens=[
            (mark, tokenizer.convert_tokens_to_ids(mark)) for mark in ("<|begin_of_text|>", "<|end_of_text|>")
        ],
    )
    tokenizer.backend_tokenizer.post_processor = end
    rows = [Row("t:1", Text("add 1"), 1), Row("t:2", Completion("add", " 1"), 2)]
    assert [marked(tokenizer, example) for example in Renderer(tokenizer, None).examples(rows)] == [
        "<|begin_of_text|>⟦add 1<|end_of_text|>⟧",
        "<|begin_of_text|>add⟦ 1<|end_of_text|>⟧",
    ]


def test_tokens_from_elsewhere_are_taken_as_they_are(llama3: Any) -> None:
    [example] = Renderer(llama3, None).examples([Row("t:1", Tokens((5, 6, 7), (True, False, True)), 1)])
    assert isinstance(example, Example)
    assert example.input_ids.tolist() == [5, 6, 7]
    assert example.is_target.tolist() == [False, False, True]


@pytest.mark.parametrize("odd", [-1, 100_000])
def test_tokens_that_the_tokenizer_does_not_have_are_a_problem_of_their_row(llama3: Any, odd: int) -> None:
    rows = [Row("t:1", Tokens((5, odd), (False, True)), 1), Row("t:2", Text("add"), 2)]
    problem, example = Renderer(llama3, None).examples(rows)
    assert isinstance(example, Example)
    assert isinstance(problem, Problem)
    assert problem.place == "t:1"
    assert problem.what.startswith(f"input_ids[1] is {odd:,}, and the tokenizer has 0 to ")


def test_a_template_may_stand_in_the_job_file_itself(chatml: Any) -> None:
    template = "{% for m in messages %}{{ m.role + '> ' + m.content + eos_token }}{% endfor %}"
    assert choose_template(template, None, chatml).text == template


def test_of_several_templates_the_one_for_tools_renders_rows_with_tools(chatml: Any) -> None:
    named = {"default": chatml.chat_template, "tool_use": "{{ tools[0]['name'] }}\n" + chatml.chat_template + "\n"}
    tokenizer = with_template(chatml, named)
    chosen = choose_template(None, None, tokenizer)
    saved = with_template(chatml, chosen.text)
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    for tools in (None, [{"name": "add"}]):
        own = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
        assert saved.apply_chat_template(messages, tools=tools, tokenize=False) == own
    example = render(tokenizer, a_row("hi", "ho", tools=[{"name": "add"}]))
    assert marked(tokenizer, example).startswith("add\n<|im_start|>user")


def test_several_templates_without_a_default_are_refused_by_name(chatml: Any) -> None:
    with pytest.raises(StageFailed, match="has the chat templates rag, tool_use, and none of them is its default"):
        choose_template(None, None, with_template(chatml, {"rag": "x", "tool_use": "y"}))


def test_a_date_in_the_template_is_the_same_on_every_day() -> None:
    """Else prepared rows would differ from day to day, and what was prepared yesterday would be taken for today's."""
    tokenizer = tokenizer_of("llama-3.1")
    chosen = choose_template(None, None, tokenizer)
    assert "prepared as of 2024-07-26" in chosen.notices[0]
    assert "Today Date: 26 Jul 2024\n" in marked(tokenizer, render(tokenizer, a_row("hi", "ho")))
    assert chosen.text == tokenizer.chat_template
    spelled = with_fixed_today("{{ strftime_now('%A, %-d %B %Y, %Y-%m-%d %H:%M') }}{{ messages[0].content }}")
    messages = [{"role": "user", "content": ""}]
    assert tokenizer.apply_chat_template(messages, chat_template=spelled, tokenize=False) == (
        "Friday, 26 July 2024, 2024-07-26 00:00"
    )


def test_arguments_of_tool_calls_are_objects_or_their_json_as_the_template_wants_them(chatml: Any) -> None:
    start = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}{% for c in m.tool_calls or [] %}"
    end = "{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    end += "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    call = {"type": "function", "function": {"name": "add", "arguments": {"text": "é", "n": 1}}}
    messages = ({"role": "user", "content": "hi"}, {"role": "assistant", "content": "", "tool_calls": [call]})
    row = Row("chats.jsonl:1", Conversation(messages, (True, True)), 1)
    for arguments in (
        "c.function.arguments | tojson",
        "c.function.name + ' ' + c.function.arguments",
        "c.function.arguments",
    ):
        template = start + "{{ c.function.name }} {{ " + arguments + " }}" + end
        assert '{"text": "é", "n": 1}<|im_end|>⟧' in marked(chatml, render(chatml, row, template))


def test_tools_that_the_template_does_not_show_are_told(chatml: Any) -> None:
    renderer = Renderer(chatml, choose_template(None, None, chatml))
    renderer.examples([a_row("hi", "ho", tools=[{"type": "function", "function": {"name": "add"}}])])
    assert renderer.notices() == (
        "the chat template does not show tools, and will not at inference: 1 row, the first of them chats.jsonl:1",
    )


def test_an_opening_is_what_the_saved_tokenizer_makes_of_its_messages() -> None:
    for name in ("chatml", "llama-3.1", "mistral-v3", "qwen-3"):
        tokenizer = tokenizer_of(name)
        renderer = Renderer(tokenizer, choose_template(None, None, tokenizer))
        opening = open_row(a_row("hi", "ho", "hi", "hum", weights=(0, 1)), renderer)
        assert opening is not None
        assert opening.reference == "hum"
        again = tokenizer.apply_chat_template(
            opening.messages,
            tools=opening.tools,
            chat_template=opening.chat_template,
            add_generation_prompt=True,
            return_dict=True,
        )
        assert again["input_ids"] == opening.prompt_ids
        assert (opening.chat_template is not None) == (name == "llama-3.1")


def test_openings_of_other_rows_have_no_messages(llama3: Any) -> None:
    renderer = Renderer(llama3, None)
    completion = open_row(Row("t:1", Completion("add 1", " gives"), 1), renderer)
    assert completion is not None
    assert (completion.messages, completion.tools, completion.reference) == (None, None, " gives")
    assert completion.prompt_ids == llama3("add 1")["input_ids"]
    ids = tuple(llama3("add 1 gives 2")["input_ids"])
    tokens = open_row(Row("t:1", Tokens(ids, (False, False, False, True, *(False,) * (len(ids) - 4))), 1), renderer)
    assert tokens is not None
    assert (tokens.prompt_ids, tokens.reference) == (list(ids[:3]), llama3.decode(ids[3]))
    assert open_row(Row("t:1", Tokens(ids, (False,) * len(ids)), 1), renderer) is None
