"""What a job file names on this machine: found in milliseconds, told with what to do."""

import json
import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from finetuned.core.spec import Dataset, JobSpec
from finetuned.host.paths import Unusable
from finetuned.host.sources import HubModel, LocalModel, resolve_base_model, source_problems

CHAT = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'


def a_model(folder: Path, chat_template: str | None = "x") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"x")
    (folder / "tokenizer.json").write_text("{}")
    if chat_template:
        (folder / "chat_template.jinja").write_text(chat_template)
    return folder


def a_spec(root: Path, data: str | bytes | None = CHAT, **fields: object) -> JobSpec:
    path = root / "data.jsonl"
    if data is not None:
        path.write_bytes(data.encode() if isinstance(data, str) else data)
    base = {"base_model": str(root / "model"), "datasets": (Dataset(path=str(path), format="auto"),)}
    return JobSpec.model_validate(base | fields)


def only_problem(spec: JobSpec, folder: Path | None = None) -> tuple[str, str, str]:
    [problem] = source_problems(spec, folder)
    return problem.place, problem.what, problem.hint


def test_a_job_whose_sources_are_all_there_has_no_problems(tmp_path: Path) -> None:
    a_model(tmp_path / "model")
    assert source_problems(a_spec(tmp_path), None) == ()


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        ("/srv/models/x", LocalModel(Path("/srv/models/x"))),
        ("./x", LocalModel(Path("x"))),
        ("file:/srv/x", LocalModel(Path("/srv/x"))),
        ("file:///srv/x", LocalModel(Path("/srv/x"))),
        ("org/name", HubModel("org/name")),
        ("gpt2", HubModel("gpt2")),
        ("hub:org/name@v1", HubModel("org/name", "v1")),
    ],
)
def test_a_base_model_is_a_folder_or_a_name_on_the_hub(value: str, meant: LocalModel | HubModel) -> None:
    assert resolve_base_model(value) == meant


@pytest.mark.parametrize("value", ["a/b/c", "org name/x", "", "https://huggingface.co/org/name"])
def test_anything_else_is_told_to_be_neither(value: str) -> None:
    with pytest.raises(Unusable, match="neither a folder nor a name on the hub"):
        resolve_base_model(value)


def test_a_hub_name_is_the_hubs_even_where_such_a_folder_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_model(tmp_path / "org/name")
    monkeypatch.chdir(tmp_path)
    assert resolve_base_model("org/name") == HubModel("org/name")


def test_every_problem_is_told_at_once(tmp_path: Path) -> None:
    spec = a_spec(tmp_path, None, chat_template="chatlm", eval_datasets=(Dataset(path="/nowhere", format="auto"),))
    places = [problem.place for problem in source_problems(spec, None)]
    assert places == ["datasets[0].path", "eval_datasets[0].path", "chat_template", "base_model"]


def test_a_missing_file_is_told_with_the_nearest_name(tmp_path: Path) -> None:
    a_model(tmp_path / "model")
    (tmp_path / "data.json").write_text(CHAT)
    place, what, hint = only_problem(a_spec(tmp_path, None))
    assert (place, what) == ("datasets[0].path", f"{tmp_path}/data.jsonl does not exist")
    assert hint == f"did you mean {tmp_path}/data.json?"


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "is empty"),
        (b"\n \n", "has only blank lines"),
        (b"\x1f\x8b\x08", "is a gzip file that is cut off"),
        (b"PAR1xxxx", "is cut off: its end is missing"),
        (b"ARROW1\0\0xxxx", "is cut off: its end is missing"),
        (b"\xff\xff\xff\xffxxxx", "is cut off: its end is missing"),
        (b"PK\x03\x04xxxx", "is a zip archive"),
        (b"\xff\xfet\0e\0x\0t\0", "is UTF-16 text"),
        (b'["a"]', ":1 expected a JSON object, got the string"),
        (b"text,label\n", ":1 is not JSON: Expecting value"),
        (b'"x"\n', ":1 expected a JSON object, got the string"),
        (b'{"chosen": "a", "rejected": "b"}', "holds preference rows"),
        (b'{"txt": "a"}', "the first row is of no known format; its keys are txt"),
        (b'{"text": "a", "messages": []}', "could hold chat rows (`messages`) and text rows (`text`)"),
    ],
)
def test_a_file_of_another_kind_is_told_by_its_first_row(tmp_path: Path, data: bytes, what: str) -> None:
    a_model(tmp_path / "model")
    assert what in only_problem(a_spec(tmp_path, data))[1]


