"""Files of every kind, packed or not: the same rows, each with the place where a person finds it."""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from finetuned.core.problems import Problem, StageFailed
from finetuned.host.paths import Unusable
from finetuned.prepare.read import Conversation, Row, Text
from reading import contents, look, places, read_set, texts

ROWS = [{"text": f'row {i} é\u2028\x85 "quoted", and; more\ton', "n": i} for i in range(5)]


def write_jsonl(path: Path) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS))


def write_json(path: Path) -> None:
    path.write_text(json.dumps(ROWS, indent=1))


def write_csv(path: Path) -> None:
    import csv

    with open(path, "w", newline="") as file:
        table = csv.DictWriter(file, ["text", "n"], delimiter="\t" if ".tsv" in path.name else ",")
        table.writeheader()
        table.writerows(ROWS)


def write_text(path: Path) -> None:
    path.write_text("".join(row["text"] + "\n" for row in ROWS))  # type: ignore[operator]


def write_parquet(path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=2)


def write_arrow(path: Path) -> None:
    table = pa.Table.from_pylist(ROWS)
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=2)


def write_stream(path: Path) -> None:
    table = pa.Table.from_pylist(ROWS)
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=2)


FILES: dict[str, Callable[[Path], None]] = {
    "rows.jsonl": write_jsonl,
    "rows.json": write_json,
    "rows.csv": write_csv,
    "rows.tsv": write_csv,
    "rows.txt": write_text,
    "rows.parquet": write_parquet,
    "rows.arrow": write_arrow,
    "stream.arrow": write_stream,
}


def pack(path: Path, suffix: str) -> Path:
    packed = path.with_name(path.name + suffix)
    if suffix == ".gz":
        packed.write_bytes(gzip.compress(path.read_bytes()))
    else:
        with pa.CompressedOutputStream(str(packed), "zstd") as stream:
            stream.write(path.read_bytes())
    path.unlink()
    return packed


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize("name", FILES)
def test_files_of_every_kind_say_the_same_packed_or_not(tmp_path: Path, name: str, suffix: str) -> None:
    path = tmp_path / name
    FILES[name](path)
    if suffix:
        path = pack(path, suffix)
    rows = read_set(path)
    assert texts(rows) == [row["text"] for row in ROWS]
    numbers = [int(place.rpartition(":")[2]) for place in places(rows)]
    assert numbers == {"csv": [2, 3, 4, 5, 6], "tsv": [2, 3, 4, 5, 6], "json": [2, 6, 10, 14, 18]}.get(
        name.split(".")[1], [1, 2, 3, 4, 5]
    )


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.parquet", "rows.arrow", "stream.arrow"])
def test_what_a_file_holds_is_seen_from_its_bytes_not_its_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    FILES[name](path)
    disguised = path.rename(tmp_path / "rows.bin")
    assert texts(read_set(disguised)) == [row["text"] for row in ROWS]
    packed = pack(disguised, ".zst").rename(tmp_path / "rows")
    assert texts(read_set(packed)) == [row["text"] for row in ROWS]


def test_rows_of_a_json_file_are_told_by_line_and_where_they_share_one_by_number(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text('[{"text": "a"}, {"text": "b"},\n{"text": "c"}]')
    assert places(read_set(path)) == ["rows.json:1", "rows.json:1, row 2", "rows.json:2"]


def test_rows_under_one_key_of_a_json_object_are_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps({"version": {"data": [1]}, "data": ROWS, "end": [1]}))
    assert texts(read_set(path)) == [row["text"] for row in ROWS]
    path.write_text(json.dumps({"data": ROWS, "test": [], "rows": ROWS}))
    *_, problem = read_set(path)
    assert isinstance(problem, Problem)
    assert problem.what == "holds rows under `data` and under `rows`; expected one list of rows"


def test_a_json_file_may_hold_one_object_or_several(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(ROWS[0]))
    assert texts(read_set(path)) == [ROWS[0]["text"]]
    path.write_text("\n".join(json.dumps(row, indent=2) for row in ROWS))
    assert texts(read_set(path)) == [row["text"] for row in ROWS]


@pytest.mark.parametrize("padding", [0, 7, (1 << 18) - 40, (1 << 18) - 3, 1 << 19])
def test_json_is_read_right_wherever_the_reads_end(tmp_path: Path, padding: int) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([{"text": "x" * padding + "é😀"}, {"text": "b", "n": -1.5e3}, {"text": "c"}], indent=1))
    assert texts(read_set(path)) == ["x" * padding + "é😀", "b", "c"]


