"""Checkpoints are whole or not at all, verified when read, and kept as promised."""

import resource
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from finetuned.core.events import Checkpointed, Evaluated, Event, Noticed, Restored, SetAside, Stepped
from finetuned.core.plan import RunPlan
from finetuned.core.problems import StageFailed
from finetuned.host.jobdir import Checkpoint, JobDir
from finetuned.host.stage import StageRun
from finetuned.train.engine.checkpoint import copied_weights, put_weights, read_manifest, read_weights
from finetuned.train.engine.optimizer import build_optimizer
from finetuned.train.engine.restore import restore_newest
from finetuned.train.fit import build_model, fit
from finetuned.train.model.tuned import TunedModel
from training import a_job, a_plan, events_of, full_tuning, lora, open_attempt

FILES = ["manifest.json", "optimizer.safetensors", "position.json", "randomness.safetensors", "weights.safetensors"]


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def remove(path: Path) -> None:
    path.unlink()


@pytest.fixture(scope="module")
def trained(model_of: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[RunPlan, JobDir]:
    """A LoRA job run to its end; its checkpoints are of steps 8, 9 and 12, and the best step is 12."""
    spool = tmp_path_factory.mktemp("spool")
    plan = a_plan(model_of("llama"), spool)
    job = a_job(spool, plan)
    fit(open_attempt(job), plan)
    return plan, job


@pytest.fixture
def plan(trained: tuple[RunPlan, JobDir]) -> RunPlan:
    return trained[0]


@pytest.fixture
def job(trained: tuple[RunPlan, JobDir], spool: Path) -> JobDir:
    """A copy of the trained job, to be harmed."""
    shutil.copytree(trained[1].spool, spool)
    return JobDir(spool / "active" / trained[1].job)


def steps_of(job: JobDir) -> list[int]:
    return [checkpoint.step for checkpoint in job.list_checkpoints()]


def restore(job: JobDir, plan: RunPlan) -> int:
    run = open_attempt(job)
    model = build_model(run, plan)
    return restore_newest(run, plan, model, build_optimizer(model, plan.optimizer)).step


@pytest.mark.parametrize("harm", [truncate, flip_a_bit, empty, remove], ids=lambda harm: harm.__name__)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_it_used(
    job: JobDir, plan: RunPlan, name: str, harm: Callable[[Path], None]
):
    harm(job.checkpoints / "step-00000012" / name)
    assert restore(job, plan) == 9
    [aside] = events_of(job, SetAside)
    assert (aside.checkpoint, aside.renamed_to) == ("step-00000012", "corrupt-step-00000012")
    assert name in aside.why or name == "manifest.json"
    assert steps_of(job) == [9, 8]
    assert (job.checkpoints / "corrupt-step-00000012").is_dir()


def test_after_damage_training_goes_on_to_the_same_end(job: JobDir, plan: RunPlan, trained: tuple[RunPlan, JobDir]):
    flip_a_bit(job.checkpoints / "step-00000012" / "weights.safetensors")
    truncate(job.checkpoints / "step-00000009" / "optimizer.safetensors")
    fitted = fit(open_attempt(job), plan)
    undisturbed = read_weights(trained[1].newest_whole_checkpoint())
    assert all(torch.equal(weight, undisturbed[name]) for name, weight in copied_weights(fitted.model).items())
    assert [event.step for event in events_of(job, Restored)] == [0, 8]


def test_a_second_damaged_checkpoint_of_a_step_takes_the_place_of_the_first(job: JobDir, plan: RunPlan):
    for _ in range(2):
        truncate(job.checkpoints / "step-00000012" / "weights.safetensors")
        fit(open_attempt(job), plan)
    assert len(events_of(job, SetAside)) == 2
    assert steps_of(job)[0] == 12


@pytest.mark.parametrize("written", range(len(FILES)))
def test_a_write_that_was_killed_is_ignored_and_removed(job: JobDir, plan: RunPlan, written: int):
    partial = job.checkpoints / ".step-00000015.partial"
    partial.mkdir()
    order = [*FILES[1:], FILES[0]]
    for name in order[:written]:
        shutil.copy(job.checkpoints / "step-00000012" / name, partial / name)
    half_written = (job.checkpoints / "step-00000012" / order[written]).read_bytes()
    (partial / order[written]).write_bytes(half_written[: len(half_written) // 2])
    assert restore(job, plan) == 12
    assert not partial.exists()


def test_a_deletion_that_was_killed_is_finished(job: JobDir, plan: RunPlan):
    retired = job.checkpoints / ".step-00000003.retired"
    shutil.copytree(job.checkpoints / "step-00000009", retired)
    (retired / "manifest.json").unlink()
    assert restore(job, plan) == 12
    assert not retired.exists()


def test_a_checkpoint_of_another_plan_is_refused_by_name(job: JobDir, plan: RunPlan):
    with pytest.raises(StageFailed, match="step-00000012 belongs to another plan") as refusal:
        restore(job, plan.model_copy(update={"digest": "e" * 64}))
    assert not refusal.value.retry
    assert steps_of(job) == [12, 9, 8]


def test_a_checkpoint_of_another_model_is_refused_by_name(job: JobDir, plan: RunPlan):
    with pytest.raises(StageFailed, match="step-00000012 does not fit the model"):
        restore(job, plan.model_copy(update={"tuning": lora().model_copy(update={"r": 2})}))


def test_a_checkpoint_of_weights_in_another_type_is_refused_by_name(job: JobDir, plan: RunPlan):
    """Adapters keep their type across a stop: what fp32 has been trained to, bf16 could not give back."""
    model = build_model(open_attempt(job), plan)
    weights = {name: weight.bfloat16() for name, weight in copied_weights(model).items()}
    with pytest.raises(
        ValueError, match=r"28 weights .* \(bfloat16 \[4, 128\] is stored, float32 \[4, 128\] expected\)"
    ):
        put_weights(weights, model)


@pytest.mark.parametrize("optim", ["adamw_torch", "adamw_8bit"])
def test_states_of_an_optimizer_come_back_in_the_types_it_gave_them(
    model_of: Callable[..., Path], spool: Path, optim: str
):
    """Whole numbers, bytes and fp32: bitsandbytes hands them to its kernels as they are."""
    plan = a_plan(model_of("llama"), spool, tuning=full_tuning(), optim=optim, total_steps=1, eval_steps=0)
    job = a_job(spool, plan)
    model = fit(open_attempt(job), plan).model
    optimizer = build_optimizer(model, plan.optimizer)
    for weight in model.trainable.values():
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    expected = types_of(optimizer, model)
    restored = build_optimizer(model, plan.optimizer)
    restore_newest(open_attempt(job), plan, model, restored)
    assert types_of(restored, model) == expected


def types_of(optimizer: torch.optim.Optimizer, model: TunedModel) -> dict[str, dict[str, object]]:
    return {
        name: {kind: getattr(value, "dtype", type(value)) for kind, value in optimizer.state[weight].items()}
        for name, weight in model.trainable.items()
    }


def test_the_daemon_and_the_loader_agree_on_what_a_checkpoint_is(job: JobDir, plan: RunPlan):
    newest = job.newest_whole_checkpoint()
    assert newest.is_whole()
    manifest = read_manifest(newest)
    assert (manifest.step, manifest.digest) == (12, plan.digest)
    assert {file.path for file in manifest.files} | {"manifest.json"} == set(FILES)


@pytest.mark.parametrize("limit", [1, 2])
def test_the_newest_and_the_best_are_never_deleted(model_of: Callable[..., Path], spool: Path, limit: int):
    plan = a_plan(
        model_of("gemma"),
        spool,
        tuning=full_tuning(),
        learning_rate=1e-2,
        eval_steps=4,
        save_steps=1,
        save_total_limit=limit,
    )
    job = a_job(spool, plan)
    saved: list[int] = []
    bests: list[int] = []

    def look(event: Event, _run: StageRun) -> None:
        if isinstance(event, Checkpointed):
            saved.append(event.step)
        if isinstance(event, Evaluated) and event.is_best:
            bests.append(event.step)
        if saved:
            found = [checkpoint.step for checkpoint in job.list_checkpoints() if checkpoint.is_whole()]
            assert saved[-1] in found
            assert not bests or bests[-1] in found or bests[-1] > saved[-1]

    fitted = fit(open_attempt(job, look), plan)
    assert bests[-1] < 12
    assert fitted.weights_step == bests[-1]
    assert steps_of(job) == [*range(12, 12 - limit, -1), bests[-1]]


def test_the_checkpoint_that_was_resumed_from_stays_until_a_newer_one_is_whole(job: JobDir, plan: RunPlan):
    for name in ("step-00000009", "step-00000012"):
        shutil.rmtree(job.checkpoints / name)
    plan = plan.model_copy(update={"cadence": plan.cadence.model_copy(update={"save_total_limit": 1})})
    seen: list[tuple[int, list[int]]] = []

    def look(event: Event, run: StageRun) -> None:
        if isinstance(event, Stepped):
            seen.append((event.step, steps_of(job)))

    fit(open_attempt(job, look), plan)
    assert seen[0] == (9, [8])
    assert all(steps for _, steps in seen)
    assert steps_of(job) == [12]


def test_the_best_weights_are_those_of_their_checkpoint(model_of: Callable[..., Path], spool: Path):
    plan = a_plan(model_of("gemma"), spool, tuning=full_tuning(), learning_rate=1e-2)
    job = a_job(spool, plan)
    fitted = fit(open_attempt(job), plan)
    best = Checkpoint(job.checkpoints / f"step-{fitted.weights_step:08d}", fitted.weights_step)
    assert fitted.weights_step < 12
    assert all(torch.equal(weight, read_weights(best)[name]) for name, weight in copied_weights(fitted.model).items())


def test_lost_best_weights_are_noticed_and_the_last_ones_taken(model_of: Callable[..., Path], spool: Path):
    plan = a_plan(model_of("gemma"), spool, tuning=full_tuning(), learning_rate=1e-2)
    job = a_job(spool, plan)
    best = fit(open_attempt(job), plan).weights_step
    flip_a_bit(job.checkpoints / f"step-{best:08d}" / "weights.safetensors")
    assert fit(open_attempt(job), plan).weights_step == 12
    assert f"the best weights (step {best}" in events_of(job, Noticed)[-1].text


@contextmanager
def files_no_larger_than(size_bytes: int) -> Iterator[None]:
    """A stand-in for a full disk: writing beyond fails with an OSError."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def full_plan(model_of: Callable[..., Path], spool: Path) -> RunPlan:
    """Its checkpoints are larger than 100 KB, and nothing else that is written is."""
    return a_plan(model_of("llama"), spool, tuning=full_tuning(), save_steps=2, eval_steps=0)


def test_a_disk_that_is_full_for_a_while_costs_a_checkpoint_and_not_the_run(full_plan: RunPlan, spool: Path):
    job = a_job(spool, full_plan)
    limits: list[Any] = []

    def fill_up_and_make_room(event: Event, _run: StageRun) -> None:
        if isinstance(event, Stepped) and event.step == 3:
            limits.append(files_no_larger_than(100_000))
            limits[-1].__enter__()
        if isinstance(event, Stepped) and event.step == 5:
            limits[-1].__exit__(None, None, None)

    fitted = fit(open_attempt(job, fill_up_and_make_room), full_plan)
    assert fitted.position.step == 12
    noticed = [event.text for event in events_of(job, Noticed)]
    assert any("the checkpoint of step 4 was not written" in text for text in noticed)
    assert [event.step for event in events_of(job, Checkpointed)] == [2, 6, 8, 10, 12]
    assert not list(job.checkpoints.glob(".step-*"))


def test_a_disk_that_stays_full_ends_the_attempt_soon_and_leaves_the_older_checkpoint(full_plan: RunPlan, spool: Path):
    job = a_job(spool, full_plan)
    limits: list[Any] = []

    def fill_up(event: Event, _run: StageRun) -> None:
        if isinstance(event, Stepped) and event.step == 3:
            limits.append(files_no_larger_than(100_000))
            limits[-1].__enter__()

    try:
        with pytest.raises(OSError, match="File too large"):
            fit(open_attempt(job, fill_up), full_plan)
    finally:
        limits[-1].__exit__(None, None, None)
    assert steps_of(job) == [2]
    assert events_of(job, Stepped)[-1].step <= 8, "the saves of steps 4 and 6 failed"
    assert not list(job.checkpoints.glob(".step-*"))


def test_checkpoints_are_written_off_the_training_thread(full_plan: RunPlan, spool: Path):
    job = a_job(spool, full_plan)
    writers: set[int] = set()

    def look(event: Event, _run: StageRun) -> None:
        if isinstance(event, Checkpointed):
            writers.add(threading.get_ident())

    fit(open_attempt(job, look), full_plan)
    assert len(writers) == 1
    assert threading.get_ident() not in writers
