"""import: another tool's file becomes a job file on stdout, and what became of each key stands on stderr."""

import json
from pathlib import Path

from finetuned.core.spec import parse_spec

RECIPE = """\
base_model: org/model
datasets: [{path: chats.jsonl, type: chat_template}]
learning_rate: 1e-5
micro_batch_size: 2
gradient_accumulation_steps: 4
wandb_project: mine
sequence_len: 2048
"""
FACTORY = "model_name_or_path: org/model\nstage: sft\ndataset: mine\n"


def a_recipe(bench, text: str = RECIPE) -> str:
    path = bench.folder / "recipe.yml"
    path.write_text(text)
    return str(path)


def test_the_job_file_goes_to_stdout_and_the_report_to_stderr(bench):
    answer = bench.ctl("import", a_recipe(bench))
    assert answer.code == 0
    assert parse_spec(answer.out, "job.yaml").spec.global_batch_size == 8
    assert "line 6   wandb_project" in answer.err
    assert "max_dropped_ratio" in answer.err


def test_a_refused_file_yields_no_job_file_and_status_1(bench):
    answer = bench.ctl(
        "import", a_recipe(bench, RECIPE + "rl: dpo\nplugins: [a.B]\n"), "-o", str(bench.folder / "job.yaml")
    )
    assert (answer.code, answer.out) == (1, "")
    assert "line 8   rl" in answer.err
    assert "line 9   plugins" in answer.err
    assert not (bench.folder / "job.yaml").exists()


def test_the_job_file_is_written_where_asked_and_nothing_is_replaced(bench):
    target = bench.folder / "job.yaml"
    answer = bench.ctl("import", a_recipe(bench), "-o", str(target))
    assert (answer.code, answer.out) == (0, "")
    assert parse_spec(target.read_text(), "job.yaml").spec.base_model == "org/model"
    target.write_text("mine")
    assert bench.ctl("import", a_recipe(bench), "-o", str(target)).code == 6
    assert target.read_text() == "mine"


def test_what_is_imported_passes_the_check_as_it_is(bench):
    bench.a_spec()
    source = a_recipe(bench, RECIPE.replace("org/model", "./model"))
    assert bench.ctl("import", source, "-o", str(bench.folder / "job.yaml")).code == 0
    answer = bench.ctl("check", str(bench.folder / "job.yaml"))
    assert (answer.code, answer.out.strip()) == (0, f"{bench.folder}/job.yaml: no problems")


def test_the_kind_can_be_forced_and_is_not_guessed(bench):
    ours = a_recipe(bench, "base_model: /m\ndatasets: [{path: /d.jsonl}]\n")
    assert bench.ctl("import", ours).code == 2
    answer = bench.ctl("import", ours, "--as", "axolotl")
    assert answer.code == 1
    assert "learning_rate" in answer.err
    assert bench.ctl("import", ours, "--as", "torchtune").code == 2


def test_standard_input_is_read_and_json_is_given(bench):
    answer = bench.ctl("import", "-", "--json", stdin=RECIPE)
    assert answer.code == 0
    assert answer.json["kind"] == "axolotl"
    assert parse_spec(answer.json["job_file"], "job.yaml")
    assert {"kept", "changed", "ignored", "problems"} <= set(answer.json)


def test_the_description_of_data_sets_is_found_beside_the_file_or_where_it_is_named(bench, monkeypatch):
    monkeypatch.chdir(bench.folder)
    source = a_recipe(bench, FACTORY)
    elsewhere = bench.folder / "elsewhere"
    assert bench.ctl("import", source).code == 1
    for folder, options in (
        (bench.folder / "data", ()),
        (elsewhere, ("--dataset-info", str(elsewhere / "dataset_info.json"))),
    ):
        folder.mkdir()
        (folder / "dataset_info.json").write_text(json.dumps({"mine": {"file_name": "mine.json"}}))
        answer = bench.ctl("import", source, *options)
        assert answer.code == 0
        path = parse_spec(answer.out, "job.yaml").spec.datasets[0].path
        assert (bench.folder / path).resolve() == Path(folder / "mine.json").resolve()
        (folder / "dataset_info.json").unlink()


def test_uploads_and_models_of_a_service_are_named_by_options(bench):
    request = bench.folder / "job.json"
    request.write_text(
        json.dumps({"model": "gpt-4o-mini", "training_file": "file-1", "method": {"type": "supervised"}})
    )
    assert bench.ctl("import", str(request)).code == 1
    answer = bench.ctl("import", str(request), "--base-model", "/m", "--data", "file-1=/d.jsonl")
    spec = parse_spec(answer.out, "job.yaml").spec
    assert (answer.code, spec.base_model, spec.datasets[0].path) == (0, "/m", "/d.jsonl")
    assert bench.ctl("import", str(request), "--data", "file-1").code == 2


def test_rows_per_pack_is_a_number_of_rows(bench):
    source = a_recipe(bench, RECIPE + "sample_packing: true\n")
    for value in ("nan", "inf", "0.5"):
        answer = bench.ctl("import", source, "--rows-per-pack", value)
        assert (answer.code, answer.out) == (2, "")
    assert "global_batch_size: 112" in bench.ctl("import", source, "--rows-per-pack", "14").out


def test_a_file_that_is_not_there_or_no_yaml_is_told_so(bench):
    assert bench.ctl("import", str(bench.folder / "recpie.yml")).code == 2
    answer = bench.ctl("import", a_recipe(bench, "base_model: ["))
    assert answer.code == 1
    assert "line" in answer.err


def test_other_words_for_it_are_understood(bench):
    assert "did you mean import?" in bench.ctl("convert", "x").err
