"""Whatever is in a job file, reading it ends with a spec or with clear problems."""

import json
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finetuned.core.problems import InvalidSpec, Problem
from finetuned.core.spec import ParsedSpec, parse_spec

SOUND = """\
# a job with a bit of everything
base_model: meta-llama/Llama-3.1-8B-Instruct
datasets:
  - path: /srv/data/rows.jsonl
    format: chat
  - {path: "/srv/data/more rows.jsonl"}
lora_r: 8
lora_target_modules: [q_proj, v_proj]
learning_rate: 1e-4
micro_batch_size: 4
gradient_accumulation_steps: 8
warmup_steps: 0.1
eval_strategy: steps
early_stopping_patience: 3
report_to: none
bf16: true
metadata: {team: support, note: "no\\tidea"}
"""


def problem_of(text: str) -> Problem:
    with pytest.raises(InvalidSpec) as refused:
        parse_spec(text, "job.yaml")
    (problem,) = refused.value.problems
    return problem


@pytest.mark.parametrize(
    ("text", "place", "word"),
    [
        ("", "the file", "is empty"),
        ("# only a comment\n", "the file", "is empty"),
        ("--- ~", "the file", "is empty"),
        ("[1, 2]", "line 1", "is a list"),
        ("\n- a: b", "line 2", "is a list"),
        ("hello there", "line 1", "is plain text"),
        ("base_model: a\n---\nbase_model: b", "line 2", "second document"),
        ("base_model: \x00\x01\x02", "line 1", "U+0000"),
        ("a: b\n\x7fELF", "line 2", "U+007F"),
        ('a: 1\nb: "\\0"', "line 2", "control character U+0000"),
        ('{"a": "\\ud83d"}', "line 1", "half of a character"),
        ('a: "\\UFFFFFFFF"', "the file", "cannot be read as YAML"),
        ("a: [1, 2\nb: 3", "line 2", "cannot be read as YAML"),
        ("a:\n\t- b", "line 2", "cannot be read as YAML"),
        ("a: b: c", "line 1", "cannot be read as YAML"),
        ("a: 'open", "line 1", "cannot be read as YAML"),
        ("a: &anchor 1\nb: *anchor", "line 1", "&anchor"),
        ("a: *proj", "line 1", "*proj"),
        ("a: !!python/object/apply:os.system [ls]", "line 1", "tags (!) are not read"),
        ("a: !secret x", "line 1", "tags (!) are not read"),
        ("? [a, b]\n: c", "line 1", "field's name should be"),
        ("a: " + "[" * 5000 + "]" * 5000, "line 1", "nested more than"),
        ("[" * 100_000, "line 1", "nested more than"),
        ("a: [" + "1, " * 20_000 + "]", "line 1", "10,000th value"),
        ("#" * 300_000, "the file", "300,000 characters"),
    ],
)
def test_a_text_that_is_no_job_file_gets_one_clear_problem(text, place, word):
    problem = problem_of(text)
    assert problem.place == place
    assert word in problem.what


def test_an_alias_bomb_is_refused_at_its_first_anchor():
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60))
    assert "&a0" in problem_of(bomb).what


def test_tabs_for_indentation_are_told_to_use_spaces():
    assert problem_of("a:\n\t- b").hint == "indent with spaces, not with tabs"


def test_a_strangers_text_is_shown_on_one_line_without_control_characters():
    with pytest.raises(InvalidSpec) as refused:
        parse_spec(SOUND + "'evil\nname\t': 1\ndevice: \"cpu\\n\\u202e\"\nseed: " + "x" * 500, "job.yaml")
    for problem in refused.value.problems:
        assert len(problem.place + problem.what) < 200
        assert (problem.place + problem.what).isprintable()


def test_thousands_of_unknown_fields_are_all_told_without_taking_long():
    with pytest.raises(InvalidSpec) as refused:
        parse_spec("".join(f"unknown_field_{n}: 1\n" for n in range(3000)), "job.yaml")
    assert len(refused.value.problems) == 3002


def test_reading_an_ordinary_job_file_takes_milliseconds():
    parse_spec(SOUND, "job.yaml")
    quickest = min(_seconds_to_parse(SOUND) for _ in range(5))
    assert quickest < 0.02


def _seconds_to_parse(text: str) -> float:
    start = time.process_time()
    parse_spec(text, "job.yaml")
    return time.process_time() - start


def only_spec_or_problems(text: str) -> None:
    try:
        outcome: ParsedSpec | tuple[Problem, ...] = parse_spec(text, "job.yaml")
    except InvalidSpec as refused:
        outcome = refused.problems
    assert outcome


@settings(max_examples=150, deadline=None)
@given(st.text())
def test_any_text_ends_with_a_spec_or_with_problems(text):
    only_spec_or_problems(text)


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="abr_:-[]{}'\"\\,#&*!|>%@`?~ \n\t0123e+.\x00\x85\u2028\ud800", max_size=60))
def test_any_text_of_yaml_signs_ends_with_a_spec_or_with_problems(text):
    only_spec_or_problems(text)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_any_damage_to_a_sound_file_ends_with_a_spec_or_with_problems(seed):
    only_spec_or_problems(_damaged(SOUND, random.Random(seed)))


def _damaged(text: str, chance: random.Random) -> str:
    """Some characters, lines or values of `text` lost, doubled, swapped or replaced."""
    values = ["", "~", "auto", "no", "[]", "{}", "-1", "0", "1e400", "[[a]]", "{a: {b: c}}", '"\\udc00"', "&a", "!!int"]
    for _ in range(chance.randint(1, 4)):
        lines = text.splitlines(keepends=True) or [""]
        line = chance.randrange(len(lines))
        match chance.randrange(5):
            case 0:
                at = chance.randrange(len(text) + 1)
                text = text[:at] + chance.choice("\x00:[]{}'\"&*!\t\n-#%\ufeff\U0001f600") + text[at:]
            case 1:
                at = chance.randrange(len(text) + 1)
                text = text[:at] + text[at + chance.randint(1, 20) :]
            case 2:
                lines[line] = lines[line].partition(":")[0] + ": " + chance.choice(values) + "\n"
                text = "".join(lines)
            case 3:
                text = "".join([*lines, lines[line]])
            case 4:
                chance.shuffle(lines)
                text = "".join(lines)
    return text


@settings(max_examples=100, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=8,
    ),
    st.sampled_from(["datasets", "base_model", "metadata", "lora_target_modules", "seed", "optim", "use_peft", "bf16"]),
)
def test_any_json_value_in_any_kind_of_field_ends_with_a_spec_or_with_problems(value, field):

    only_spec_or_problems(json.dumps({"base_model": "/m", "datasets": ["/d"], field: value}))
