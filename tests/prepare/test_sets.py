"""Sets of rows on their way through prepare: mixed, weighted, cut, deduplicated, and nothing lost silently."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tiny
from finetuned.core.plan import Facts
from finetuned.core.problems import InvalidSpec, StageFailed
from finetuned.core.spec import Dataset, JobSpec
from preparing import InProcess, a_chat


def a_set(stage: InProcess, name: str, *rows: object, **fields: object) -> Dataset:
    path = stage.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Dataset.model_validate({"path": str(path)} | fields)


def a_spec(stage: InProcess, *sets: Dataset, **fields: object) -> JobSpec:
    return JobSpec.model_validate({"base_model": str(stage.model), "datasets": sets} | fields)


def seen(stage: InProcess, facts: Facts, name: str = "train") -> list[str]:
    """Of each prepared row its place, without the folder."""
    return [place.rpartition("/")[2] for place, _, _ in stage.rows(facts, name)]


def touched(stage: InProcess, facts: Facts) -> list[dict[str, str]]:
    path = stage.root / "spool/store/prepared" / facts.data.prepared / "touched.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def chats(name: str, count: int) -> list[dict[str, object]]:
    return [a_chat(f"{name} {i}", f"gives {i}") for i in range(count)]


def test_sets_of_every_kind_are_mixed_in_one_job(stage: InProcess) -> None:
    columns = {"prompt": "question", "completion": "answer"}
    table = pa.Table.from_pylist([{"question": "q", "answer": "a"}])
    pq.write_table(table, stage.root / "pairs.parquet")
    (stage.root / "alpaca.csv").write_text("instruction,input,output\nadd,1 2,gives 3\n")
    facts = stage.prepare(
        a_spec(
            stage,
            a_set(stage, "chats.jsonl", a_chat("a", "b")),
            Dataset(path=str(stage.root / "pairs.parquet"), columns=columns),
            Dataset(path=str(stage.root / "alpaca.csv")),
            a_set(stage, "tokens.jsonl", {"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}),
            a_set(stage, "plain.jsonl", {"text": "add 1"}),
        )
    )
    assert seen(stage, facts) == ["chats.jsonl:1", "pairs.parquet:1", "alpaca.csv:2", "tokens.jsonl:1", "plain.jsonl:1"]
    _, input_ids, is_target = stage.rows(facts)[3]
    assert (input_ids, is_target) == ([5, 6, 7], [False, True, True])
    assert [(Path(source.path).name, source.rows) for source in facts.data.sources] == [
        ("chats.jsonl", 1),
        ("pairs.parquet", 1),
        ("alpaca.csv", 1),
        ("tokens.jsonl", 1),
        ("plain.jsonl", 1),
    ]


def test_weights_repeat_and_leave_out_training_rows_and_are_counted(stage: InProcess) -> None:
    facts = stage.prepare(
        a_spec(
            stage,
            a_set(stage, "often.jsonl", *chats("often", 10), weight=2.5),
            a_set(stage, "seldom.jsonl", *chats("seldom", 10), weight=0.3),
            val_set_size=4,
        )
    )
    counts = Counter(seen(stage, facts))
    held_out = set(seen(stage, facts, "eval"))
    assert len(held_out) == facts.data.eval_rows == 4
    assert not held_out & set(counts)
    often = [count for place, count in counts.items() if place.startswith("often")]
    assert set(often) == {2, 3}
    assert len(often) == 10 - sum(place.startswith("often") for place in held_out)
    seldom = 10 - sum(place.startswith("seldom") for place in held_out)
    kept = sum(place.startswith("seldom") for place in counts)
    assert kept == round(0.3 * seldom)
    assert facts.data.weighted_out_rows == seldom - kept
    rows = stage.rows(facts)
    assert facts.data.train_rows == len(rows) == sum(often) + kept
    assert facts.data.train_tokens == sum(len(input_ids) for _, input_ids, _ in rows)
    assert f"{facts.data.weighted_out_rows} rows are left out for the weight of their set" in facts.notices


def test_duplicates_are_counted_and_dropped_where_that_is_asked(stage: InProcess) -> None:
    data = a_set(
        stage, "rows.jsonl", a_chat("a", "b"), a_chat("c", "d"), a_chat("a", "b") | {"id": 7}, a_chat("a", "b")
    )
    facts = stage.prepare(a_spec(stage, data))
    assert (facts.data.train_rows, facts.data.duplicate_rows) == (4, 2)
    assert "2 rows say exactly what an earlier one says" in facts.notices
    facts = stage.prepare(a_spec(stage, data, deduplicate=True))
    assert (facts.data.train_rows, facts.data.duplicate_rows) == (2, 2)
    assert seen(stage, facts) == ["rows.jsonl:1", "rows.jsonl:2"]
    assert [line["place"].rpartition(":")[2] for line in touched(stage, facts)] == ["3", "4"]
    assert facts.data.dropped[0].what == "dropped: an earlier row says exactly the same"
    assert facts.data.dropped_rows == 0


def test_evaluation_rows_that_are_trained_on_as_well_are_a_notice(stage: InProcess) -> None:
    train = a_set(stage, "train.jsonl", *chats("q", 5))
    evaluation = a_set(stage, "eval.jsonl", *chats("q", 2), a_chat("new", "x"))
    spec = a_spec(stage, train, eval_datasets=(evaluation,))
    for _ in range(2):  # The second time from what was prepared.
        facts = stage.prepare(spec)
        assert any("2 of 3 evaluation rows are trained on as well" in notice for notice in facts.notices)


def test_a_weight_of_evaluation_rows_is_told_to_have_no_effect(stage: InProcess) -> None:
    train, evaluation = (a_set(stage, f"{name}.jsonl", *chats(name, 3), weight=2.0) for name in ("train", "eval"))
    facts = stage.prepare(a_spec(stage, train, eval_datasets=(evaluation,)))
    assert (facts.data.train_rows, facts.data.eval_rows) == (6, 3)
    assert any(notice.endswith("eval.jsonl: weight 2 has no effect on rows for evaluation") for notice in facts.notices)


def test_a_part_of_a_set_goes_over_its_files(stage: InProcess) -> None:
    for name in ("a", "b"):
        a_set(stage, f"set/{name}.jsonl", *chats(name, 5))
    for split, expected in {
        "[3:7]": ["a.jsonl:4", "a.jsonl:5", "b.jsonl:1", "b.jsonl:2"],
        "train[:2]": ["a.jsonl:1", "a.jsonl:2"],
        "[80%:]": ["b.jsonl:4", "b.jsonl:5"],
        "[-1:]": ["b.jsonl:5"],
    }.items():
        facts = stage.prepare(a_spec(stage, Dataset(path=str(stage.root / "set"), split=split)))
        assert seen(stage, facts) == expected, split
        assert sum(source.rows for source in facts.data.sources) == len(expected)


def test_a_malformed_row_outside_the_part_that_is_read_does_no_harm(stage: InProcess) -> None:
    data = a_set(stage, "rows.jsonl", a_chat("a", "b"), {"messages": 7}, split="[:1]")
    assert stage.prepare(a_spec(stage, data)).data.train_rows == 1


def test_splits_that_are_left_out_are_told(stage: InProcess) -> None:
    a_set(stage, "set/train.jsonl", a_chat("a", "b"))
    a_set(stage, "set/test.jsonl", a_chat("c", "d"))
    facts = stage.prepare(a_spec(stage, Dataset(path=str(stage.root / "set"))))
    assert seen(stage, facts) == ["train.jsonl:1"]
    assert facts.notices[0].endswith("left out: " + str(stage.root / "set/test.jsonl"))


def test_every_row_that_is_dropped_or_cut_is_listed_by_file_and_line(stage: InProcess) -> None:
    rows = [a_chat("a", "b"), a_chat("a"), a_chat("a", "b " * 200), a_chat("a " * 200, "b"), a_chat("c", "d")]
    data = a_set(stage, "rows.jsonl", *rows)  # frameworks.md, rows 17 and 18
    facts = stage.prepare(a_spec(stage, data, excess_length_strategy="truncate", max_dropped_ratio=0.5))
    found = {line["place"].rpartition(":")[2]: line["what"].partition(":")[0] for line in touched(stage, facts)}
    assert found == {"2": "dropped", "3": "truncated", "4": "dropped"}
    data_facts = facts.data
    assert (data_facts.dropped_rows, data_facts.truncated_rows, data_facts.over_long_rows) == (2, 1, 2)
    assert data_facts.rows_without_targets == 2
    lengths = {place.rpartition(":")[2]: len(input_ids) for place, input_ids, _ in stage.rows(facts)}
    assert lengths["3"] == facts.data.max_seq_length
    assert all(any(is_target) for _, _, is_target in stage.rows(facts))


def test_ten_rows_of_which_three_are_over_long_and_one_malformed_end_nowhere_near_a_gpu(stage: InProcess) -> None:
    rows = [*chats("q", 6), *(a_chat("a", "b " * 200) for _ in range(3))]  # frameworks.md, row 18
    with pytest.raises(StageFailed, match=r"3 of 9 rows \(33.3%\) would be dropped") as failure:
        stage.prepare(a_spec(stage, a_set(stage, "rows.jsonl", *rows)))
    assert [problem.place.rpartition(":")[2] for problem in failure.value.problems] == ["7", "8", "9"]
    with pytest.raises(StageFailed, match="1 row of the data cannot be used") as failure:
        stage.prepare(a_spec(stage, a_set(stage, "rows.jsonl", *rows, {"messages": 7})))
    assert failure.value.problems[0].place.endswith("rows.jsonl:10")


def test_labels_that_are_all_ignored_are_found_before_the_gpu_is_taken(stage: InProcess) -> None:
    rows = [{"input_ids": [1, 2, 3], "labels": [-100] * 3}, {"input_ids": [1, 2, 3], "labels": [1, -100, -100]}]
    with pytest.raises(StageFailed, match="no row is left to train on: all 2 were dropped"):  # frameworks.md, row 16
        stage.prepare(a_spec(stage, a_set(stage, "rows.jsonl", *rows), max_dropped_ratio=1))


def test_tokens_of_another_vocabulary_are_refused(stage: InProcess, chatml: Any) -> None:
    data = a_set(stage, "rows.jsonl", {"input_ids": [1, len(chatml)]})
    with pytest.raises(StageFailed) as failure:
        stage.prepare(a_spec(stage, data))
    [problem] = failure.value.problems
    assert problem.place.endswith("rows.jsonl:1")
    assert problem.what.startswith(f"input_ids[1] is {len(chatml)}")


@pytest.mark.parametrize("format", ["chat", "alpaca", "prompt_completion"])
def test_pretraining_learns_text_and_tokens_alone(stage: InProcess, format: str) -> None:
    row = {"messages": [], "instruction": "", "output": "", "prompt": "", "completion": ""}
    spec = a_spec(stage, a_set(stage, "rows.jsonl", row, format=format), method="pretrain")
    with pytest.raises(InvalidSpec, match="method: pretrain learns plain text"):
        stage.prepare(spec)


def test_what_only_prepare_can_see_of_a_set_is_told_with_its_field(stage: InProcess) -> None:
    pq.write_table(pa.table({"txt": ["a"]}), stage.root / "rows.parquet")
    with pytest.raises(StageFailed, match="the data cannot be used") as failure:
        stage.prepare(a_spec(stage, Dataset(path=str(stage.root / "rows.parquet"))))
    [problem] = failure.value.problems
    assert problem.place == "datasets[0].path"
    assert problem.hint == "if they are text rows, say columns: {text: txt}"


def name_of(stage: InProcess, spec: JobSpec) -> str:
    return stage.prepare(spec).data.prepared


def test_whatever_shapes_the_rows_names_them_and_nothing_else_does(stage: InProcess) -> None:  # frameworks.md, row 28
    template = stage.root / "chat.jinja"
    template.write_text("{% for m in messages %}{{ m.role + ':' + m.content + '<|im_end|>' }}{% endfor %}")
    rows = [{**a_chat(f"a {i}", "b"), "other": a_chat(f"c {i}", "d")["messages"]} for i in range(4)]
    data = a_set(stage, "rows.jsonl", *rows)
    plain = a_spec(stage, data, chat_template=str(template))
    first = name_of(stage, plain)

    def changed(**fields: object) -> JobSpec:
        return plain.model_copy(update={"datasets": (data.model_copy(update=fields),)})

    shaping = [
        changed(columns={"messages": "other"}),
        changed(split="[:2]"),
        changed(weight=2.0),
        plain.model_copy(update={"roles_to_train": ("assistant", "user")}),
        plain.model_copy(update={"deduplicate": True}),
        plain.model_copy(update={"excess_length_strategy": "truncate"}),
    ]
    names = [first, *(name_of(stage, spec) for spec in shaping)]
    assert len(set(names)) == len(names)
    assert name_of(stage, plain.model_copy(update={"num_train_epochs": 7.0, "suffix": "x"})) == first
    assert name_of(stage, changed(format="chat")) == first


def test_one_byte_changed_in_the_tokenizer_names_other_rows(stage: InProcess) -> None:  # frameworks.md, row 28
    spec = stage.spec(a_chat("a", "b"))
    first = name_of(stage, spec)
    weights = stage.model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    assert name_of(stage, spec) == first
    tokenizer = stage.model / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + " ")
    assert name_of(stage, spec) != first


def test_one_byte_changed_in_the_data_names_other_rows(stage: InProcess) -> None:  # frameworks.md, row 28
    path = tiny.write_jsonl(stage.root / "rows.jsonl", [a_chat("a", "b")])
    spec = a_spec(stage, Dataset(path=str(path)))
    first = name_of(stage, spec)
    path.touch()
    assert name_of(stage, spec) == first
    path.write_text(path.read_text() + "\n")
    assert name_of(stage, spec) != first


@pytest.mark.parametrize(("groups", "of", "val_set_size"), [(1, 300, 0.1), (20, 20, 10), (1, 300, None)])
def test_why_no_rows_are_kept_for_evaluation_is_told(
    stage: InProcess, groups: int, of: int, val_set_size: float | None
) -> None:
    rows = [row for row in chats("same", groups) for _ in range(of)]
    facts = stage.prepare(a_spec(stage, a_set(stage, "same.jsonl", *rows), val_set_size=val_set_size))
    assert facts.data.eval_rows == 0
    [notice] = [each for each in facts.notices if "no row is kept for evaluation instead of" in each]
    assert f"the smallest group has {of};" in notice
    assert "deduplicate: true" in notice


def test_messages_that_carry_ids_do_not_leak_into_evaluation(stage: InProcess) -> None:
    rows = [
        {"messages": [message | {"id": f"{number}"} for message in row["messages"]]}  # type: ignore[attr-defined]
        for number, row in enumerate(chats("row", 5) * 8)
    ]
    facts = stage.prepare(a_spec(stage, a_set(stage, "ids.jsonl", *rows), val_set_size=4, deduplicate=True))
    assert facts.data.duplicate_rows == 35
    facts = stage.prepare(a_spec(stage, a_set(stage, "ids.jsonl", *rows), val_set_size=8))
    trained, held_out = ({tuple(ids) for _, ids, _ in stage.rows(facts, name)} for name in ("train", "eval"))
    assert held_out
    assert not trained & held_out


def test_files_of_a_folder_that_are_not_read_are_told_with_the_facts(stage: InProcess) -> None:
    a_set(stage, "us/city.jsonl", *chats("city", 2))
    a_set(stage, "us/state.jsonl", *chats("state", 2))
    (stage.root / "us/map.png").write_bytes(b"x")
    facts = stage.prepare(a_spec(stage, Dataset(path=str(stage.root / "us"))))
    assert facts.data.train_rows == 4
    assert any("left out" in notice and "map.png" in notice for notice in facts.notices)
