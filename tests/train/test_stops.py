"""Stops, kills and early ends: honoured wherever they fall, and counted on from where they left off."""

from collections.abc import Callable
from pathlib import Path

import pytest

from finetuned.core.events import Checkpointed, Entered, Evaluated, Event, Stepped, Stopped
from finetuned.core.plan import RunPlan
from finetuned.core.problems import StopRequested
from finetuned.host.jobdir import JobDir
from finetuned.host.stage import StageRun, ending_of
from finetuned.host.watchdog import Watchdog
from finetuned.train.engine.checkpoint import Manifest, Snapshot, partial_checkpoint
from finetuned.train.engine.position import Position
from finetuned.train.engine.saver import Saver
from finetuned.train.main import train as train_and_export
from recording import FIRST_NAME, a_quick_plan, recording_model, train
from training import Killed, a_job, a_plan, events_of, open_attempt, wait_until

ROWS = 22

Watch = Callable[[Event, StageRun], None]


def kill_at(kind: type[Stepped] | type[Evaluated], step: int) -> Watch:
    def watch(event: Event, _run: StageRun) -> None:
        if isinstance(event, kind) and event.step == step:
            raise Killed

    return watch


def attempt(job: JobDir, plan: RunPlan, watch: Watch | None = None) -> Position:
    return train(job, plan, recording_model(ROWS), watch)


@pytest.mark.parametrize("kind", ["linear", "cosine", "constant", "warmup_stable_decay"])
def test_rates_after_a_kill_are_those_of_the_run_that_nobody_disturbed(spool: Path, kind: str):
    plan = a_quick_plan(
        spool, ROWS, lr_scheduler_type=kind, warmup_steps=3, decay_steps=5, total_steps=10, eval_steps=0, save_steps=4
    )

    def rates(job: JobDir) -> list[set[float]]:
        """Of every step; of a repeated one, each time."""
        steps = events_of(job, Stepped)
        return [{event.learning_rate for event in steps if event.step == step} for step in range(1, 11)]

    attempt(calm := a_job(spool, plan, "undisturbed"), plan)
    for step in (2, 5, 8, 10):
        job = a_job(spool, plan, f"killed-{step}")
        with pytest.raises(Killed):
            attempt(job, plan, kill_at(Stepped, step))
        attempt(job, plan)
        assert rates(job) == rates(calm)


@pytest.fixture
def worsening_plan(spool: Path) -> RunPlan:
    """What the evaluation row wants is what training unlearns: every evaluation is worse than the first, at step 2."""
    never_learned = 60
    row = (
        [FIRST_NAME, *(token for seen in range(1, 21) for token in (seen, never_learned))],
        [False] + [False, True] * 20,
    )
    return a_quick_plan(
        spool,
        ROWS,
        eval_rows=[row],
        learning_rate=0.3,
        lr_scheduler_type="constant",
        warmup_steps=0,
        total_steps=30,
        eval_steps=2,
        save_steps=0,
        early_stopping_patience=3,
    )


@pytest.mark.parametrize(
    "kill",
    [kill_at(Stepped, 5), kill_at(Evaluated, 4), kill_at(Evaluated, 8)],
    ids=["after a bad evaluation", "before it is saved", "in the one that ends training"],
)
def test_patience_counts_on_over_a_kill(worsening_plan: RunPlan, spool: Path, kill: Watch):
    job = a_job(spool, worsening_plan)
    with pytest.raises(Killed):
        attempt(job, worsening_plan, kill)
    end = attempt(job, worsening_plan)
    assert (end.step, end.best_step, end.evaluations_without_gain) == (8, 2, 3)
    assert "early stopping: 3 evaluations without a gain" in end.early_end


def test_an_early_ended_job_trains_no_further_when_it_is_started_again(worsening_plan: RunPlan, spool: Path):
    job = a_job(spool, worsening_plan)
    end = attempt(job, worsening_plan)
    steps = len(events_of(job, Stepped))
    assert end.early_end
    assert attempt(job, worsening_plan) == end
    assert len(events_of(job, Stepped)) == steps


