"""Rows from files: what is read, and how what cannot be is told."""

import json
import time
from pathlib import Path

import pytest

from finetuned.core.problems import Problem, StageFailed
from finetuned.prepare.read import Conversation, Row, read_rows
from reading import look, read_set, texts


def read(path: Path, content: bytes, kind: str = "text") -> list[Row | Problem]:
    path = path.with_name(f"{path.name}.jsonl")
    path.write_bytes(content)
    return read_set(path, format=kind)


def problem_of(path: Path, row: object) -> Problem:
    """The problem of a row behind a sound one, which says what kind of rows they are."""
    line = row if isinstance(row, bytes) else json.dumps(row).encode()
    sound = b'{"messages": [{"role": "user", "content": "x"}]}\n'
    _, problem = read(path, sound + line, "chat")
    assert isinstance(problem, Problem), problem
    return problem


def test_byte_order_mark_carriage_returns_and_blank_lines_say_nothing(tmp_path: Path) -> None:
    plain = read(tmp_path / "plain", b'{"text": "a"}\n{"text": "b"}\n')
    dressed = read(tmp_path / "dressed", b'\xef\xbb\xbf{"text": "a"}\r\n\r\n{"text": "b"}\r\n\n  \n')
    assert texts(plain) == texts(dressed) == ["a", "b"]
    assert [row.digest for row in plain] == [row.digest for row in dressed]


def test_a_line_separator_inside_a_string_does_not_end_the_row(tmp_path: Path) -> None:
    rows = read(tmp_path / "data", '{"text": "a\u2028b\u2029c\x85d"}\n{"text": "e"}'.encode())
    assert texts(rows) == ["a\u2028b\u2029c\x85d", "e"]


def test_places_count_every_line_blank_ones_too(tmp_path: Path) -> None:
    rows = read(tmp_path / "data", b'{"text": "a"}\n\n{"text": "b"}')
    assert [row.place.rpartition("/")[2] for row in rows] == ["data.jsonl:1", "data.jsonl:3"]


def test_keys_that_a_message_lacks_stay_absent(tmp_path: Path) -> None:
    calls = [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {"b": 2}}]
    row = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": calls}]}
    [read_row] = read(tmp_path / "data", json.dumps(row).encode(), "chat")
    assert isinstance(read_row, Row)
    assert isinstance(read_row.content, Conversation)
    assert read_row.content.messages == tuple(row["messages"])


def test_weight_is_obeyed_and_hidden_from_the_template(tmp_path: Path) -> None:
    row = {
        "messages": [
            {"role": "user", "content": "x", "weight": 1},
            {"role": "assistant", "content": "y", "weight": 0},
            {"role": "assistant", "content": "z", "weight": 1},
        ]
    }
    [read_row] = read(tmp_path / "data", json.dumps(row).encode(), "chat")
    assert isinstance(read_row, Row)
    assert isinstance(read_row.content, Conversation)
    assert read_row.content.counts == (True, False, True)
    assert all("weight" not in message for message in read_row.content.messages)


def test_rows_that_say_the_same_have_the_same_digest_whatever_else_they_carry(tmp_path: Path) -> None:
    content = b'{"id": 1, "messages": [{"role": "user", "content": "x"}]}\n'
    other = b'{"messages": [{"content": "x", "role": "user"}], "id": 2}\n'
    different = b'{"messages": [{"content": "y", "role": "user"}]}\n'
    first, second, third = read(tmp_path / "data", content + other + different, "chat")
    assert first.digest == second.digest != third.digest


def a_digest(tmp_path: Path, *messages: dict[str, object], tools: object = None) -> int:
    row = {"messages": [{"role": "user", "content": "q"}, *messages]} | ({"tools": tools} if tools else {})
    [read_row] = read(tmp_path / str(time.monotonic_ns()), (json.dumps(row) + "\n").encode(), "chat")
    return read_row.digest


