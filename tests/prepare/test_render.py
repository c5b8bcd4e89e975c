"""What is learned of a row: golden masks. What stands between ⟦ and ⟧ is learned."""

from typing import Any

import pytest

from finetuned.core.problems import Problem, StageFailed
from finetuned.prepare.read import Conversation, Row, Text
from finetuned.prepare.render import Example, Renderer, cut
from finetuned.prepare.template import choose_template
from preparing import FORGETS_THOUGHTS

THREE_TURNS = ("add 1 and 2", "gives 3", "and  é😀?", "that is\n\n  é😀 ", "thanks", "bye")


def a_row(*turns: str, system: str | None = None, weights: tuple[int, ...] = (), **extra: Any) -> Row:
    messages = [{"role": "system", "content": system}] if system else []
    messages += [{"role": ("user", "assistant")[i % 2], "content": turn} for i, turn in enumerate(turns)]
    answers = iter(weights or (1,) * len(turns))
    learned = tuple(message["role"] == "assistant" and next(answers) != 0 for message in messages)
    return Row("chats.jsonl:1", Conversation(tuple(messages), learned, **extra), 1)


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
    assert chosen.end_of_turn is None
    assert "is learned after the last answer" in chosen.notices[0]
    example = render(tokenizer, a_row("hi", "ho", "hi", "hum"))
    assert marked(tokenizer, example) == "user: hi\nassistant:⟦ ho⟧\nuser: hi\nassistant:⟦ hum⟧\n⟦<|im_end|>⟧"


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
    monkeypatch.setattr("finetuned.prepare.template._RENDER_SECONDS", 0.2)
    loop = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(StageFailed, match=r"still rendering one conversation after 0 s: does it loop\?") as refused:
        choose_template(None, None, with_template(chatml, loop))
    assert not refused.value.retry
