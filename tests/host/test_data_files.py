"""Which files a set of rows is, and which part of its rows."""

import json
import os
from pathlib import Path, PurePath

import pytest

from finetuned.core.spec import Dataset
from finetuned.host.data.files import EVALUATION, TRAINING, files_of
from finetuned.host.data.split import read_split, split_of
from finetuned.host.paths import Unusable

ROW = '{"text": "a"}\n'


def a_folder(top: Path, *names: str) -> Path:
    for name in names:
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(ROW)
    return top


def chosen(
    path: Path | str, split: str | None = None, folder: Path | None = None, prefers: tuple[str, ...] = TRAINING
) -> list[str]:
    """The files' names, from the set's folder on."""
    found = files_of(Dataset(path=str(path), split=split), folder, prefers)
    top = str(path).split("*")[0].rpartition("/")[0] if "*" in str(path) else str(path)
    return [file.shown.removeprefix(top).lstrip("/") for file in found.files]


def test_a_folder_is_its_data_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    a_folder(
        tmp_path,
        "b.jsonl",
        "a/z.parquet",
        "a/c.csv.gz",
        "README.md",
        "notes.txt",
        ".hidden.jsonl",
        "dataset_info.json",
        "x.png",
    )
    assert chosen(tmp_path) == ["a/c.csv.gz", "a/z.parquet", "b.jsonl"]


def test_texts_are_data_where_there_is_nothing_else(tmp_path: Path) -> None:
    a_folder(tmp_path, "b.txt", "a.md", "README.md")
    assert chosen(tmp_path) == ["a.md", "b.txt"]


def test_a_pattern_is_its_matches_in_the_order_of_their_names(tmp_path: Path) -> None:
    a_folder(tmp_path, "b.jsonl", "a.jsonl", "deep/er/c.jsonl", "d.csv")
    assert chosen(tmp_path / "*.jsonl") == ["a.jsonl", "b.jsonl"]
    assert chosen(f"{tmp_path}/**/*.jsonl") == ["a.jsonl", "b.jsonl", "deep/er/c.jsonl"]


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(tmp_path: Path) -> None:
    a_folder(tmp_path, "rows[1].jsonl", "rows1.jsonl")
    assert chosen(tmp_path / "rows[1].jsonl") == [""]


def test_a_pattern_without_a_match_is_told_with_the_nearest_name(tmp_path: Path) -> None:
    a_folder(tmp_path, "chats.jsonl")
    with pytest.raises(Unusable, match=r"no file matches .*/chat\*\.jsnl") as refusal:
        chosen(tmp_path / "chat*.jsnl")
    assert refusal.value.hint == f"did you mean {tmp_path}/chats.jsonl?"
    with pytest.raises(Unusable, match="nowhere does not exist"):
        chosen(tmp_path / "nowhere" / "*.jsonl")


def test_patterns_and_links_do_not_lead_out_of_the_dropped_folder(tmp_path: Path) -> None:
    a_folder(tmp_path, "outside/a.jsonl", "dropped/rows/b.jsonl")
    (tmp_path / "dropped/rows/link.jsonl").symlink_to(tmp_path / "outside/a.jsonl")
    dropped = tmp_path / "dropped"
    for path in ("../outside/*.jsonl", "rows/*.jsonl", "rows"):
        with pytest.raises(Unusable, match="leads out of the dropped folder"):
            files_of(Dataset(path=path), dropped)
    (tmp_path / "dropped/rows/link.jsonl").unlink()
    assert [file.shown for file in files_of(Dataset(path="rows/*.jsonl"), dropped).files] == ["rows/b.jsonl"]
    assert [file.shown for file in files_of(Dataset(path="./rows"), dropped).files] == ["./rows/b.jsonl"]


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("train.jsonl", "train"),
        ("my-val-set.csv", "validation"),
        ("data/test-00000-of-00001.parquet", "test"),
        ("data/train_sft-00000-of-00002.parquet", "train_sft"),
        ("dev/part-0.parquet", "validation"),
        ("train/data-00000-of-00001.arrow", "train"),
        ("latest.jsonl", None),
        ("data/contest.jsonl", None),
    ],
)
def test_splits_are_named_by_words_of_the_path(path: str, split: str | None) -> None:
    assert split_of(PurePath(path)) == split


