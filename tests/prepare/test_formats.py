"""What rows of each format say, and how those are told that say it wrong."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from finetuned.core.problems import Problem, StageFailed
from finetuned.host.paths import Unusable
from finetuned.prepare.read import Completion, Content, Conversation, Text, Tokens
from reading import contents, look, read_set

USER = {"role": "user", "content": "q"}
ASSISTANT = {"role": "assistant", "content": "a"}


def said(tmp_path: Path, *rows: Any, **fields: object) -> list[Content]:
    return contents(written(tmp_path, *rows), **fields)


def written(tmp_path: Path, *rows: Any) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def chat_of(tmp_path: Path, row: Any, **fields: object) -> Conversation:
    [content] = said(tmp_path, row, **fields)
    assert isinstance(content, Conversation)
    return content


def problem_of(tmp_path: Path, row: Any, **fields: object) -> str:
    [problem] = read_set(written(tmp_path, row), **fields)
    assert isinstance(problem, Problem), problem
    return problem.what


def call(arguments: object) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}


def test_arguments_of_tool_calls_become_objects_as_templates_expect(tmp_path: Path) -> None:
    row = {
        "messages": [
            USER,
            {"role": "assistant", "tool_calls": [call('{"city": "Rome"}'), call({"n": 1}), call("")]},
            {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "sunny"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}, {"name": "g", "parameters": {}}],
    }
    chat = chat_of(tmp_path, row)
    assert [each["function"]["arguments"] for each in chat.messages[1]["tool_calls"]] == [
        {"city": "Rome"},
        {"n": 1},
        {},
    ]
    assert chat.messages[2] == row["messages"][2]
    assert chat.tools == [row["tools"][0], {"type": "function", "function": row["tools"][1]}]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ("city=Rome", 'arguments: expected a JSON object, got the string "city=Rome"'),
        ('{"city": }', "arguments: the string is not JSON: Expecting value at column 10"),
        ('{"a": 1, "a": 2}', 'arguments: the string says the key "a" twice'),
        ([1], "arguments: expected a JSON object, got a list of 1"),
        (None, "arguments: expected a JSON object, got null"),
    ],
)
def test_arguments_that_are_no_json_are_refused(tmp_path: Path, arguments: object, what: str) -> None:
    row = {"messages": [USER, {"role": "assistant", "tool_calls": [call(arguments)]}]}
    assert problem_of(tmp_path, row).startswith(f"messages[1].tool_calls[0].function.{what}")


def test_functions_and_calls_in_their_first_form_become_tools(tmp_path: Path) -> None:
    row = {
        "messages": [
            USER,
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"a": 1}'}},
            {"role": "function", "name": "f", "content": "2"},
        ],
        "functions": [{"name": "f", "parameters": {}}],
    }
    chat = chat_of(tmp_path, row)
    function = {"name": "f", "arguments": {"a": 1}}
    assert chat.messages[1]["tool_calls"] == [{"type": "function", "function": function}]
    assert "function_call" not in chat.messages[1]
    assert chat.messages[2]["role"] == "tool"
    assert chat.tools == [{"type": "function", "function": {"name": "f", "parameters": {}}}]


def test_text_in_parts_is_joined_and_other_parts_are_refused_by_name(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    assert chat_of(tmp_path, {"messages": [{"role": "user", "content": parts}]}).messages[0]["content"] == "a b"
    parts.append({"type": "image_url", "image_url": {"url": "x"}})  # type: ignore[dict-item]
    what = problem_of(tmp_path, {"messages": [{"role": "user", "content": parts}]})
    assert what == 'messages[0].content[2]: expected a part of type text, got "image_url"'


def test_a_developers_message_is_the_system_prompt(tmp_path: Path) -> None:
    chat = chat_of(tmp_path, {"messages": [{"role": "developer", "content": "x"}, USER, ASSISTANT]})
    assert chat.messages[0] == {"role": "system", "content": "x"}


def test_sharegpt_turns_are_a_chat(tmp_path: Path) -> None:
    row = {
        "conversations": [
            {"from": "human", "value": "weather?"},
            {"from": "function_call", "value": '{"name": "f", "arguments": {"city": "Rome"}}'},
            {"from": "observation", "value": "sunny"},
            {"from": "gpt", "value": "It is sunny.", "weight": 0},
        ],
        "system": "be brief",
        "tools": '[{"name": "f", "parameters": {}}]',
    }
    chat = chat_of(tmp_path, row)
    assert [message["role"] for message in chat.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert chat.messages[2]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"city": "Rome"}}
    assert chat.counts == (True, True, True, True, False)
    assert chat.tools == [{"type": "function", "function": {"name": "f", "parameters": {}}}]


@pytest.mark.parametrize(
    ("turn", "what"),
    [
        ({"from": "humen", "value": "x"}, 'conversations[0].from: expected human, gpt, system or tool, got "humen"'),
        ({"from": "human"}, "conversations[0].value: expected a string, got nothing"),
        ({"value": "x"}, "conversations[0] has no `from`"),
        ({"from": "function_call", "value": "f()"}, "conversations[0].value: expected a call as JSON"),
    ],
)
def test_a_wrong_sharegpt_turn_is_told(tmp_path: Path, turn: object, what: str) -> None:
    assert problem_of(tmp_path, {"conversations": [turn]}).startswith(what)


def test_alpaca_rows_are_a_chat(tmp_path: Path) -> None:
    row = {"instruction": "add", "input": "1 2", "output": "3", "system": "be brief", "history": [["hi", "hello"]]}
    chat = chat_of(tmp_path, row)
    assert [(message["role"], message["content"]) for message in chat.messages] == [
        ("system", "be brief"),
        ("user", "hi"),
        ("assistant", "hello"),
        ("user", "add\n1 2"),
        ("assistant", "3"),
    ]
    plain = chat_of(tmp_path, {"instruction": "add", "input": "", "output": "3", "system": None})
    assert [message["content"] for message in plain.messages] == ["add", "3"]


def test_of_prompt_and_completion_only_the_second_counts(tmp_path: Path) -> None:
    assert said(tmp_path, {"prompt": "a", "completion": "b"}) == [Completion("a", "b")]
    chats = [{"prompt": [USER], "completion": [ASSISTANT]}, {"prompt": "q", "completion": [ASSISTANT]}]
    for row in chats:
        chat = chat_of(tmp_path, row)
        assert chat.messages == (USER, ASSISTANT)
        assert chat.counts == (False, True)


def test_a_set_of_prompts_and_completions_holds_text_or_messages_not_both(tmp_path: Path) -> None:
    path = written(tmp_path, {"prompt": "a", "completion": "b"}, {"prompt": [USER], "completion": [ASSISTANT]})
    _, problem = read_set(path)
    assert isinstance(problem, Problem)
    assert problem.what == "holds messages, and the first row of the set text"


@pytest.mark.parametrize(
    ("row", "tokens"),
    [
        ({"input_ids": [5, 6, 7]}, Tokens((5, 6, 7), (True, True, True))),
        ({"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}, Tokens((5, 6, 7), (False, True, True))),
        (
            {"input_ids": [0, 5, 6, 0], "labels": [-100, -100, 6, -100], "attention_mask": [0, 1, 1, 0]},
            Tokens((5, 6), (False, True)),
        ),
        ({"input_ids": [5, 6], "completion_mask": [0, 1]}, Tokens((5, 6), (False, True))),
        ({"input_ids": [5, 6], "assistant_masks": [False, True]}, Tokens((5, 6), (False, True))),
        ({"input_ids": [0, 6], "attention_mask": [False, True]}, Tokens((6,), (True,))),
    ],
)
def test_tokenized_rows_are_taken_as_they_are_but_for_padding(tmp_path: Path, row: object, tokens: Tokens) -> None:
    assert said(tmp_path, row) == [tokens]


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"input_ids": []}, "input_ids: expected token ids, got an empty list"),
        ({"input_ids": [1, -1]}, "input_ids[1]: expected a token id, got -1"),
        ({"input_ids": [1, 2.0]}, "input_ids[1]: expected a whole number, got the number 2.0"),
        ({"input_ids": [1, 2], "labels": [1]}, "labels: expected 2 values, as many as input_ids, got 1"),
        ({"input_ids": [1, 2], "labels": [2, 3]}, "labels[0]: expected 1 (the id there) or -100, got 2"),
        ({"input_ids": [1, 2, 3], "attention_mask": [1, 0, 1]}, "attention_mask[1]: is 0 between tokens"),
        ({"input_ids": [1, 2], "attention_mask": [0, 0]}, "attention_mask: is 0 everywhere"),
    ],
)
def test_a_wrong_tokenized_row_is_told(tmp_path: Path, row: object, what: str) -> None:
    assert problem_of(tmp_path, row).startswith(what)


def test_a_table_may_hold_structures_as_json_text(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    with open(path, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["messages", "tools"])
        table.writerow([json.dumps([USER, ASSISTANT]), ""])
        table.writerow([json.dumps([USER, ASSISTANT]), json.dumps([{"name": "f"}])])
    first, second = contents(path)
    assert isinstance(first, Conversation)
    assert isinstance(second, Conversation)
    assert (first.messages, first.tools) == ((USER, ASSISTANT), None)
    assert second.tools == [{"type": "function", "function": {"name": "f"}}]


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ({"messages": [USER]}, "chat"),
        ({"prompt": "x", "prompt_id": "7", "messages": [USER]}, "chat"),
        ({"conversations": [{"from": "human", "value": "x"}]}, "sharegpt"),
        ({"instruction": "x", "input": "", "output": "y"}, "alpaca"),
        ({"prompt": "x", "completion": "y"}, "prompt_completion"),
        ({"text": "x", "meta": {}}, "text"),
        ({"input_ids": [1], "labels": [1]}, "tokenized"),
    ],
)
def test_the_format_is_seen_from_the_first_row(tmp_path: Path, row: object, kind: str) -> None:
    assert look(written(tmp_path, row)).kind == kind


def test_a_format_that_could_be_two_is_refused_naming_them_and_taken_when_said(tmp_path: Path) -> None:
    path = written(tmp_path, {"instruction": "x", "output": "y", "text": "z"})
    with pytest.raises(Unusable, match=r"alpaca rows .* and text rows") as refusal:
        look(path)
    assert (refusal.value.field, refusal.value.hint) == ("format", "say which: format: alpaca or format: text")
    assert contents(path, format="text") == [Text("z")]


def test_an_unknown_format_is_told_with_what_columns_could_say(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match="its keys are dialogue, id") as refusal:
        look(written(tmp_path, {"dialogue": [USER], "id": 1}))
    assert refusal.value.hint == "if they are chat rows, say columns: {messages: dialogue}"
    with pytest.raises(Unusable) as refusal:
        look(written(tmp_path, {"question": "x", "answer": "y"}))
    assert refusal.value.hint == (
        "if they are prompt_completion rows, say columns: {prompt: question, completion: answer}"
    )


def test_columns_rename_rows_and_what_is_in_them(tmp_path: Path) -> None:
    columns = {"messages": "dialogue", "role": "speaker", "content": "text"}
    row = {"dialogue": [{"speaker": "user", "text": "q"}, {"speaker": "assistant", "text": "a"}], "messages": 7}
    assert chat_of(tmp_path, row, columns=columns).messages == (USER, ASSISTANT)
    swapped = {"prompt": "completion", "completion": "prompt"}
    assert said(tmp_path, {"prompt": "a", "completion": "q"}, columns=swapped) == [Completion("q", "a")]


def test_columns_that_a_format_does_not_have_are_refused_with_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match='"mesages" is nothing that chat rows have') as refusal:
        look(written(tmp_path, {"messages": [USER]}), columns={"mesages": "x"})
    assert (refusal.value.field, refusal.value.hint) == ("columns", "did you mean messages?")


def test_a_column_that_no_row_has_is_an_error_even_where_it_is_optional(tmp_path: Path) -> None:
    rows = written(tmp_path, {"instruction": "x", "output": "y", "system_prompt": "z"})
    with pytest.raises(StageFailed, match="names what no row has") as failure:
        read_set(rows, columns={"system": "systemprompt"})
    assert failure.value.problems[0].place == "columns.system"
    assert chat_of(
        tmp_path, {"instruction": "x", "output": "y", "system_prompt": "z"}, columns={"system": "system_prompt"}
    ).messages[0] == {"role": "system", "content": "z"}
