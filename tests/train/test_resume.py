"""Stopped or killed anywhere and started again: bit for bit the run that nobody disturbed."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from finetuned.core.events import Checkpointed, Entered, Evaluated, Event, Restored, Stepped
from finetuned.core.plan import RunPlan
from finetuned.core.problems import StopRequested
from finetuned.host.jobdir import JobDir
from finetuned.host.stage import StageRun
from finetuned.train.engine.checkpoint import copied_weights
from finetuned.train.fit import Fitted, fit
from training import Killed, a_job, a_plan, events_of, freeze, full_tuning, lora, open_attempt, qlora


@dataclass(frozen=True)
class Outcome:
    """What must not depend on interruptions."""

    weights: dict[str, torch.Tensor]
    steps: dict[int, tuple[float, float, float]]
    evaluations: dict[int, tuple[float, bool]]
    weights_step: int
    early_end: str


def outcome_of(job: JobDir, fitted: Fitted) -> Outcome:
    return Outcome(
        weights=copied_weights(fitted.model),
        steps={event.step: (event.loss, event.grad_norm, event.learning_rate) for event in events_of(job, Stepped)},
        evaluations={event.step: (event.eval_loss, event.is_best) for event in events_of(job, Evaluated)},
        weights_step=fitted.weights_step,
        early_end=fitted.position.early_end,
    )


def assert_same(found: Outcome, undisturbed: Outcome) -> None:
    assert (found.steps, found.evaluations) == (undisturbed.steps, undisturbed.evaluations)
    assert (found.weights_step, found.early_end) == (undisturbed.weights_step, undisturbed.early_end)
    assert found.weights.keys() == undisturbed.weights.keys()
    assert all(torch.equal(found.weights[name], undisturbed.weights[name]) for name in found.weights)


def undisturbed(plan: RunPlan, spool: Path) -> Outcome:
    job = a_job(spool, plan, "undisturbed")
    return outcome_of(job, fit(open_attempt(job), plan))


def a_restless_plan(model_of: Callable[..., Path], spool: Path, **changes: Any) -> RunPlan:
    """Dropout in attention and adapters, three micro-batches a step, an epoch border every six steps."""
    folder = model_of("llama", attention_dropout=0.1)
    return a_plan(folder, spool, micro_batch_tokens=30, **{"tuning": lora(dropout=0.1)} | changes)


@pytest.fixture
def plan(model_of: Callable[..., Path], spool: Path) -> RunPlan:
    return a_restless_plan(model_of, spool)


@pytest.fixture(scope="module")
def calm(model_of: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """What the restless plan comes to when nobody disturbs it."""
    spool = tmp_path_factory.mktemp("calm")
    return undisturbed(a_restless_plan(model_of, spool), spool)


def stop_after_step(step: int) -> Callable[[Event, StageRun], None]:
    def watch(event: Event, run: StageRun) -> None:
        if isinstance(event, Stepped) and event.step == step:
            run.stop.why = "asked to stop"

    return watch


def stop_on(kind: type[Event], number: int) -> Callable[[Event, StageRun], None]:
    seen = 0

    def watch(event: Event, run: StageRun) -> None:
        nonlocal seen
        seen += isinstance(event, kind)
        if seen == number:
            run.stop.why = "asked to stop"

    return watch


def kill_at_event(number: int) -> Callable[[Event, StageRun], None]:
    seen = 0

    def watch(_event: Event, _run: StageRun) -> None:
        nonlocal seen
        seen += 1
        if seen == number:
            raise Killed

    return watch


def test_dropout_and_accumulation_are_at_work_in_these_tests(plan: RunPlan, spool: Path, calm: Outcome):
    job = a_job(spool, plan)
    without = outcome_of(job, fit(open_attempt(job), plan.model_copy(update={"tuning": lora(dropout=0.0)})))
    assert without.steps[3][0] != calm.steps[3][0]
    assert all(event.micro_batches > 1 for event in events_of(job, Stepped))


def test_stopped_after_every_single_step(plan: RunPlan, spool: Path, calm: Outcome):
    job = a_job(spool, plan)
    for step in range(1, 13):
        with pytest.raises(StopRequested):
            fit(open_attempt(job, stop_after_step(step)), plan)
        assert job.newest_whole_checkpoint().step == step
    assert_same(outcome_of(job, fit(open_attempt(job), plan)), calm)
    assert [event.step for event in events_of(job, Restored)] == list(range(13))


class StopsBetweenMicroBatches:
    """A stop flag that comes up at the n-th look."""

    def __init__(self, looks: int):
        self.looks = looks

    def raise_if_set(self) -> None:
        self.looks -= 1
        if self.looks <= 0:
            raise StopRequested("asked to stop")


@pytest.mark.parametrize("cadence", [{}, {"eval_steps": 0, "save_steps": 0}], ids=["usual saves", "no other saves"])
def test_stopped_at_any_look_at_the_flag_a_partial_step_is_thrown_away(
    model_of: Callable[..., Path], spool: Path, cadence: dict[str, int]
):
    """Looks lie before each micro-batch of a step or an evaluation, and between the parts of the worker."""
    plan = a_restless_plan(model_of, spool, **cadence)
    job = a_job(spool, plan)
    stops = 0
    generator = random.Random(5)
    while True:
        run: Any = open_attempt(job)
        run.stop = StopsBetweenMicroBatches(generator.randint(8, 14))
        try:
            fitted = fit(run, plan)
        except StopRequested:
            stops += 1
            continue
        break
    assert stops > 3
    assert_same(outcome_of(job, fitted), undisturbed(plan, spool))


def test_stopped_inside_an_evaluation_it_is_done_again(plan: RunPlan, spool: Path, calm: Outcome):
    job = a_job(spool, plan)
    evaluating = 0

    def stop_in_second_evaluation(event: Event, run: StageRun) -> None:
        nonlocal evaluating
        evaluating += isinstance(event, Entered) and event.activity == "evaluating"
        if evaluating == 2:
            run.stop.why = "asked to stop"

    with pytest.raises(StopRequested):
        fit(open_attempt(job, stop_in_second_evaluation), plan)
    assert job.newest_whole_checkpoint().step == 4
    assert [event.step for event in events_of(job, Evaluated)] == [0]
    assert_same(outcome_of(job, fit(open_attempt(job), plan)), calm)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)])
def test_killed_at_random_events(plan: RunPlan, spool: Path, calm: Outcome, seed: int):
    job = a_job(spool, plan)
    generator = random.Random(seed)
    kills = 0
    while True:
        try:
            fitted = fit(open_attempt(job, kill_at_event(generator.randint(4, 16))), plan)
        except Killed:
            kills += 1
            continue
        break
    assert kills > 1
    assert_same(outcome_of(job, fitted), calm)


def test_full_tuning_stopped_and_resumed(model_of: Callable[..., Path], spool: Path):
    plan = a_plan(model_of("smollm", attention_dropout=0.1), spool, tuning=full_tuning(), learning_rate=1e-3)
    job = a_job(spool, plan)
    with pytest.raises(StopRequested):
        fit(open_attempt(job, stop_after_step(7)), plan)
    assert_same(outcome_of(job, fit(open_attempt(job), plan)), undisturbed(plan, spool))


EIGHT_BITS = {"optim": "adamw_8bit", "weight_decay": 0.01}
TUNINGS = {
    "qlora nf4": {"tuning": qlora("nf4", dropout=0.1)},
    "qlora nf4 in bf16": {"tuning": qlora("nf4", dropout=0.1), "precision": "bf16", "gradient_checkpointing": True},
    "qlora fp4": {"tuning": qlora("fp4", dropout=0.1)},
    "qlora int8": {"tuning": qlora("int8", dropout=0.1)},
    "qlora int8 in bf16": {"tuning": qlora("int8", dropout=0.1), "precision": "bf16"},
    "8-bit optimizer": {"tuning": qlora("int8", dropout=0.1, r=64), **EIGHT_BITS},
    "paged optimizer": {"tuning": lora(dropout=0.1, r=64), "optim": "paged_adamw_32bit"},
    "full, 8-bit optimizer": {"tuning": full_tuning(), **EIGHT_BITS},
    "DoRA, rsLoRA and LoRA+": {
        "tuning": lora(dropout=0.1, use_dora=True, use_rslora=True, init_lora_weights="gaussian"),
        "loraplus_lr_ratio": 16.0,
    },
    "orthogonal": {"tuning": lora(dropout=0.1, init_lora_weights="orthogonal"), "precision": "bf16"},
    "modules_to_save": {"tuning": lora(modules_to_save=("lm_head", "embed_tokens")), "precision": "bf16"},
    "new tokens": {
        "tuning": qlora("nf4"),
        "added_tokens": ("<think>",),
        "added_special_tokens": ("<|tool|>", "<|end|>"),
    },
    "freeze": {"tuning": freeze(r"layers\.1\.", "norm"), "precision": "bf16"},
}


FAST = ("qlora nf4", "qlora int8 in bf16", "8-bit optimizer", "new tokens", "freeze")


@pytest.mark.parametrize(
    "changes",
    [pytest.param(case, id=name, marks=() if name in FAST else pytest.mark.slow) for name, case in TUNINGS.items()],
)
def test_every_tuning_stopped_and_resumed(model_of: Callable[..., Path], spool: Path, changes: dict[str, Any]):
    plan = a_plan(model_of("llama", attention_dropout=0.1), spool, micro_batch_tokens=30, total_steps=6, **changes)
    job = a_job(spool, plan)
    with pytest.raises(StopRequested):
        fit(open_attempt(job, stop_after_step(3)), plan)
    assert_same(outcome_of(job, fit(open_attempt(job), plan)), undisturbed(plan, spool))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_qlora_with_an_8_bit_optimizer_killed_after_every_single_step(
    model_of: Callable[..., Path], spool: Path, kind: Any
):
    tuning = qlora(kind, dropout=0.1, r=64)
    plan = a_restless_plan(model_of, spool, tuning=tuning, precision="bf16", save_steps=1, **EIGHT_BITS)
    job = a_job(spool, plan)

    def kill_after_next_save(event: Event, _run: StageRun) -> None:
        if isinstance(event, Stepped) and event.step > job_step + 1:
            raise Killed

    kills = 0
    while True:
        newest = job.newest_whole_checkpoint()
        job_step = newest.step if newest else 0
        try:
            fitted = fit(open_attempt(job, kill_after_next_save), plan)
        except Killed:
            kills += 1
            continue
        break
    assert kills > 8
    assert_same(outcome_of(job, fitted), undisturbed(plan, spool))


def test_early_stopping_counts_on_over_a_stop(model_of: Callable[..., Path], spool: Path):
    plan = a_plan(
        model_of("gemma"),
        spool,
        tuning=full_tuning(),
        learning_rate=1e-2,
        total_steps=40,
        eval_steps=2,
        early_stopping_patience=3,
    )
    whole = undisturbed(plan, spool)
    last = max(whole.steps)
    assert whole.early_end
    assert whole.weights_step < last < 40
    job = a_job(spool, plan)
    with pytest.raises(StopRequested):
        fit(open_attempt(job, stop_after_step(last - 1)), plan)
    assert_same(outcome_of(job, fit(open_attempt(job), plan)), whole)


def test_after_the_last_step_a_new_attempt_trains_nothing(plan: RunPlan, spool: Path):
    job = a_job(spool, plan)
    first = outcome_of(job, fit(open_attempt(job), plan))
    steps, saves = len(events_of(job, Stepped)), len(events_of(job, Checkpointed))
    assert_same(outcome_of(job, fit(open_attempt(job), plan)), first)
    assert (len(events_of(job, Stepped)), len(events_of(job, Checkpointed))) == (steps, saves)


def test_the_evaluation_before_training_is_done_once(plan: RunPlan, spool: Path):
    job = a_job(spool, plan)
    with pytest.raises(Killed):
        fit(open_attempt(job, kill_at_event(8)), plan)
    assert job.newest_whole_checkpoint() is None
    fit(open_attempt(job), plan)
    assert [event.step for event in events_of(job, Evaluated)] == [0, 4, 8, 12]


def test_a_stop_before_the_first_step_saves_nothing(plan: RunPlan, spool: Path):
    job = a_job(spool, plan)
    with pytest.raises(StopRequested):
        fit(open_attempt(job, stop_on(Restored, 1)), plan)
    assert job.list_checkpoints() == []