def test_an_early_ended_job_keeps_its_best_checkpoint_and_its_last(worsening_plan: RunPlan, spool: Path):
    cadence = worsening_plan.cadence.model_copy(update={"save_total_limit": 1})
    plan = worsening_plan.model_copy(update={"cadence": cadence})
    job = a_job(spool, plan)
    attempt(job, plan)
    assert [checkpoint.step for checkpoint in job.list_checkpoints()] == [8, 2]


@pytest.mark.parametrize(
    ("activity", "time", "step"),
    [("loading", 1, 0), ("evaluating", 2, 4), ("training", 3, 4), ("saving", 1, 12), ("exporting", 1, 12)],
)
def test_a_stop_is_honoured_in_every_activity_and_looks_like_no_success(
    model_of: Callable[..., Path], spool: Path, activity: str, time: int, step: int
):
    plan = a_plan(model_of("llama"), spool)
    job, seen = a_job(spool, plan), 0

    def stop(event: Event, run: StageRun) -> None:
        nonlocal seen
        seen += isinstance(event, Entered) and event.activity == activity
        if seen == time:
            run.stop.why = "asked to stop (SIGTERM)"

    ending = ending_of(open_attempt(job, stop), train_and_export)
    assert ending == Stopped(time=ending.time, step=step, why="asked to stop (SIGTERM)")
    newest = job.newest_whole_checkpoint()
    assert (newest.step if newest else 0) == step
    assert not job.artifacts.exists()


def test_a_stop_while_a_checkpoint_is_written_waits_for_it_and_saves_the_last_step(spool: Path):
    plan = a_quick_plan(spool, ROWS, eval_steps=0, save_steps=3)
    attempt(calm := a_job(spool, plan, "undisturbed"), plan)
    job = a_job(spool, plan)

    def stop_in_the_writing_thread(event: Event, run: StageRun) -> None:
        if isinstance(event, Checkpointed) and event.step == 6:
            run.stop.why = "asked to stop"

    with pytest.raises(StopRequested):
        attempt(job, plan, stop_in_the_writing_thread)
    last = events_of(job, Stepped)[-1].step
    assert [checkpoint.step for checkpoint in job.list_checkpoints()] == sorted({last, 6}, reverse=True)
    assert not list(job.checkpoints.glob(".*"))
    attempt(job, plan)
    assert [event.loss for event in events_of(job, Stepped)] == [event.loss for event in events_of(calm, Stepped)]


def test_a_stop_is_given_more_time_while_the_checkpoint_that_it_waits_for_is_being_written(
    spool: Path, monkeypatch: pytest.MonkeyPatch
):
    said: list[str] = []
    plan = a_quick_plan(spool, ROWS)
    run = open_attempt(a_job(spool, plan))
    run.watchdog = Watchdog(run.stop.is_set, hang_seconds=600, notify=lambda *lines: said.extend(lines))
    run.stop.why = "asked to stop (SIGTERM)"

    def write_slowly(job: JobDir, snapshot: Snapshot, digest: str, _hashed: Callable[[int], None]) -> Manifest:
        partial = partial_checkpoint(job, snapshot.position.step)
        partial.mkdir(parents=True)
        with open(partial / "weights.safetensors", "wb", buffering=0) as file:
            for look in range(1, 4):
                file.write(b"some bytes")
                wait_until(lambda look=look: said.count("EXTEND_TIMEOUT_USEC=600000000") == look)
        return Manifest(step=snapshot.position.step, digest=digest, files=())

    monkeypatch.setattr("finetuned.train.engine.saver.write_checkpoint", write_slowly)
    with Saver(run, plan, saved_step=0) as saver:
        saver.save_now(lambda: Snapshot(Position(step=4), {}, {}, {}), 4)
    assert saver.saved_step == 4
    assert said.count("EXTEND_TIMEOUT_USEC=600000000") == 3
