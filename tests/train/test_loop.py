"""What the loop promises apart from resuming: finite weights, no side effects of evaluation, cadence, an honest end."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from finetuned.core.events import Checkpointed, Evaluated, Event, Stepped
from finetuned.core.plan import RunPlan
from finetuned.core.problems import StageFailed, StopRequested
from finetuned.host.stage import StageRun
from finetuned.train.batches import Order
from finetuned.train.engine.checkpoint import copied_weights
from finetuned.train.engine.evaluate import evaluate
from finetuned.train.engine.loop import Data, Learner, Loop
from finetuned.train.engine.optimizer import build_optimizer, decaying_weights
from finetuned.train.engine.position import Position
from finetuned.train.engine.randomness import capture_randomness
from finetuned.train.engine.saver import Saver
from finetuned.train.fit import build_model, fit
from finetuned.train.main import read_plan
from finetuned.train.memory import explained_memory_errors
from finetuned.train.model.tuned import TunedModel
from finetuned.train.rows import Rows, open_rows
from training import a_job, a_plan, events_of, full_tuning, lora, open_attempt


def rows_of(spool: Path, plan: RunPlan) -> tuple[Rows, Rows | None]:
    return open_rows(spool / "store" / "prepared" / "rows", plan)


def a_loop(run: StageRun, plan: RunPlan, model: TunedModel) -> Loop:
    train, evaluation = rows_of(run.job.spool, plan)
    data = Data(train, evaluation, Order(len(train), plan.batches), 48, 64)
    return Loop(run, plan, Learner(model, build_optimizer(model, plan.optimizer)), data, Position())


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_gradients_that_are_not_numbers_change_nothing_and_name_the_rows(
    model_of: Callable[..., Path], spool: Path, broken: float
):
    plan = a_plan(model_of("llama"), spool, eval_steps=0)
    job = a_job(spool, plan)
    after_two: dict[str, torch.Tensor] = {}
    breaking = False

    def watch(event: Event, run: StageRun) -> None:
        nonlocal breaking
        if isinstance(event, Stepped) and event.step == 2:
            after_two.update(copied_weights(model))
            breaking = True

    run = open_attempt(job, watch)
    model = build_model(run, plan)
    list(model.trainable.values())[3].register_hook(lambda gradient: gradient * broken if breaking else gradient)
    with Saver(run, plan, saved_step=0) as saver, pytest.raises(StageFailed) as failure:
        a_loop(run, plan, model).run_to_end(saver)
    assert not failure.value.retry
    assert "step 3: the loss is 5." in str(failure.value)
    assert str(failure.value).count("data.jsonl:") == 4
    assert all(torch.equal(weight, after_two[name]) for name, weight in copied_weights(model).items())


def test_a_learning_rate_that_explodes_ends_the_run_for_good(model_of: Callable[..., Path], spool: Path):
    plan = a_plan(model_of("llama"), spool, learning_rate=1e38, warmup_steps=0)
    with pytest.raises(StageFailed, match="the weights are left as they were") as failure:
        fit(open_attempt(a_job(spool, plan)), plan)
    assert "lower learning_rate" in failure.value.hint


def test_evaluation_is_the_token_mean_without_dropout_or_randomness(model_of: Callable[..., Path], spool: Path):
    plan = a_plan(model_of("llama", attention_dropout=0.1), spool, tuning=lora(dropout=0.5))
    run = open_attempt(a_job(spool, plan))
    model = build_model(run, plan)
    _, rows = rows_of(spool, plan)
    before = capture_randomness()
    loss, target_tokens = evaluate(run, model, rows, 64)
    after = capture_randomness()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert model.network.training

    model.network.eval()
    losses = []
    for row in range(len(rows)):
        example = rows.example(row)
        logits = model.network(input_ids=torch.tensor([example.input_ids.tolist()])).logits[0, :-1]
        labels = torch.tensor(example.input_ids[1:].tolist())
        each = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
        losses += each[torch.tensor(example.is_target[1:].tolist())].tolist()
    assert target_tokens == len(losses) == plan.data.eval_target_tokens
    assert loss == pytest.approx(sum(losses) / len(losses), rel=1e-6)


def test_how_often_is_evaluated_does_not_change_training(model_of: Callable[..., Path], tmp_path: Path):
    def losses(eval_steps: int) -> list[float]:
        spool = tmp_path / str(eval_steps)
        plan = a_plan(model_of("llama", attention_dropout=0.1), spool, tuning=lora(dropout=0.1), eval_steps=eval_steps)
        job = a_job(spool, plan)
        fit(open_attempt(job), plan)
        return [event.loss for event in events_of(job, Stepped)]

    assert losses(0) == losses(1)


@pytest.mark.parametrize(
    ("changes", "evaluated", "saved"),
    [
        ({"eval_steps": 5, "save_steps": 0}, [0, 5, 10, 12], [5, 10, 12]),
        ({"eval_steps": 0, "save_steps": 5}, [], [5, 10, 12]),
        ({"eval_steps": 5, "save_steps": 4}, [0, 5, 10, 12], [4, 5, 8, 10, 12]),
        ({"eval_steps": 5, "save_steps": 0, "eval_rows": []}, [], [12]),
        ({"eval_steps": 0, "save_steps": 0}, [], [12]),
    ],
)
def test_evaluations_and_saves_come_when_they_are_due(
    model_of: Callable[..., Path], spool: Path, changes: dict, evaluated: list[int], saved: list[int]
):
    plan = a_plan(model_of("llama"), spool, **changes)
    job = a_job(spool, plan)
    fit(open_attempt(job), plan)
    assert [event.step for event in events_of(job, Evaluated)] == evaluated
    assert [event.step for event in events_of(job, Checkpointed)] == saved


def test_saves_also_come_by_the_clock(model_of: Callable[..., Path], spool: Path):
    plan = a_plan(model_of("llama"), spool, eval_steps=0, save_steps=0, save_minutes=1e-9)
    job = a_job(spool, plan)
    fit(open_attempt(job), plan)
    assert len(events_of(job, Checkpointed)) > 1


def test_steps_are_logged_every_so_often_and_at_the_end(model_of: Callable[..., Path], spool: Path):
    plan = a_plan(model_of("llama"), spool, logging_steps=5)
    job = a_job(spool, plan)
    fit(open_attempt(job), plan)
    assert [event.step for event in events_of(job, Stepped)] == [5, 10, 12]


def test_the_last_step_before_an_early_end_is_logged(model_of: Callable[..., Path], spool: Path):
    never_better = {"early_stopping_patience": 1, "early_stopping_threshold": 100.0}
    plan = a_plan(model_of("llama"), spool, logging_steps=5, eval_steps=2, **never_better)
    job = a_job(spool, plan)
    assert fit(open_attempt(job), plan).position.early_end
    assert [event.step for event in events_of(job, Stepped)] == [4]


def test_the_last_step_before_a_stop_is_logged(model_of: Callable[..., Path], spool: Path):
    plan = a_plan(model_of("llama"), spool, logging_steps=5, eval_steps=3)

    def stop_at_the_first_evaluation(event: Event, run: StageRun) -> None:
        if isinstance(event, Evaluated) and event.step == 3:
            run.stop.why = "asked to stop"

    job = a_job(spool, plan)
    with pytest.raises(StopRequested):
        fit(open_attempt(job, stop_at_the_first_evaluation), plan)
    assert [event.step for event in events_of(job, Stepped)] == [3]


def test_a_run_may_end_in_the_middle_of_an_epoch(model_of: Callable[..., Path], spool: Path):
    plan = a_plan(model_of("llama"), spool, total_steps=8)
    job = a_job(spool, plan)
    fit(open_attempt(job), plan)
    assert events_of(job, Stepped)[-1].epoch == pytest.approx(8 / 6)


def test_a_plan_of_no_steps_is_an_error(model_of: Callable[..., Path], spool: Path):
    plan = a_plan(model_of("llama"), spool, total_steps=0)
    with pytest.raises(StageFailed, match="nothing to train"):
        read_plan(open_attempt(a_job(spool, plan)))


def test_a_missing_plan_is_an_error(model_of: Callable[..., Path], spool: Path):
    job = a_job(spool, a_plan(model_of("llama"), spool))
    job.plan_file.unlink()
    with pytest.raises(StageFailed, match=r"plan\.json is missing"):
        read_plan(open_attempt(job))


def test_running_out_of_memory_is_explained(model_of: Callable[..., Path], spool: Path):
    plan = a_plan(model_of("llama"), spool, tuning=full_tuning())
    expected = pytest.raises(StageFailed, match="ran out of memory: full tuning of tiny")
    with expected as failure, explained_memory_errors(plan):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    assert "finetuning_type: lora" in failure.value.hint
    assert not failure.value.retry


@pytest.mark.parametrize("family", ["llama", "smollm", "opt"])
def test_only_matrices_decay_and_not_embeddings(model_of: Callable[..., Path], spool: Path, family: str):
    plan = a_plan(model_of(family), spool, tuning=full_tuning())
    model = build_model(open_attempt(a_job(spool, plan)), plan)
    decaying = decaying_weights(model)
    assert any("q_proj.weight" in name for name in decaying)
    assert not any("norm" in name or "bias" in name or "embed" in name for name in decaying)
    assert ("lm_head.weight" in decaying) == (family == "llama")


def test_each_step_and_evaluation_is_a_line_of_the_log(model_of, spool, caplog):
    caplog.set_level("INFO")
    plan = a_plan(model_of("llama"), spool, total_steps=4)
    fit(open_attempt(a_job(spool, plan)), plan)
    for said in ("step 1 of 4: loss", "step 4 of 4: loss", "step 4: evaluation loss"):
        assert said in caplog.text