def test_of_several_splits_train_is_taken_and_the_others_are_told(tmp_path: Path) -> None:
    a_folder(tmp_path, "data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet", "validation/x.parquet")
    found = files_of(Dataset(path=str(tmp_path)), None)
    assert [file.shown for file in found.files] == [f"{tmp_path}/data/train-00000-of-00001.parquet"]
    assert found.notices == (
        f"{tmp_path}: the split train is taken; left out: {tmp_path}/data/test-00000-of-00001.parquet, "
        f"{tmp_path}/validation/x.parquet",
    )
    assert chosen(tmp_path, "test[:10]") == ["data/test-00000-of-00001.parquet"]
    assert chosen(tmp_path, "dev") == ["validation/x.parquet"]
    assert chosen(tmp_path, prefers=EVALUATION) == ["validation/x.parquet"]


def test_files_that_name_no_split_are_for_training(tmp_path: Path) -> None:
    a_folder(tmp_path, "chats.jsonl", "chats.test.jsonl")
    assert chosen(tmp_path) == chosen(tmp_path, "train") == ["chats.jsonl"]
    assert chosen(tmp_path, "test") == ["chats.test.jsonl"]


def test_a_single_split_is_taken_whatever_its_name(tmp_path: Path) -> None:
    a_folder(tmp_path, "test/a.jsonl", "test/b.jsonl")
    assert chosen(tmp_path) == ["test/a.jsonl", "test/b.jsonl"]
    assert chosen(tmp_path / "test") == ["a.jsonl", "b.jsonl"]


def test_splits_of_which_none_is_train_are_refused_naming_them(tmp_path: Path) -> None:
    a_folder(tmp_path, "train_sft-00000-of-00001.parquet", "train_gen-00000-of-00001.parquet")
    with pytest.raises(Unusable, match="holds the splits train_gen, train_sft, and none is named train") as refusal:
        chosen(tmp_path)
    assert (refusal.value.field, refusal.value.hint) == ("split", "say split: train_gen")
    assert chosen(tmp_path, "train_sft") == ["train_sft-00000-of-00001.parquet"]


def test_a_split_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    a_folder(tmp_path, "train.jsonl", "test.jsonl")
    with pytest.raises(Unusable, match="has no split tset; it has test, train") as refusal:
        chosen(tmp_path, "tset")
    assert (refusal.value.field, refusal.value.hint) == ("split", "did you mean test?")


@pytest.mark.parametrize("split", ["", "train[", "[10]", "train[:x]", "[:101%]", "train+test", "train[1:2:3]"])
def test_what_is_no_split_is_refused(tmp_path: Path, split: str) -> None:
    a_folder(tmp_path, "train.jsonl")
    with pytest.raises(Unusable, match="is not a split") as refusal:
        chosen(tmp_path / "train.jsonl", split)
    assert refusal.value.field == "split"


@pytest.mark.parametrize(
    ("split", "rows", "span"),
    [
        ("train[:1000]", None, (0, 1000)),
        ("[5:]", None, (5, None)),
        ("[10%:]", 50, (5, None)),
        ("[:90%]", 50, (0, 45)),
        ("[-10%:]", 50, (45, None)),
        ("[-3:-1]", 50, (47, 49)),
        ("validation", None, (0, None)),
    ],
)
def test_a_part_of_the_rows_is_counted_as_hugging_face_does(
    split: str, rows: int | None, span: tuple[int, int | None]
) -> None:
    found = read_split(split)
    assert found.needs_count == (rows is not None)
    assert found.span(rows) == span


def test_a_saved_folder_names_no_file_outside_itself(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "../x.arrow"}]}))
    with pytest.raises(Unusable, match="which is no file beside it"):
        chosen(tmp_path)


def test_a_folder_that_leads_back_to_itself_is_read_once(tmp_path: Path) -> None:
    a_folder(tmp_path, "a.jsonl", "deep/b.jsonl")
    (tmp_path / "deep/up").symlink_to(tmp_path)
    assert chosen(tmp_path) == ["a.jsonl", "deep/b.jsonl"]


def test_a_file_is_data_by_its_suffix_whatever_else_its_name_says(tmp_path: Path) -> None:
    names = ["changelog.csv", "license_rows.jsonl", "notice.jsonl", "readme.jsonl", "state.json", "state.jsonl"]
    a_folder(tmp_path, *names, "LICENSE", "LICENSE.txt", "README.md", "dataset_infos.json")
    assert chosen(tmp_path) == names
    assert files_of(Dataset(path=str(tmp_path)), None).notices == ()


