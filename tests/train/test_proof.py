"""What the fresh process proves, and what becomes of the job where it cannot."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tiny
from finetuned.core.events import Noticed
from finetuned.core.job import Stage
from finetuned.core.problems import StageFailed, StopRequested
from finetuned.host import process
from finetuned.host.journal import read_events
from finetuned.host.program import run_program
from finetuned.train.artifacts import fresh
from trained import STOPS, Trained, a_full_run, a_lora_run, proofs_in_this_process
from until import until


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def of_a_hub_model(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Trained:
    """An adapter and its merged model, proven by a real process of its own."""
    spool = tmp_path_factory.mktemp("spool")
    return a_lora_run(spool, base, name="acme/tiny", revision="c0ffee", merge=True).export()


def test_the_artifacts_are_proven_by_a_process_that_never_saw_the_trained_model(of_a_hub_model: Trained) -> None:
    page = (of_a_hub_model.artifacts / "report.html").read_text()
    assert "28 tensors are the trained ones, bit for bit" in page
    assert "21 tensors are the merged ones, bit for bit" in page
    assert page.count("2 probe chats are rendered and encoded to the very ids that were trained on") == 2
    assert of_a_hub_model.exported().largest_logit_difference < 1e-4
    drift = of_a_hub_model.exported().merge_drift
    assert drift is not None
    assert drift < 1e-4


def test_an_adapter_names_a_hub_base_by_a_name_and_revision_that_resolve_to_it(of_a_hub_model: Trained) -> None:
    """The fresh process loaded the base by them, offline; nothing else would have given it these logits."""
    config = json.loads((of_a_hub_model.artifacts / "adapter" / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["revision"]) == ("acme/tiny", "c0ffee")


def test_no_path_of_the_base_stands_in_a_model_that_is_whole(of_a_hub_model: Trained, base: Path) -> None:
    for file in (of_a_hub_model.artifacts / "merged").iterdir():
        assert str(base).encode() not in file.read_bytes(), file.name


def test_nothing_of_the_proof_stays_behind(of_a_hub_model: Trained) -> None:
    assert not (of_a_hub_model.run.job.path / ".export").exists()


@pytest.fixture
def here() -> Iterator[None]:
    with proofs_in_this_process(charts=False):
        yield


def failure_of(trained: Trained) -> StageFailed:
    with pytest.raises(StageFailed) as failed:
        trained.export()
    assert not trained.artifacts.exists()
    assert not (trained.run.job.path / ".export").exists()
    return failed.value


@pytest.mark.usefixtures("here")
def test_a_probe_chat_that_the_saved_folder_encodes_to_other_ids_fails_the_job(tmp_path: Path, base: Path) -> None:
    trained = a_lora_run(tmp_path, base)
    # Trained on what another template made of the chat, as after a change of the saved one.
    changed = tiny.CHATML.replace("assistant\n", "model\n")
    ids = trained.tokenizer.apply_chat_template(trained.chats[0], chat_template=changed, add_generation_prompt=True)
    trained.probes[0]["prompt_ids"] = ids["input_ids"]
    trained.rewrite_probes()
    failure = failure_of(trained)
    assert "the chat template and tokenizer in adapter/ read a probe as" in str(failure)
    assert "they part at token" in str(failure)
    assert not failure.retry


@pytest.mark.usefixtures("here")
def test_tools_are_rendered_in_the_saved_folder_as_in_training(tmp_path: Path, base: Path) -> None:
    template = "{% for tool in tools or [] %}{{ tool['function']['name'] + '\n' }}{% endfor %}" + tiny.CHATML
    trained = a_lora_run(tmp_path, base, chat_template=template)
    tools = [{"type": "function", "function": {"name": "add", "description": "", "parameters": {}}}]
    ids = trained.tokenizer.apply_chat_template(
        trained.chats[0], tools=tools, chat_template=template, add_generation_prompt=True
    )["input_ids"]
    trained.probes[0] |= {"prompt_ids": ids, "tools": tools}
    trained.rewrite_probes()
    trained.export()
    assert (trained.artifacts / "report.html").exists()


@pytest.mark.usefixtures("here")
def test_a_template_that_writes_the_date_is_proven_on_any_day(tmp_path: Path, base: Path) -> None:
    dated = "{{ strftime_now('%Y-%m-%d') }}" + tiny.CHATML
    still = dated.replace("{{ strftime_now('%Y-%m-%d') }}", "2024-07-26")
    trained = a_lora_run(tmp_path, base, chat_template=dated)
    for probe, chat in zip(trained.probes, trained.chats, strict=True):
        ids = trained.tokenizer.apply_chat_template(chat, chat_template=still, add_generation_prompt=True)["input_ids"]
        probe |= {"prompt_ids": ids, "chat_template": still}
    trained.rewrite_probes()
    trained.export()
    assert trained.exported()


@pytest.mark.usefixtures("here")
def test_stops_that_were_not_saved_fail_the_job(tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finetuned.train.artifacts.save.stops_of", lambda plan, tokenizer: [STOPS[0]])
    failure = failure_of(a_lora_run(tmp_path, base))
    assert f"stops on the tokens {STOPS[:1]}, and the data on {STOPS}" in str(failure)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("a_run", [a_lora_run, a_full_run])
def test_other_logits_than_the_trained_model_s_fail_the_job_with_their_numbers(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch, a_run: Any
) -> None:
    from finetuned.train.artifacts import proof

    measure = proof.write_logits
    monkeypatch.setattr(proof, "write_logits", lambda logits, scratch: measure([1.05 * row for row in logits], scratch))
    failure = failure_of(a_run(tmp_path, base))
    assert "does not answer as the trained one: logits differ by" in str(failure)
    assert "at most 1e-04 of it was expected" in str(failure)
    assert not failure.retry


def with_a_process_that(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """The fresh process does this instead: a few lines of Python."""

    def instead(command: Any, **more: Any) -> Any:
        return run_program([sys.executable, "-c", program, *command[3:]], **more)

    monkeypatch.setattr(fresh, "run_program", instead)


def test_a_proof_that_is_killed_is_trouble_to_be_retried(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_a_process_that(monkeypatch, "import os; print('loading', flush=True); os.kill(os.getpid(), 9)")
    failure = failure_of(a_lora_run(tmp_path, base))
    assert "could not be proven: the process that loads it again was killed (SIGKILL): loading" in str(failure)
    assert failure.retry


def a_process_that_raises(monkeypatch: pytest.MonkeyPatch, error: str) -> None:
    program = f"""
