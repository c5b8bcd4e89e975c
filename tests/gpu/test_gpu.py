"""What only a GPU can show, in one short run: tests/run tests/gpu. Skipped where there is no NVIDIA GPU."""

from pathlib import Path

import pytest
import torch

import tiny
from finetuned.core.events import Evaluated, Stepped
from finetuned.host.machine import look_at
from finetuned.train.fit import fit
from finetuned.train.main import train
from training import a_job, a_plan, add_launch, events_of, full_tuning, lora, open_attempt

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


def test_a_run_goes_on_from_its_checkpoint_with_the_losses_of_an_undisturbed_one(model, tmp_path):
    plan = on_the_gpu(model, tmp_path, tuning=lora(dropout=0.1))
    undisturbed = a_job(tmp_path, plan, "undisturbed")
    fit(open_attempt(undisturbed), plan)
    job = a_job(tmp_path, plan, "stopped")

    def stop_after_7(event, run):
        if isinstance(event, Stepped) and event.step == 7:
            run.stop.why = "asked to stop"

    first = open_attempt(job, stop_after_7)
    with pytest.raises(Exception, match="asked to stop"):
        fit(first, plan)
    add_launch(job)
    fit(open_attempt(job), plan)
    expected = {event.step: event.loss for event in events_of(undisturbed, Stepped)}
    # Sums on a GPU may be taken in another order from run to run; bits are only promised on the CPU.
    assert {event.step: event.loss for event in events_of(job, Stepped)} == pytest.approx(expected, rel=1e-2)
