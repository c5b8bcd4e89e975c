"""preview.txt, and the look at the first rows of a job that is not submitted yet."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from families import tokenizer_of
from finetuned.core.preview import Preview, PreviewAsked
from finetuned.host.store import hash_files, seal
from finetuned.prepare.glance import glance
from preparing import InProcess, a_chat, a_model_folder


@pytest.fixture
def bench(tmp_path: Path) -> InProcess:
    return InProcess(tmp_path, a_model_folder(tmp_path / "model", tokenizer_of("chatml")))


def look(bench: InProcess, *rows: object, models: Path | None = None, show: int = 3, **fields: Any) -> Preview:
    spec = bench.spec(*rows)
    text = {"base_model": spec.base_model, "datasets": [{"path": spec.datasets[0].path}]} | fields
    return glance(
        PreviewAsked(
            spec=json.dumps(text),
            source="job.json",
            rows=show,
            with_tokens=bool(fields.get("seed")),
            models=str(models) if models else None,
        )
    )


def test_a_preview_tells_what_became_of_the_rows_and_what_is_learned(bench: InProcess) -> None:
    rows = [a_chat("hi", "ho"), a_chat("hi"), a_chat("hi", "ho"), *(a_chat(f"add {i}", "gives") for i in range(200))]
    bench.prepare(bench.spec(*rows, a_chat("hi", "long " * 100), max_dropped_ratio=0.1))
    text = bench.runs[-1].job.preview.read_text()
    assert "rows: 1 dropped for their length, 1 dropped for having nothing to learn, 1 equal to an earlier one" in text
    assert "learned: the turns of assistant, each with its end" in text
    assert "generation stops on: '<|im_end|>'" in text
    assert "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n⟦ho<|im_end|>⟧" in text


def test_a_glance_shows_the_first_rows_with_what_is_learned_of_them(bench: InProcess) -> None:
    found = look(bench, a_chat("hi", "ho"), a_chat("hi", "hum"), a_chat("a", "b"), show=2)
    assert found.problems == ()
    assert "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n⟦ho<|im_end|>⟧" in found.text
    assert "⟦hum<|im_end|>⟧" in found.text
    assert "⟦b<|im_end|>⟧" not in found.text
    assert "looked at the first 3 rows: " in found.text
    assert list((bench.root).glob("spool*")) == []


def test_a_glance_tells_what_will_become_of_odd_rows(bench: InProcess) -> None:
    found = look(bench, a_chat("hi", "long " * 100), a_chat("hi"), a_chat("hi", "ho"))
    assert "1 longer than max_seq_length 128, 1 with nothing to learn" in found.text
    assert "(to be dropped: longer than max_seq_length 128)" in found.text
    assert "(to be dropped: nothing in it is learned)" in found.text


def test_a_glance_tells_every_row_that_cannot_be_used_and_shows_the_others(bench: InProcess) -> None:
    found = look(bench, {"messages": 1}, a_chat("hi", "ho"), {"messages": [{"role": "user"}]})
    assert [problem.place.rpartition(":")[2] for problem in found.problems] == ["1", "3"]
    assert "⟦ho<|im_end|>⟧" in found.text


def test_a_glance_tells_the_problems_of_the_job_file_the_data_and_the_template(bench: InProcess) -> None:
    assert look(bench, a_chat("a", "b"), lora_rr=3).problems[0].what.startswith("is not a known field")
    assert "/nowhere does not exist" in look(bench, a_chat("a", "b"), base_model="/nowhere").problems[0].what
    [problem] = look(bench, a_chat("a", "b"), chat_template="{% for m in messages %}{{ m }}").problems
    assert "the chat template cannot render one question and its answer" in problem.what
    [problem] = look(bench, a_chat("a", "b"), max_seq_length=4096).problems
    assert problem.place == "max_seq_length"


def test_a_glance_does_not_read_a_large_file_to_its_end(bench: InProcess) -> None:
    path = bench.root / "large.jsonl"
    with open(path, "wb") as file:
        file.write((json.dumps(a_chat("hi", "ho")) + "\n").encode() * 2000)
        os.truncate(file.fileno(), 10 << 30)
    started = time.monotonic()
    found = look(bench, datasets=[{"path": str(path)}])
    assert "looked at the first 100 rows" in found.text
    assert time.monotonic() - started < 20


def test_a_model_of_the_hub_is_used_from_the_store_and_never_fetched(bench: InProcess) -> None:
    models = bench.root / "store"
    models.mkdir()
    [problem] = look(bench, a_chat("a", "b"), base_model="org/tiny", models=models).problems
    assert problem.what == "org/tiny is not on this machine yet, and a preview fetches nothing"
    commit = "0123456789abcdef0123456789abcdef01234567"
    names = sorted(path.name for path in bench.model.iterdir())
    seal(bench.model, models / f"org--tiny--{commit}", tuple(hash_files(bench.model, names)))
    assert "⟦b<|im_end|>⟧" in look(bench, a_chat("a", "b"), base_model="org/tiny", models=models).text
    other = look(bench, a_chat("a", "b"), base_model=f"org/tiny@{'9' * 40}", models=models)
    assert other.problems[0].place == "base_model"