@pytest.mark.parametrize(
    ("content", "place", "what"),
    [
        ('[{"text": "a"},\n{"text": }]', "rows.json:2", "is not JSON: Expecting value"),
        ('[{"text": "a"},\n{"text": "b"', "rows.json:2", "is not JSON: Expecting ',' delimiter"),
        ('[{"text": "a"}\n{"text": "b"}]', "rows.json:2", "is not JSON: expected ',', got '{'"),
        ('[{"text": "a"},\n7]', "rows.json:2", "expected a JSON object, got the number 7"),
        ('[{"text": "a"},\n{"text": "b", "text": "c"}]', "rows.json:2", 'says the key "text" twice'),
        ('[{"text": "a"},\n{"text": "\\ud83d"}]', "rows.json:2", "holds half a surrogate pair"),
        ('[{"text": "a"}]\n{"text": "b"}', "rows.json:2", "something stands behind the end of the array"),
    ],
)
def test_a_damaged_json_file_is_told_by_line(tmp_path: Path, content: str, place: str, what: str) -> None:
    path = tmp_path / "rows.json"
    path.write_text(content)
    rows = read_set(path)
    problem = rows[-1]
    assert texts(rows) == ["a"]
    assert isinstance(problem, Problem)
    assert problem.place.endswith(place)
    assert problem.what.startswith(what)


def test_a_cell_may_span_lines_and_its_row_is_told_by_its_first(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b'\xef\xbb\xbfid,text\r\n1,"a\r\nb, ""c"""\r\n\r\n2,d\r\n')
    rows = read_set(path)
    assert texts(rows) == ['a\r\nb, "c"', "d"]
    assert places(rows) == ["rows.csv:2", "rows.csv:5"]


def test_semicolons_separate_where_the_header_has_no_comma(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id;text\n1;a, b\n")
    assert texts(read_set(path)) == ["a, b"]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("text,n\na,1\nb\n", "expected 2 columns (text, n), got 1"),
        ("text,n\na,1\nb,c,2\n", "expected 2 columns (text, n), got 3"),
        ('text,n\na,1\n"b,2\n', "is not CSV: unexpected end of data"),
    ],
)
def test_a_damaged_table_is_told_by_line(tmp_path: Path, content: str, what: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(content)
    row, problem = read_set(path)
    assert isinstance(row, Row)
    assert isinstance(problem, Problem)
    assert problem.place.endswith("rows.csv:3")
    assert problem.what.startswith(what)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("text,text\na,b\n", "names the column text twice"),
        ("text,\na,b\n", "no name for column 2"),
        ("text\n", "no rows"),
    ],
)
def test_a_table_that_cannot_be_one_is_refused(tmp_path: Path, content: str, what: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(content)
    with pytest.raises(Unusable, match=what):
        look(path)


def test_keys_that_a_nested_object_lacks_stay_absent_in_tables_too(tmp_path: Path) -> None:  # frameworks.md, row 19
    calls = [
        {"type": "function", "function": {"name": "f", "arguments": {"city": "Rome"}}},
        {"type": "function", "function": {"name": "g", "arguments": {"count": 2}}},
    ]
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "content": "y", "name": "f"},
    ]
    rows = [{"messages": messages, "tools": None}, {"messages": messages[:1], "tools": [{"name": "f", "strict": None}]}]
    table = pa.Table.from_pylist(rows)
    assert "count" in str(table.to_pylist()[0]["messages"][1]["tool_calls"][0])
    pq.write_table(table, tmp_path / "rows.parquet")
    with pa.ipc.new_stream(str(tmp_path / "rows.arrow"), table.schema) as writer:
        writer.write_table(table)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"messages": row["messages"]}) + "\n" for row in rows))
    for name in ("rows.parquet", "rows.arrow", "rows.jsonl"):
        first, second = contents(tmp_path / name)
        assert isinstance(first, Conversation)
        assert first.messages == tuple(messages), name
        assert isinstance(second, Conversation)
        assert "None" not in str(second.messages), name