def test_a_first_row_after_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    a_model(tmp_path / "model")
    assert source_problems(a_spec(tmp_path, b"\xef\xbb\xbf\r\n" + CHAT.encode()), None) == ()


def test_a_fifo_or_a_folder_is_no_data_file_and_is_not_waited_for(tmp_path: Path) -> None:
    a_model(tmp_path / "model")
    os.mkfifo(tmp_path / "data.jsonl")
    assert "is not a regular file" in only_problem(a_spec(tmp_path, None))[1]
    (tmp_path / "data.jsonl").unlink()
    (tmp_path / "data.jsonl").mkdir()
    assert "holds no data files" in only_problem(a_spec(tmp_path, None))[1]


def test_an_unreadable_file_is_told_with_who_looked_and_the_command_that_mends_it(tmp_path: Path) -> None:
    a_model(tmp_path / "model")
    spec = a_spec(tmp_path)
    (tmp_path / "data.jsonl").chmod(0)
    with as_an_ordinary_user():
        user = pwd.getpwuid(os.geteuid())
        problem = next(p for p in source_problems(spec, None) if p.place == "datasets[0].path")
    assert problem.what.endswith(f"data.jsonl cannot be read by {user.pw_name} (uid {user.pw_uid})")
    assert problem.hint.startswith(f"setfacl -m u:{user.pw_name}:rX")