def test_files_of_a_folder_that_are_not_read_are_told(tmp_path: Path) -> None:
    a_folder(tmp_path, "a.jsonl", "b.jsonl.bak", "notes.txt", "x.png", ".hidden.jsonl", "README.md")
    assert files_of(Dataset(path=str(tmp_path)), None).notices == (
        f"{tmp_path}: left out, being no files of rows: {tmp_path}/b.jsonl.bak, {tmp_path}/x.png, {tmp_path}/notes.txt",
    )
    a_folder(tmp_path, *(f"{number}.png" for number in range(1000)))
    [notice] = files_of(Dataset(path=str(tmp_path)), None).notices
    assert notice.endswith(f"{tmp_path}/101.png and 998 more")


def test_files_that_a_saved_folder_does_not_name_are_told(tmp_path: Path) -> None:
    a_folder(tmp_path, "data-0.arrow", "cache-1.arrow", "dataset_info.json")
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-0.arrow"}]}))
    assert chosen(tmp_path) == ["data-0.arrow"]
    [notice] = files_of(Dataset(path=str(tmp_path)), None).notices
    assert notice == f"{tmp_path}: left out, being no files of rows: {tmp_path}/cache-1.arrow"


@pytest.mark.parametrize("packed", ["b.jsonl.bz2", "b.csv.XZ", "deep/b.parquet.zip", "b.json.lz4"])
def test_rows_in_a_packing_that_is_not_read_are_refused_in_a_folder_as_well(tmp_path: Path, packed: str) -> None:
    a_folder(tmp_path, "a.jsonl", packed)
    with pytest.raises(Unusable, match=r"/b\.\w+\.\w+ is (packed with|a zip)") as refusal:
        chosen(tmp_path)
    assert "it, or pack it with gzip or zstd" in refusal.value.hint or "unpack it" in refusal.value.hint


@pytest.mark.parametrize("path", ["", "*.jsonl"])
def test_a_name_that_is_not_utf8_is_refused_in_letters_that_are(tmp_path: Path, path: str) -> None:
    a_folder(tmp_path, "a.jsonl", os.fsdecode(b"\xff\xfe.jsonl"))
    with pytest.raises(Unusable, match=r"the name of .*/��\.jsonl is not UTF-8"):
        chosen(tmp_path / path)


def test_what_is_left_out_is_told_whatever_its_name(tmp_path: Path) -> None:
    a_folder(tmp_path, "a.jsonl", os.fsdecode(b"\xff.png"))
    [notice] = files_of(Dataset(path=str(tmp_path)), None).notices
    assert notice.endswith("/�.png")


@pytest.mark.parametrize("path", ["", "*.jsonl", "c.jsonl"])
def test_a_link_whose_target_is_missing_is_told_as_one(tmp_path: Path, path: str) -> None:
    a_folder(tmp_path, "a.jsonl")
    (tmp_path / "c.jsonl").symlink_to("/nowhere/c.jsonl")
    with pytest.raises(Unusable, match=r"c\.jsonl is a link to /nowhere/c\.jsonl, which does not exist") as refusal:
        chosen(tmp_path / path)
    assert refusal.value.hint == ""


def test_a_pattern_below_a_folder_whose_name_reads_as_one_is_told_how_to_write_it(tmp_path: Path) -> None:
    a_folder(tmp_path, "run[1]/deep/a.jsonl")
    with pytest.raises(Unusable, match="no file matches") as refusal:
        chosen(tmp_path / "run[1]" / "*" / "*.jsonl")
    written = f"{tmp_path}/run[[]1]/*/*.jsonl"
    assert refusal.value.hint == f"{tmp_path}/run[1] is a folder whose name reads as a pattern; write {written}"
    assert len(files_of(Dataset(path=written), None).files) == 1


def test_the_name_of_a_dropped_folder_is_no_pattern(tmp_path: Path) -> None:
    dropped = a_folder(tmp_path / "job[1]", "rows/a.jsonl")
    assert [file.shown for file in files_of(Dataset(path="rows/*.jsonl"), dropped).files] == ["rows/a.jsonl"]
