"""--set and pinned paths change what they name, and nothing else of a job file."""

import json
from pathlib import Path

import pytest

from finetuned.core.spec import parse_spec
from finetuned.ctl.edit import pin_to, rewrite_paths, set_field
from finetuned.ctl.exits import Sorry

TEXT = """\
# for the support team
base_model: ./llama   # ours
datasets:
  - path: a.jsonl   # first
    format: chat
  # and what came later
  - path: "b.jsonl"
lr: 1e-4   # careful
metadata: {team: "support"}
# end
"""
JSON = '{"base_model": "./llama", "datasets": [{"path": "a b.jsonl"}], "seed": 1}'


@pytest.mark.parametrize(
    ("assignment", "before", "after"),
    [
        ("learning_rate=2e-5", "lr: 1e-4 ", "lr: 2e-5 "),
        ("datasets.0.format=text", "format: chat", "format: text"),
        ("datasets[1].path=/data/c d.jsonl", '"b.jsonl"', "/data/c d.jsonl"),
        ("base_model=org/name", "./llama ", "org/name "),
        ("seed=7", "# end\n", "seed: 7\n# end\n"),
        ("suffix=a: b", "# end\n", 'suffix: "a: b"\n# end\n'),
        ("suffix=a #b", "# end\n", 'suffix: "a #b"\n# end\n'),
        ("metadata.who=a, b", "{team", '{"who": "a, b", team'),
        ("datasets.2.path=c.jsonl", "lr: 1e-4", '  - {"path": "c.jsonl"}\nlr: 1e-4'),
        ("eval_datasets.0.path=e.jsonl", "# end\n", 'eval_datasets: [{"path": "e.jsonl"}]\n# end\n'),
    ],
)
def test_a_field_is_changed_in_its_place_and_the_rest_stays(assignment, before, after):
    assert TEXT.count(before) == 1
    assert set_field(TEXT, assignment) == TEXT.replace(before, after)


def test_the_adapter_to_go_on_from_is_pinned_like_data(tmp_path):
    text = "base_model: org/name\ninit_adapter: ./adapter\ndatasets: [rows/*.jsonl]\n"
    spec = parse_spec(rewrite_paths(text, pin_to(tmp_path)), "spec").spec
    assert spec.init_adapter == str(tmp_path / "adapter")
    assert spec.datasets[0].path == str(tmp_path / "rows/*.jsonl")


def test_a_template_in_the_job_file_is_no_path(tmp_path):
    template = "{% for m in messages %}{{ m.content }}/{% endfor %}"
    text = f'base_model: org/name\ndatasets: [/d]\nchat_template: "{template}"\n'
    assert rewrite_paths(text, pin_to(tmp_path)) == text


@pytest.mark.parametrize("assignment", ["seed=7", "suffix=tone", "datasets.1.path=c.jsonl", "datasets.0.format=chat"])
def test_json_stays_json(assignment):
    assert json.loads(set_field(JSON, assignment)) != json.loads(JSON)


def test_a_block_gives_way_to_a_value_in_brackets():
    spec = parse_spec(set_field(TEXT, "datasets=[{path: /x.jsonl}]"), "text").spec
    assert [dataset.path for dataset in spec.datasets] == ["/x.jsonl"]
    indentless = "base_model: /m\ndatasets:\n- path: a.jsonl\nseed: 1\n"
    spec = parse_spec(set_field(indentless, "datasets=[{path: /x.jsonl}]"), "text").spec
    assert [dataset.path for dataset in spec.datasets] == ["/x.jsonl"]


def test_a_data_file_named_in_short_can_be_set_too():
    assert set_field("datasets: a.jsonl\n", "datasets.0.path=/b.jsonl") == "datasets: /b.jsonl\n"


def test_an_empty_field_and_an_empty_file_take_a_value():
    assert set_field("seed:\nlr: 1e-4\n", "seed=3") == "seed: 3\nlr: 1e-4\n"
    assert set_field("", "seed=3") == "seed: 3\n"
    assert set_field("# only a comment\n", "seed=3") == "# only a comment\nseed: 3\n"


@pytest.mark.parametrize("assignment", ["seed", "=3", "datasets.7.path=x", "datasets.first.path=x", "base_model.x=1"])
def test_an_assignment_that_makes_no_sense_is_refused(assignment):
    with pytest.raises(Sorry, match="--set"):
        set_field(TEXT, assignment)


def test_a_text_that_is_no_yaml_is_left_to_the_parser():
    assert set_field("a: [", "seed=3") == "a: ["


def test_relative_paths_are_pinned_where_they_stand():
    pinned = rewrite_paths(TEXT, pin_to(Path("/home/me")))
    assert pinned == (
        TEXT.replace("./llama", "/home/me/llama")
        .replace("path: a.jsonl", "path: /home/me/a.jsonl")
        .replace('"b.jsonl"', '"/home/me/b.jsonl"')
    )


def test_what_is_no_relative_path_is_not_pinned():
    text = "base_model: org/name\ndatasets: [{path: /d.jsonl}]\nchat_template: chatml\nmetadata: {path: a.jsonl}\n"
    assert rewrite_paths(text, pin_to(Path("/home/me"))) == text


def test_a_template_file_is_pinned_and_odd_names_are_quoted():
    text = "base_model: ./my model\ntrain_file: a#b.jsonl\nchat_template: t.jinja\n"
    pinned = rewrite_paths(text, pin_to(Path("/home/me")))
    assert pinned == (
        'base_model: "/home/me/my model"\ntrain_file: "/home/me/a#b.jsonl"\nchat_template: /home/me/t.jinja\n'
    )
