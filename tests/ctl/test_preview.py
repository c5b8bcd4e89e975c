"""`finetunectl preview`: the rows of a job as the model will see them."""

import json
import re
from pathlib import Path

import pytest

from finetuned.core.job import Phase
from preparing import a_chat, a_model_folder

LEARNED = "<|im_start|>user\nadd 1<|im_end|>\n<|im_start|>assistant\n⟦gives 1<|im_end|>⟧"


@pytest.fixture
def job_file(bench) -> Path:
    from families import tokenizer_of

    a_model_folder(bench.folder / "model", tokenizer_of("chatml"))
    rows = [a_chat(f"add {number}", f"gives {number}") for number in range(5)]
    (bench.folder / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = bench.folder / "tone.yaml"
    spec.write_text("base_model: ./model\ndatasets: [{path: chats.jsonl}]\n")
    return spec


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.slow
def test_a_preview_shows_what_is_learned_and_leaves_nothing_behind(bench, job_file, monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    before = files_of(bench.spool.path), files_of(bench.folder)
    answer = bench.ctl("preview", str(job_file), "--rows", "2")
    assert answer.code == 0, answer.err
    assert LEARNED in answer.out
    assert "⟦gives 2<|im_end|>⟧" not in answer.out
    assert "\x1b" not in answer.out
    assert (files_of(bench.spool.path), files_of(bench.folder)) == before


@pytest.mark.slow
def test_a_preview_is_coloured_on_a_terminal_and_lists_tokens_when_asked(bench, job_file, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    answer = bench.ctl("preview", str(job_file), "--rows", "1", "--tokens")
    assert "\x1b[32m⟦gives 0<|im_end|>⟧\x1b[0m" in answer.out
    learned = [line.split() for line in re.sub(r"\x1b\[[0-9;]*m", "", answer.out).splitlines() if line[:1] == ">"]
    assert learned[-1][-1] == "'<|im_end|>'"


@pytest.mark.slow
def test_what_a_preview_does_not_do_is_said(bench, job_file):
    (bench.folder / "chats.jsonl").write_text('{"messages": []}\n' * 30)
    job_file.write_text(job_file.read_text().replace("chats.jsonl}", 'chats.jsonl, split: "[:50%]"}'))
    answer = bench.ctl("preview", str(job_file))
    assert "and 10 more rows like these" in answer.out
    assert "split [:50%] is not applied" in answer.out + answer.err


@pytest.mark.slow
def test_rows_that_cannot_be_used_are_told_as_check_tells_problems(bench, job_file):
    (bench.folder / "chats.jsonl").write_text('{"messages": []}\n' + json.dumps(a_chat("add 1", "gives 1")) + "\n")
    answer = bench.ctl("preview", str(job_file))
    assert answer.code == 1
    assert "tone.yaml: 1 problem\n" in answer.out
    assert "chats.jsonl:1" in answer.out
    assert LEARNED in answer.out


def test_problems_of_the_job_file_are_told_in_the_words_of_check(bench, job_file):
    job_file.write_text(job_file.read_text() + "lora_rr: 3\n")
    answer = bench.ctl("preview", str(job_file))
    assert (answer.code, answer.out) == (1, bench.ctl("check", str(job_file)).out)
    assert bench.ctl("preview", str(job_file), "--json").json["problems"][0]["place"].startswith("line 3")


def test_the_preview_of_a_prepared_job_is_the_one_that_prepare_wrote(bench, monkeypatch):
    job = bench.job(Phase.QUEUED, "tone")
    answer = bench.ctl("preview", "tone")
    assert (answer.code, "is not prepared yet" in answer.err) == (1, True)
    job.preview.write_text("train  1 row\n⟦yes⟧\x1b]0;evil\x07\n")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    assert bench.ctl("preview", "tone").out == "train  1 row\n⟦yes⟧�]0;evil�\n"


def test_a_job_file_that_does_not_exist_is_told_as_such(bench):
    answer = bench.ctl("preview", "nowhere.yaml")
    assert answer.code == 2
    assert "there is no file nowhere.yaml" in answer.err
