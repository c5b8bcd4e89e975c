"""The worker as a process: its attempt, its stop, its end."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from finetuned.core.events import Exported, FailedForGood, Finished, Restored, Started, Stepped, Stopped
from finetuned.core.job import Stage
from finetuned.host.jobdir import JobDir
from finetuned.host.journal import read_events
from training import a_job, a_plan, add_launch, events_of, wait_until


def test_nothing_heavy_is_imported_before_the_attempt_is_opened():
    program = (
        "import sys, finetuned.train.main; print([m for m in ('torch', 'transformers', 'numpy') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.fixture
def start() -> Iterator[Callable[[JobDir, int], subprocess.Popen]]:
    """Starts workers, and kills what is left of them at the end."""
    started: list[subprocess.Popen] = []

    def start(job: JobDir, launch: int) -> subprocess.Popen:
        command = [sys.executable, "-m", "finetuned.train", str(job.path), str(launch)]
        started.append(subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def last_event(job: JobDir) -> Any:
    return read_events(job.events_file(Stage.TRAIN))[-1]


@pytest.mark.slow
def test_sigterm_ends_in_a_checkpoint_and_a_new_launch_finishes(
    model_of: Callable[..., Path], spool: Path, start: Callable[[JobDir, int], subprocess.Popen]
):
    plan = a_plan(model_of("llama"), spool, total_steps=80, eval_steps=40, save_steps=0)
    job = a_job(spool, plan)
    worker = start(job, 1)
    wait_until(lambda: len(events_of(job, Stepped)) >= 3)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0
    ending = last_event(job)
    assert isinstance(ending, Stopped)
    assert 3 <= ending.step < 80
    assert ending.why == "asked to stop (SIGTERM)"
    assert job.newest_whole_checkpoint().step == ending.step

    assert start(job, add_launch(job)).wait(300) == 0
    assert events_of(job, Restored)[-1].step == ending.step
    assert last_event(job).model_copy(update={"time": ending.time}) == Finished(time=ending.time, step=80)
    assert [event.attempt for event in events_of(job, Started)] == [1, 2]
    assert events_of(job, Exported)
    assert (job.artifacts / "adapter" / "adapter_model.safetensors").exists()


@pytest.mark.slow
def test_sigterm_while_loading_stops_with_nothing_lost_and_a_bad_plan_fails_for_good(
    model_of: Callable[..., Path], spool: Path, start: Callable[[JobDir, int], subprocess.Popen]
):
    job = a_job(spool, a_plan(model_of("llama"), spool, learning_rate=1e38, warmup_steps=0))
    worker = start(job, 1)
    wait_until(lambda: bool(events_of(job, Started)))
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0
    assert isinstance(last_event(job), Stopped)
    assert job.list_checkpoints() == []

    assert start(job, add_launch(job)).wait(60) == 0
    ending = last_event(job)
    assert isinstance(ending, FailedForGood)
    assert "data.jsonl:" in ending.error
    assert "Traceback" not in ending.error
    assert "Traceback" in job.log_file(Stage.TRAIN).read_text()
