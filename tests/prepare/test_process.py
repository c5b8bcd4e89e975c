"""The prepare stage as a process of its own, as a launcher starts it."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tiny
from finetuned.core.events import Entered, FailedForGood, Finished, Noticed, Progressed, Started, Stopped
from finetuned.core.job import Launch, Stage
from finetuned.host.jobdir import JobDir, write_record
from finetuned.host.journal import read_events
from finetuned.host.machine import boot_id
from finetuned.host.stage import now
from preparing import a_chat
from until import until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def a_job(tmp_path: Path, model: Path) -> Callable[..., JobDir]:
    def build(rows: list[dict[str, object]], more: str = "") -> JobDir:
        data = tiny.write_jsonl(tmp_path / "data.jsonl", rows)
        job = JobDir(tmp_path / "spool/queued/20260101-000000-job-00000000")
        job.launches.mkdir(parents=True)
        job.spec_file.write_text(f"base_model: {model}\ndatasets: [{{path: {data}}}]\n{more}")
        launch = Launch(number=1, stage=Stage.PREPARE, boot_id=boot_id(), release=sys.executable, asked=now())
        write_record(job.launch_file(1), launch)
        return job

    return build


def start(job: JobDir) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "finetuned.prepare", str(job.path), "1"])


def test_a_job_is_prepared_to_facts_preview_and_rows(a_job: Callable[..., JobDir]) -> None:
    job = a_job(tiny.chat_rows(300), "max_length: 128\n")
    assert start(job).wait() == 0
    events = read_events(job.events_file(Stage.PREPARE))
    assert isinstance(events[0], Started)
    assert isinstance(events[-1], Finished)
    assert [event.activity for event in events if isinstance(event, Entered)] == ["fetching", "reading"]
    facts = job.read_facts()
    assert facts is not None
    assert (facts.data.train_rows, facts.data.eval_rows, facts.data.max_seq_length) == (285, 15, 128)
    assert any("max_length" in notice for notice in facts.notices)
    assert {event.text for event in events if isinstance(event, Noticed)} == set(facts.notices)
    folder = job.spool / "store/prepared" / facts.data.prepared
    assert {path.name for path in folder.iterdir()} >= {"train.arrow", "eval.arrow", "probes.json"}
    assert len(json.loads((folder / "probes.json").read_text())) == 4
    assert "⟦gives 0<|im_end|>⟧" in job.preview.read_text()


def test_modules_that_a_job_names_are_found_although_the_stage_is_free_of_torch(a_job: Callable[..., JobDir]) -> None:
    job = a_job(tiny.chat_rows(8), "lora_target_modules: [q_proj, v_proj]\nmodules_to_save: [lm_head]\n")
    assert start(job).wait() == 0
    assert isinstance(read_events(job.events_file(Stage.PREPARE))[-1], Finished)


def test_what_freeze_trains_is_counted_although_the_stage_is_free_of_torch(a_job: Callable[..., JobDir]) -> None:
    job = a_job(tiny.chat_rows(8), "finetuning_type: freeze\nunfrozen_parameters: [norm]\n")
    assert start(job).wait() == 0
    facts = job.read_facts()
    assert facts is not None
    assert facts.unfrozen_parameters == 5 * 64


def test_a_bad_spec_ends_for_good_with_its_problems(a_job: Callable[..., JobDir]) -> None:
    job = a_job([a_chat("a", "b")], "learning_rat: 1e-4\n")
    assert start(job).wait() == 0
    ending = read_events(job.events_file(Stage.PREPARE))[-1]
    assert isinstance(ending, FailedForGood)
    assert len(ending.problems) == 1


def test_sigterm_while_rows_are_read_stops_and_leaves_nothing_half_made(a_job: Callable[..., JobDir]) -> None:
    job = a_job(tiny.chat_rows(60_000))
    process = start(job)

    def is_reading_rows() -> bool:
        events = read_events(job.events_file(Stage.PREPARE))
        return any(isinstance(event, Progressed) and event.unit == "rows" for event in events)

    until(is_reading_rows, 60)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0
    assert isinstance(read_events(job.events_file(Stage.PREPARE))[-1], Stopped)
    assert list((job.spool / "store/prepared").iterdir()) == []
    assert not job.facts_file.exists()
