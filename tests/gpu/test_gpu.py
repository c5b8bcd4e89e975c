"""What only a GPU can show, in one short run: tests/run tests/gpu. Skipped where there is no NVIDIA GPU."""

from pathlib import Path

import pytest
import torch

import tiny
from finetuned.core.events import Evaluated, Stepped
from finetuned.core.problems import StopRequested
from finetuned.host.machine import look_at
from finetuned.train.engine.optimizer import build_optimizer
from finetuned.train.engine.restore import restore_newest
from finetuned.train.fit import build_model, fit
from finetuned.train.main import train
from training import a_job, a_plan, add_launch, events_of, freeze, full_tuning, lora, open_attempt, qlora

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build_model(tmp_path_factory.mktemp("llama"))


def on_the_gpu(model: Path, spool: Path, **changes: object):
    return a_plan(model, spool, **{"device": "cuda", "precision": "bf16", "gradient_checkpointing": True} | changes)


def test_the_gpu_is_found_without_torch(tmp_path):
    machine = look_at(tmp_path)
    assert machine.has_gpu
    assert machine.driver_version
    assert machine.devices[0].memory_bytes == pytest.approx(torch.cuda.get_device_properties(0).total_memory, rel=0.05)


@pytest.mark.parametrize("tuning", [lora(dropout=0.1), full_tuning()], ids=["lora", "full"])
def test_a_run_learns_and_its_artifacts_prove_themselves(model, tmp_path, tuning):
    job = a_job(tmp_path, on_the_gpu(model, tmp_path, tuning=tuning, learning_rate=3e-3))
    ending = train(open_attempt(job))
    assert ending.event == "finished"
    losses = [event.eval_loss for event in events_of(job, Evaluated)]
    assert losses[-1] < losses[0]
    assert (job.artifacts / "report.html").exists()


def test_fp32_losses_are_those_of_the_cpu(model, tmp_path):
    torch.backends.cuda.matmul.allow_tf32 = False
    found = {}
    for device in ("cpu", "cuda"):
        spool = tmp_path / device
        plan = on_the_gpu(model, spool, device=device, precision="fp32", gradient_checkpointing=False)
        job = a_job(spool, plan)
        fit(open_attempt(job), plan)
        found[device] = [event.loss for event in events_of(job, Stepped)]
    assert found["cuda"] == pytest.approx(found["cpu"], rel=1e-4)


def stopped_and_resumed(model, spool, **changes):
    """Losses by step of an undisturbed run, and of one that was stopped after 7 steps and went on; and its job."""
    plan = on_the_gpu(model, spool, **changes)
    undisturbed = a_job(spool, plan, "undisturbed")
    fit(open_attempt(undisturbed), plan)
    job = a_job(spool, plan, "stopped")

    def stop_after_7(event, run):
        if isinstance(event, Stepped) and event.step == 7:
            run.stop.why = "asked to stop"

    with pytest.raises(StopRequested):
        fit(open_attempt(job, stop_after_7), plan)
    add_launch(job)
    fit(open_attempt(job), plan)
    return *({event.step: event.loss for event in events_of(each, Stepped)} for each in (undisturbed, job)), job


@pytest.mark.parametrize(
    "changes",
    [
        {"tuning": lora(dropout=0.1)},
        {"tuning": qlora("nf4", dropout=0.1)},
        {"tuning": qlora("int8", dropout=0.1)},
        {"tuning": qlora("nf4", use_dora=True), "added_tokens": ("<think>",), "added_special_tokens": ("<|tool|>",)},
        {"tuning": freeze("mlp")},
        {"tuning": full_tuning(), "optim": "adamw_8bit"},
        {"tuning": full_tuning(), "optim": "paged_adamw_8bit"},
        {"tuning": qlora("nf4", r=64), "optim": "paged_adamw_32bit"},
    ],
    ids=["lora", "nf4", "int8", "dora on nf4, new tokens", "freeze", "adamw_8bit", "paged_adamw_8bit", "paged_32bit"],
)
def test_a_run_goes_on_from_its_checkpoint_with_the_losses_of_an_undisturbed_one(model, tmp_path, changes):
    expected, found, _job = stopped_and_resumed(model, tmp_path, **changes)
    # Sums on a GPU may be taken in another order from run to run; bits are only promised on the CPU.
    assert found == pytest.approx(expected, rel=1e-2)


def test_states_that_are_paged_come_back_paged(tmp_path):
    """Matrices of 100,000 elements and more are; their states must lie in managed memory after a stop, too."""
    wide = tiny.build_model(tmp_path, hidden=512, layers=1)
    plan = on_the_gpu(wide, tmp_path / "spool", tuning=full_tuning(), optim="paged_adamw_32bit", total_steps=2)
    job = a_job(tmp_path / "spool", plan)
    fit(open_attempt(job), plan)
    run = open_attempt(job)
    model = build_model(run, plan)
    optimizer = build_optimizer(model, plan.optimizer)
    restore_newest(run, plan, model, optimizer)
    states = [optimizer.state[weight] for weight in model.trainable.values() if weight.ndim == 2]
    assert all(getattr(state["state1"], "is_paged", False) for state in states)


@pytest.mark.parametrize("kind", ["nf4", "fp4", "int8"])
def test_a_quantized_run_learns_and_its_artifacts_prove_themselves(model, tmp_path, kind):
    job = a_job(tmp_path, on_the_gpu(model, tmp_path, tuning=qlora(kind), learning_rate=3e-3))
    assert train(open_attempt(job)).event == "finished"
    losses = [event.eval_loss for event in events_of(job, Evaluated)]
    assert losses[-1] < losses[0]