def test_what_is_only_about_a_message_and_nulls_make_no_other_row(tmp_path: Path) -> None:
    plain = {"role": "assistant", "content": "a"}
    about = {"id": "m-1", "created": 1700000000, "name": None, "tool_calls": None}
    assert a_digest(tmp_path, plain) == a_digest(tmp_path, plain | about) == a_digest(tmp_path, plain | {"id": 2})
    for key in ("name", "reasoning_content", "thinking"):
        assert len({a_digest(tmp_path, plain | {key: value}) for value in (None, "x", "y")}) == 3


def test_tool_calls_say_the_same_under_other_ids_but_not_with_other_arguments_or_links(tmp_path: Path) -> None:
    def called(ids: tuple[str, str], answers: tuple[str, str], city: object = "Rome", strict: object = None) -> int:
        calls = [
            {"id": call_id, "type": "function", "function": {"name": "weather", "arguments": {"city": city}}}
            for call_id in ids
        ]
        results = [{"role": "tool", "tool_call_id": call_id, "content": "sunny"} for call_id in answers]
        tools = [{"type": "function", "function": {"name": "weather", "strict": strict}}]
        return a_digest(tmp_path, {"role": "assistant", "content": None, "tool_calls": calls}, *results, tools=tools)

    first = called(("a", "b"), ("a", "b"))
    assert first == called(("call_7", "call_9"), ("call_7", "call_9"))
    assert first != called(("a", "b"), ("b", "a"))
    assert first != called(("a", "b"), ("a", "b"), city=None)
    assert first != called(("a", "b"), ("a", "b"), strict=True)


def test_a_null_in_a_tool_says_nothing(tmp_path: Path) -> None:
    bare, strict = ([{"type": "function", "function": {"name": "f"} | more}] for more in ({}, {"strict": None}))
    assert a_digest(tmp_path, tools=bare) == a_digest(tmp_path, tools=strict) != a_digest(tmp_path)


def test_the_template_gets_nulls_and_all_keys_as_they_are_written(tmp_path: Path) -> None:
    message = {"role": "user", "content": "q", "id": "m-1", "name": None}
    [row] = read(tmp_path / "data", (json.dumps({"messages": [message]}) + "\n").encode(), "chat")
    assert row.content.messages == (message,)


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"text": "x"}, "has no `messages`; its keys are text"),
        ({"messages": "x"}, 'messages: expected a list of messages, got the string "x"'),
        ({"messages": []}, "messages: expected a list of messages, got an empty list"),
        ({"messages": ["x"]}, 'messages[0]: expected an object with role and content, got the string "x"'),
        ({"messages": [{"content": "x"}]}, "messages[0] has no `role`; its keys are content"),
        (
            {"messages": [{"role": "asistant", "content": "x"}]},
            'messages[0].role: expected system, user, assistant or tool, got "asistant"',
        ),
        ({"messages": [{"role": "user"}]}, "messages[0].content: expected a string, got nothing"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content: expected a string, got null"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content: expected a string, got the number 7"),
        (
            {"messages": [{"role": "user", "content": ["x"]}]},
            "messages[0].content: expected a string, got a list of 1",
        ),
        (
            {"messages": [{"role": "assistant", "content": "x", "weight": 0.5}]},
            "messages[0].weight: expected 0 or 1, got 0.5",
        ),
        (
            {"messages": [{"role": "user", "content": "x"}], "tools": {"a": 1}},
            "tools: expected a list, got an object with the keys a",
        ),
        (b'["x"]', "expected a JSON object, got a list of 1"),
        (b"{'messages': []}", "is not JSON: Expecting property name enclosed in double quotes at column 2"),
        (b'{"messages": "\xff"}', "is not UTF-8 at byte 15 of the line"),
        (b'{"messages": "\\ud83d"}', "holds half a surrogate pair, '\\ud83d', which is no text"),
        (b"[" * 100_000, "is not JSON: maximum recursion depth exceeded"),
    ],
)
def test_a_malformed_row_is_told_with_place_key_and_what_was_found(tmp_path: Path, row: object, what: str) -> None:
    problem = problem_of(tmp_path / "data", row)
    assert problem.place.endswith("data.jsonl:2")
    assert problem.what.startswith(what)