@contextmanager
def as_an_ordinary_user() -> Iterator[None]:
    """Root may read everything; while this lasts, the test is nobody."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_relative_path_in_a_bare_job_file_is_told_where_to_go(tmp_path: Path) -> None:
    a_model(tmp_path / "model")
    _, what, hint = only_problem(a_spec(tmp_path, datasets=(Dataset(path="data.jsonl", format="auto"),)))
    assert "is a relative path" in what
    assert "drop a folder" in hint


def test_a_relative_path_is_taken_from_the_dropped_folder(tmp_path: Path) -> None:
    a_model(tmp_path / "model")
    spec = a_spec(tmp_path, base_model="./model", datasets=(Dataset(path="data.jsonl", format="auto"),))
    assert source_problems(spec, tmp_path) == ()


@pytest.mark.parametrize("path", ["../outside.jsonl", "link.jsonl"])
def test_no_path_leads_out_of_the_dropped_folder(tmp_path: Path, path: str) -> None:
    folder = tmp_path / "dropped"
    a_model(folder / "model")
    (tmp_path / "outside.jsonl").write_text(CHAT)
    (folder / "link.jsonl").symlink_to(tmp_path / "outside.jsonl")
    spec = a_spec(tmp_path, base_model="./model", datasets=(Dataset(path=path, format="auto"),))
    assert "leads out of the dropped folder" in only_problem(spec, folder)[1]


def test_links_that_lead_in_a_circle_are_a_problem_like_any_other(tmp_path: Path) -> None:
    a_model(tmp_path / "model")
    (tmp_path / "a.jsonl").symlink_to("b.jsonl")
    (tmp_path / "b.jsonl").symlink_to("a.jsonl")
    spec = a_spec(tmp_path, base_model="./model", datasets=(Dataset(path="a.jsonl", format="auto"),))
    place, what, _ = only_problem(spec, tmp_path)
    assert place == "datasets[0].path"
    assert what.startswith("a.jsonl")


@pytest.mark.parametrize(
    ("break_it", "what"),
    [
        (lambda m: (m / "config.json").unlink(), "is not a model: it has no config.json"),
        (
            lambda m: ((m / "config.json").unlink(), (m / "adapter_config.json").touch()),
            "is an adapter, not a model",
        ),
        (lambda m: (m / "model.safetensors").unlink(), "has no weights"),
        (lambda m: (m / "model.safetensors").rename(m / "pytorch_model.bin"), "only as pickles"),
        (lambda m: (m / "model.safetensors").rename(m / "model.Q4_1.gguf"), "as GGUF"),
        (lambda m: (m / "tokenizer.json").unlink(), "has no tokenizer"),
        (lambda m: (m / "chat_template.jinja").unlink(), "has no chat template, and the data are chats"),
    ],
)
def test_a_folder_that_is_not_a_whole_model_is_told_what_it_lacks(tmp_path: Path, break_it: object, what: str) -> None:
    break_it(a_model(tmp_path / "model"))  # type: ignore[operator]
    place, found, _ = only_problem(a_spec(tmp_path))
    assert place == "base_model"
    assert what in found


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    model = a_model(tmp_path / "model")
    (model / "model.safetensors").rename(model / "a.safetensors")
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "lacks 1 of 2 weight files, e.g. b.safetensors" in only_problem(a_spec(tmp_path))[1]


@pytest.mark.parametrize("shard", ["../a.safetensors", "/tmp/a.safetensors", 7])
def test_weights_lie_beside_their_index_and_nowhere_else(tmp_path: Path, shard: object) -> None:
    model = a_model(tmp_path / "model")
    (model / "model.safetensors").rename(tmp_path / "a.safetensors")
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": shard}}))
    assert f"names {shard!r}, which is no file beside it" in only_problem(a_spec(tmp_path))[1]


def test_chat_data_need_no_template_of_the_models_where_the_job_names_one(tmp_path: Path) -> None:
    a_model(tmp_path / "model", chat_template=None)
    assert source_problems(a_spec(tmp_path, chat_template="chatml"), None) == ()


def test_plain_text_needs_no_chat_template(tmp_path: Path) -> None:
    a_model(tmp_path / "model", chat_template=None)
    assert source_problems(a_spec(tmp_path, '{"text": "a"}\n'), None) == ()


def test_a_template_in_the_tokenizers_settings_is_one(tmp_path: Path) -> None:
    model = a_model(tmp_path / "model", chat_template=None)
    (model / "tokenizer_config.json").write_text('{"chat_template": "x"}')
    assert source_problems(a_spec(tmp_path), None) == ()


def test_a_mistyped_built_in_template_is_told_what_was_meant(tmp_path: Path) -> None:
    a_model(tmp_path / "model")
    place, what, _ = only_problem(a_spec(tmp_path, chat_template="chatlm"))
    assert place == "chat_template"
    assert "did you mean chatml?" in what


def test_chats_are_not_for_pretraining(tmp_path: Path) -> None:
    a_model(tmp_path / "model")
    assert "method: pretrain learns plain text" in only_problem(a_spec(tmp_path, method="pretrain"))[1]


def test_a_folder_has_no_revision(tmp_path: Path) -> None:
    a_model(tmp_path / "model")
    assert "is a folder, which has no revision main" in only_problem(a_spec(tmp_path, revision="main"))[1]


def test_looking_at_sources_and_the_store_imports_nothing_heavy() -> None:
    heavy = "{'torch', 'transformers', 'numpy', 'pyarrow', 'huggingface_hub'}"
    code = f"import sys, finetuned.host.sources, finetuned.host.store; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_is_wrong_with_a_set_is_told_at_the_field_that_says_it(tmp_path: Path) -> None:
    a_model(tmp_path / "model", chat_template=None)
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows/train.csv").write_text("question,answer\nq,a\n")
    pairs = {"prompt": "question", "completion": "answer"}
    path = str(tmp_path / "rows")
    sets = (
        Dataset(path=path, columns=pairs),
        Dataset(path=path, columns=pairs, split="train[:x]"),
        Dataset(path=path, columns=pairs, split="tset"),
        Dataset(path=path, columns=pairs | {"tools": "functions"}),
        Dataset(path=path, columns=pairs | {"promt": "x"}, format="prompt_completion"),
        Dataset(path=f"{path}/*.jsonl"),
    )
    found = {problem.place: problem.what for problem in source_problems(a_spec(tmp_path, datasets=sets), None)}
    assert list(found) == [
        "datasets[1].split",
        "datasets[2].split",
        "datasets[3].columns",
        "datasets[4].columns",
        "datasets[5].path",
    ]
    assert found["datasets[3].columns"].endswith('has no column "functions"; it has answer, question')


def test_of_a_set_that_only_prepare_can_look_into_what_can_be_told_is_told(tmp_path: Path) -> None:
    a_model(tmp_path / "model")
    (tmp_path / "rows.parquet").write_bytes(b"PAR1....PAR1")
    (tmp_path / "rows.zst").write_bytes(b"\x28\xb5\x2f\xfd....")
    sound = tuple(Dataset(path=str(tmp_path / name)) for name in ("rows.parquet", "rows.zst"))
    assert source_problems(a_spec(tmp_path, datasets=sound), None) == ()
    wrong = sound[0].model_copy(update={"format": "chat", "columns": {"prompt": "x"}})
    assert only_problem(a_spec(tmp_path, datasets=(wrong,)))[0] == "datasets[0].columns"
    text = sound[0].model_copy(update={"format": "chat"})
    assert "method: pretrain" in only_problem(a_spec(tmp_path, datasets=(text,), method="pretrain"))[1]


def test_an_unreadable_folder_inside_a_set_is_told(tmp_path: Path) -> None:
    a_model(tmp_path / "model")
    (tmp_path / "rows/closed").mkdir(parents=True)
    (tmp_path / "rows/a.jsonl").write_text(CHAT)
    spec = a_spec(tmp_path, datasets=(Dataset(path=str(tmp_path / "rows")),))
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid():
            folder.chmod(folder.stat().st_mode | 0o111)
    (tmp_path / "rows/closed").chmod(0)
    with as_an_ordinary_user():
        problems = {problem.place: problem.what for problem in source_problems(spec, None)}
    assert "rows/closed cannot be read" in problems["datasets[0].path"]


def test_a_template_that_stands_in_the_job_file_needs_no_file_and_no_template_of_the_model(tmp_path: Path) -> None:
    a_model(tmp_path / "model", chat_template=None)
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert source_problems(a_spec(tmp_path, chat_template=template), None) == ()


@pytest.mark.parametrize(
    "config", ['{"max_position_embeddings": 512}', '{"text_config": {"max_position_embeddings": 512}}']
)
def test_rows_longer_than_the_model_can_place_are_told_at_the_claim(tmp_path: Path, config: str) -> None:
    (a_model(tmp_path / "model") / "config.json").write_text(config)
    place, what, hint = only_problem(a_spec(tmp_path, max_seq_length=1024))
    assert (place, hint) == ("max_seq_length", "set max_seq_length: 512 or less")
    assert "1,024 is more than the 512 positions" in what
    assert source_problems(a_spec(tmp_path, max_seq_length=512), None) == ()


@pytest.mark.parametrize("config", ["[]", "{", '{"max_position_embeddings": "many"}'])
def test_an_odd_config_says_nothing_about_lengths(tmp_path: Path, config: str) -> None:
    (a_model(tmp_path / "model") / "config.json").write_text(config)
    assert source_problems(a_spec(tmp_path, max_seq_length=1024), None) == ()
