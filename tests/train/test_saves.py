"""Saves and retirements that are cut off anywhere leave on disk what a run needs to go on and to end well."""

import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from finetuned.core.events import Stepped
from finetuned.core.plan import RunPlan, Selection
from finetuned.host.jobdir import JobDir
from finetuned.train.engine.checkpoint import (
    Snapshot,
    read_manifest,
    read_position,
    retire_old_checkpoints,
    sweep_leftovers,
    write_checkpoint,
)
from finetuned.train.engine.position import Position, after_evaluation
from recording import a_quick_plan, recording_model, train
from training import Killed, a_job, events_of

LOSSES = {2: 3.0, 4: 1.0, 6: 2.0, 8: 4.0}
"""Evaluation losses by step: the best is neither the first nor the last."""
SELECTION = Selection(load_best=True, early_stopping_patience=0, early_stopping_threshold=0.0)


def a_snapshot(position: Position) -> Snapshot:
    """Files that grow in the order in which they are written."""
    weights, states, randomness = (
        {name: torch.full((1,), float(position.step))} for name in ("w", "exp_avg/weight", "a generator's whole state")
    )
    return Snapshot(position, weights, states, randomness)


def save_scripted(job: JobDir, after: Position, keep: int) -> None:
    """Evaluate and save at every scripted step after a position."""
    for step, loss in LOSSES.items():
        if step > after.step:
            after = after_evaluation(after.model_copy(update={"step": step}), loss, SELECTION, 100)
            write_checkpoint(job, a_snapshot(after), "d" * 64)
            retire_old_checkpoints(job, keep)


def verified(job: JobDir) -> list[int]:
    for checkpoint in job.list_checkpoints():
        read_manifest(checkpoint)
    return [checkpoint.step for checkpoint in job.list_checkpoints()]


@pytest.fixture
def job(tmp_path: Path) -> JobDir:
    return JobDir(tmp_path / "active" / "job")


@pytest.mark.parametrize(("limit", "kept"), [(1, [8, 4]), (2, [8, 6, 4]), (9, [8, 6, 4, 2])])
def test_the_newest_and_the_best_are_kept_whatever_the_limit(job: JobDir, limit: int, kept: list[int]):
    save_scripted(job, Position(), limit)
    assert verified(job) == kept


def test_what_an_older_kept_checkpoint_names_as_the_best_stays_too(job: JobDir):
    """Should the newest be damaged, the one before it is resumed, and its best one must be there."""
    position = Position(step=8, best_step=4, best_loss=1.0)
    for step, best in ((4, 4), (6, 4), (8, 4), (10, 10)):
        write_checkpoint(job, a_snapshot(position.model_copy(update={"step": step, "best_step": best})), "d" * 64)
    retire_old_checkpoints(job, 2)
    assert verified(job) == [10, 8, 4]


def test_what_is_not_whole_takes_no_place_of_what_is(job: JobDir):
    save_scripted(job, Position(), 9)
    (job.checkpoints / "step-00000008" / "weights.safetensors").write_bytes(b"")
    retire_old_checkpoints(job, 1)
    assert [checkpoint.step for checkpoint in job.list_checkpoints()] == [8, 6, 4]


def test_nothing_is_deleted_where_a_kept_checkpoint_cannot_be_asked_for_the_best(job: JobDir):
    save_scripted(job, Position(), 9)
    position = job.checkpoints / "step-00000008" / "position.json"
    position.write_bytes(b"?" * position.stat().st_size)
    with pytest.raises(ValueError, match="Invalid JSON"):
        retire_old_checkpoints(job, 1)
    assert [checkpoint.step for checkpoint in job.list_checkpoints()] == [8, 6, 4, 2]


@contextmanager
def killed_before_operation(number: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Names and contents of a file system change only in these calls."""
    left = number

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **how: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise Killed
            return change(*arguments, **how)

        return call

    with monkeypatch.context() as patch:
        for name in ("rename", "unlink", "rmdir", "mkdir", "fsync"):
            patch.setattr(os, name, counted(getattr(os, name)))
        yield


def position_in_place(job: JobDir, resumed: Position) -> Position:
    """Where an attempt would go on; asserts that what this and the resumed checkpoint need is there."""
    sweep_leftovers(job)
    left = verified(job)
    newest = read_position(job.list_checkpoints()[0]) if left else Position()
    assert newest.step >= resumed.step, "the resumed one is gone, and there is no newer one"
    assert newest.best_step is None or newest.best_step in left
    return newest


@pytest.mark.parametrize("limit", [1, 2])
def test_a_kill_between_any_two_file_operations_leaves_the_best_the_newest_and_the_resumed(
    tmp_path: Path, limit: int, monkeypatch: pytest.MonkeyPatch
):
    calm = JobDir(tmp_path / "active" / "calm")
    save_scripted(calm, Position(), limit)
    for operation in count(1):
        job, position, kills = JobDir(tmp_path / "active" / f"killed-{operation}"), Position(), 0
        while True:
            try:
                with killed_before_operation(operation, monkeypatch):
                    save_scripted(job, position, limit)
                break
            except Killed:
                kills += 1
                position = position_in_place(job, resumed=position)
            # So early a kill comes before the first new checkpoint is whole, every time.
            if operation < 20 and kills == 2:
                save_scripted(job, position, limit)
                break
        # A kill between the last save and the last retirement leaves one more, for the next save to retire.
        assert set(verified(calm)) <= set(verified(job))
        if kills == 0:
            break
    assert operation > 40, "there were fewer operations than saving and retiring need"


def test_killed_at_any_byte_of_a_save_the_checkpoint_before_it_is_whole(job: JobDir):
    """By the kernel: a file that grows beyond the limit ends the process in the middle of its write."""
    write_checkpoint(job, a_snapshot(Position(step=2)), "d" * 64)
    order = ["weights.safetensors", "optimizer.safetensors", "randomness.safetensors", "position.json", "manifest.json"]
    sizes = [(job.checkpoints / "step-00000002" / name).stat().st_size for name in order]
    assert sizes == sorted(sizes)
    cut: set[str] = set()
    for limit in range(0, sizes[-1], 13):
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            write_checkpoint(job, a_snapshot(Position(step=4)), "d" * 64)
            os._exit(0)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGXFSZ
        assert verified(job) == [2]
        found = {path.name: path.stat().st_size for path in (job.checkpoints / ".step-00000004.partial").iterdir()}
        cut.add(next(name for name, size in zip(order, sizes, strict=True) if found.get(name) != size))
        sweep_leftovers(job)
    assert cut == set(order)
    write_checkpoint(job, a_snapshot(Position(step=4)), "d" * 64)
    assert verified(job) == [4, 2]


def test_the_checkpoint_that_was_resumed_stays_until_a_newer_one_is_whole(spool: Path):
    plan: RunPlan = a_quick_plan(spool, 22, eval_steps=0, save_steps=3, save_total_limit=1)
    job = a_job(spool, plan)

    def kill_after(step: int) -> Callable[..., None]:
        def watch(event: object, _run: object) -> None:
            if isinstance(event, Stepped) and event.step == step:
                raise Killed

        return watch

    with pytest.raises(Killed):
        train(job, plan, recording_model(22), kill_after(8))
    assert verified(job) == [6]
    with pytest.raises(Killed):
        train(job, plan, recording_model(22), kill_after(8))
    assert verified(job) == [6]
    train(job, plan, recording_model(22))
    assert verified(job) == [12]
    assert max(event.step for event in events_of(job, Stepped)) == 12