def test_a_mistyped_role_is_told_what_was_meant(tmp_path: Path) -> None:
    problem = problem_of(tmp_path / "data", {"messages": [{"role": "asistant", "content": "x"}]})
    assert problem.hint == "did you mean assistant?"


def test_a_malformed_row_does_not_hide_those_after_it(tmp_path: Path) -> None:
    rows = read(tmp_path / "data", b'{"text": "a"}\nnonsense\n{"txt": "b"}\n{"text": "c"}\n')
    assert [type(row) for row in rows] == [Row, Problem, Problem, Row]


def test_a_file_that_changes_while_it_is_read_is_read_again_later(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'{"text": "a"}\n')
    seen = look(path)
    path.write_bytes(b'{"text": "bb"}\n')
    with pytest.raises(StageFailed, match=r"data\.jsonl was changed while it was being read") as failure:
        list(read_rows(seen))
    assert failure.value.retry


@pytest.mark.parametrize(
    ("row", "what"),
    [
        (b'{"text": "a", "text": "b"}', 'says the key "text" twice in one object'),
        (b'{"text": "a", "x": {"y": 1, "y": 2}}', 'says the key "y" twice in one object'),
        (b'{"text": "a", "score": NaN}', "holds NaN, which is no JSON"),
        (b'{"text": "a", "score": -Infinity}', "holds -Infinity, which is no JSON"),
        (b'{"text": "a", "n": ' + b"9" * 5000 + b"}", "is not JSON: Exceeds the limit"),
    ],
)
def test_json_that_readers_disagree_about_is_refused(tmp_path: Path, row: bytes, what: str) -> None:
    _, problem = read(tmp_path / "data", b'{"text": "x"}\n' + row)
    assert isinstance(problem, Problem)
    assert problem.what.startswith(what)


def test_a_line_without_an_end_is_not_read_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from finetuned.host.data import records

    monkeypatch.setattr(records, "MAX_ROW_BYTES", 1000)
    _, problem = read(tmp_path / "data", b'{"text": "x"}\n{"text": "' + b"y" * 2000 + b'"}\n{"text": "z"}')
    assert isinstance(problem, Problem)
    assert problem.what == "is longer than 1,000 bytes"


def test_files_whose_columns_or_types_differ_are_read_row_by_row_or_told_with_file_line_key_expected_and_got(
    tmp_path: Path,
) -> None:  # frameworks.md, row 21
    (tmp_path / "a.jsonl").write_text('{"text": "a", "tags": ["x"], "score": 1}\n')
    (tmp_path / "b.jsonl").write_text('{"text": "b", "tags": null, "score": "high"}\n{"score": 2.5, "text": "c"}\n')
    assert texts(read_set(tmp_path)) == ["a", "b", "c"]
    (tmp_path / "c.jsonl").write_text('{"text": "d"}\n{"text": ["e"]}\n')
    *_, problem = read_set(tmp_path)
    assert isinstance(problem, Problem)
    assert (problem.place, problem.what) == (f"{tmp_path}/c.jsonl:2", "text: expected a string, got a list of 1")


def test_a_byte_order_mark_changes_nothing_in_any_text_file(tmp_path: Path) -> None:  # frameworks.md, row 20
    for name, content in {
        "a.jsonl": '{"text": "x"}\n{"text": "y"}\n',
        "b.json": '[{"text": "x"},\n {"text": "y"}]',
        "c.csv": "text\nx\ny\n",
        "d.txt": "x\ny\n",
    }.items():
        path = tmp_path / name
        rows = []
        for mark in ("", "\ufeff"):
            path.write_text(mark + content)
            rows.append(read_set(path))
        assert texts(rows[0]) == ["x", "y"], name
        assert rows[0] == rows[1], name