from finetuned.train.artifacts import verify
def fails(task):
    raise {error}
verify.verify = fails
verify.main()
"""
    with_a_process_that(monkeypatch, program)


def test_too_little_memory_for_the_proof_is_trouble_to_be_retried(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_process_that_raises(monkeypatch, "MemoryError('no room')")
    failure = failure_of(a_lora_run(tmp_path, base))
    assert "too little memory to load what was exported: no room" in str(failure)
    assert failure.retry


@pytest.mark.parametrize(
    ("error", "raised", "is_retried"),
    [
        ("AttributeError('no attribute SCB')", "AttributeError: no attribute SCB", False),
        pytest.param("RuntimeError('CUDA error\\n…')", "RuntimeError: CUDA error", True, marks=pytest.mark.slow),
    ],
)
def test_a_proof_that_breaks_off_says_in_a_line_what_was_raised(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch, error: str, raised: str, is_retried: bool
) -> None:
    a_process_that_raises(monkeypatch, error)
    failure = failure_of(a_lora_run(tmp_path, base))
    assert str(failure) == f"what was exported could not be proven: {raised}"
    assert failure.retry is is_retried


def test_a_stop_during_the_proof_ends_it_within_moments_and_the_next_attempt_begins_anew(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = a_lora_run(tmp_path, base)
    marker = tmp_path / "pid"
    program = f"import os, time; open({str(marker)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    with_a_process_that(monkeypatch, program)
    stopped: list[float] = []

    def stop() -> None:
        until(lambda: marker.exists() and marker.read_text() != "")
        stopped.append(time.monotonic())
        trained.run.stop.why = "asked to stop (SIGTERM)"

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(StopRequested):
        trained.export()
    assert time.monotonic() - stopped[0] < 5
    assert process.read_stat(int(marker.read_text())) is None
    assert not trained.artifacts.exists()
    assert not (trained.run.job.path / ".export").exists()
    thread.join()


def test_the_proof_dies_with_the_worker(tmp_path: Path) -> None:
    """A worker that is killed leaves no process behind that holds the device's memory."""
    task = tmp_path / "task.json"
    os.mkfifo(task)  # The fresh process waits here until it is killed.
    program = f"""
import os, subprocess, sys, time
command = [sys.executable, "-m", "finetuned.train.artifacts.verify", {str(task)!r}, str(os.getpid())]
subprocess.Popen(command, start_new_session=True)
time.sleep(600)
"""
    worker = subprocess.Popen([sys.executable, "-c", program])
    try:
        until(lambda: bool(process.children_of(worker.pid)))
        [child] = process.children_of(worker.pid)
        with open(task, "wb"):  # Opens once the other side reads: it has asked to die with its parent by then.
            worker.send_signal(signal.SIGKILL)
            worker.wait()
            until(lambda: process.read_stat(child) is None)
    finally:
        worker.kill()


def test_rows_that_were_dropped_or_cut_are_listed_beside_the_report(tmp_path: Path, base: Path) -> None:
    trained = a_lora_run(tmp_path, base, dropped_rows=1, rows_without_targets=1, duplicate_rows=2, weighted_out_rows=3)
    prepared = trained.run.job.spool / "store" / "prepared" / trained.plan.data.prepared
    (prepared / "touched.jsonl").write_text('{"place": "support.jsonl:7", "what": "no assistant turn"}\n')
    with proofs_in_this_process(charts=False):
        trained.export()
    assert "support.jsonl:7" in (trained.artifacts / "touched-rows.jsonl").read_text()
    page = (trained.artifacts / "report.html").read_text()
    for line in (
        "1 row was dropped for having nothing to learn",
        "2 rows said exactly what an earlier one did",
        "3 rows were left out by the weights of their sets",
    ):
        assert line in page
        assert line in (trained.artifacts / "adapter" / "README.md").read_text()
    assert not [event for event in read_events(trained.run.job.events_file(Stage.TRAIN)) if isinstance(event, Noticed)]