def test_nulls_that_json_writes_stay(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    call = {"function": {"name": "f", "arguments": {"unit": None}}}
    path.write_text(json.dumps({"messages": [{"role": "assistant", "content": None, "tool_calls": [call]}]}))
    [content] = contents(path)
    assert isinstance(content, Conversation)
    assert content.messages == ({"role": "assistant", "content": None, "tool_calls": [call]},)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv", "stream.arrow"])
@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_an_archive_that_is_cut_off_is_told_with_file_and_place(tmp_path: Path, name: str, suffix: str) -> None:
    path = tmp_path / name
    row = os.urandom(300).hex()
    if name == "stream.arrow":
        table = pa.Table.from_pylist([{"text": row}] * 3000)
        with pa.ipc.new_stream(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=10)
    else:
        path.write_text(("text\n" + f"{row}\n" * 3000) if name == "rows.csv" else json.dumps({"text": row}) + "\n")
        if name == "rows.jsonl":
            path.write_text("".join(json.dumps({"text": os.urandom(300).hex()}) + "\n" for _ in range(3000)))
    packed = pack(path, suffix)
    whole = packed.read_bytes()
    packed.write_bytes(whole[: len(whole) - 20])
    with pytest.raises((StageFailed, Unusable), match=f"{name}{suffix} is .*cut off") as failure:
        read_set(packed)
    if isinstance(failure.value, StageFailed):
        assert not failure.value.retry
        assert f"of {len(whole) - 20:,}" in str(failure.value)


@pytest.mark.parametrize("name", ["rows.parquet", "rows.arrow", "stream.arrow"])
def test_a_table_that_is_cut_off_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    FILES[name](path)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(StageFailed, match=f"{name} is cut off or damaged") as failure:
        read_set(path)
    assert not failure.value.retry


def test_a_folder_that_datasets_saved_is_read_in_its_own_order(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    saved = datasets.Dataset.from_list(ROWS * 3)
    saved.save_to_disk(tmp_path / "saved", num_shards=3)
    assert texts(read_set(tmp_path / "saved")) == [row["text"] for row in ROWS * 3]
    both = datasets.DatasetDict({"train": saved, "test": datasets.Dataset.from_list(ROWS[:1])})
    both.save_to_disk(tmp_path / "both")
    seen = look(tmp_path / "both")
    assert [file.shown for file in seen.files] == [f"{tmp_path}/both/train/data-00000-of-00001.arrow"]
    assert "left out" in seen.notices[0]
    assert texts(read_set(tmp_path / "both", split="test")) == [ROWS[0]["text"]]


def test_a_text_file_has_a_row_a_line_without_blank_ones(tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    path.write_bytes(b"# Title\r\n\r\n[link](there)\r\n   \nlast \xc3\xa9")
    assert contents(path) == [Text("# Title"), Text("[link](there)"), Text("last é")]
    assert places(read_set(path)) == ["notes.md:1", "notes.md:3", "notes.md:5"]


def write_stream_in_batches(path: Path) -> bytes:
    table = pa.table({"text": [str(number) for number in range(20)]})
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=5)
    return path.read_bytes()


@pytest.mark.parametrize("suffix", ["", ".zst"])
def test_a_stream_that_was_cut_between_two_batches_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "rows.arrow"
    whole = write_stream_in_batches(path)
    path.write_bytes(whole[:-8])
    with pytest.raises(StageFailed, match=r"cut off or damaged, .* no mark at its end") as failure:
        read_set(pack(path, suffix) if suffix else path)
    assert not failure.value.retry


def test_rows_behind_the_end_of_a_stream_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.arrow"
    whole = write_stream_in_batches(path)
    path.write_bytes(whole + whole)
    with pytest.raises(StageFailed, match="more behind the mark at its end"):
        read_set(path)


@pytest.mark.parametrize("name", ["rows.parquet", "file.arrow", "stream.arrow"])
def test_a_table_with_two_columns_of_one_name_is_refused(tmp_path: Path, name: str) -> None:
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    write_table(table, tmp_path / name)
    with pytest.raises(Unusable, match=f'{name}:1 the table has two columns "text"'):
        look(tmp_path / name)


@pytest.mark.parametrize("name", ["rows.parquet", "file.arrow", "stream.arrow"])
def test_an_object_of_a_table_with_one_key_twice_is_refused(tmp_path: Path, name: str) -> None:
    message = pa.StructArray.from_arrays([pa.array(["user"]), pa.array(["a"]), pa.array(["b"])], ["role", "x", "x"])
    table = pa.table({"messages": pa.ListArray.from_arrays([0, 1], message)})
    write_table(table, tmp_path / name)
    with pytest.raises(Unusable, match=f'{name}:1 the table has two columns "messages.x"'):
        look(tmp_path / name)


@pytest.mark.parametrize("name", ["rows.parquet", "file.arrow", "stream.arrow"])
def test_a_map_with_one_key_twice_is_a_problem_of_its_row(tmp_path: Path, name: str) -> None:
    good = [[("role", "user"), ("content", "q")], [("role", "assistant"), ("content", "a")]]
    bad = [[("role", "user"), ("content", "q"), ("content", "p")]]
    rows = pa.array([good, bad, good], pa.list_(pa.map_(pa.string(), pa.string())))
    write_table(pa.table({"messages": rows}), tmp_path / name)
    first, second, third = read_set(tmp_path / name)
    assert isinstance(first, Row)
    assert isinstance(second, Problem)
    assert isinstance(third, Row)
    assert first.content == third.content
    assert (second.place.rpartition("/")[2], second.what) == (f"{name}:2", 'says the key "content" twice in one object')


def write_table(table: pa.Table, path: Path) -> None:
    if path.suffix == ".parquet":
        pq.write_table(table, path)
        return
    new = pa.ipc.new_stream if path.name.startswith("stream") else pa.ipc.new_file
    with new(str(path), table.schema) as writer:
        writer.write_table(table)
