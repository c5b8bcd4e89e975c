"""Training that goes on from an earlier adapter."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from finetuned.core.events import Evaluated, Restored, Stepped
from finetuned.core.plan import AdapterFacts, LoraTuning, RunPlan
from finetuned.core.problems import StageFailed, StopRequested
from finetuned.host.store import hash_files
from finetuned.train.engine.checkpoint import copied_weights
from finetuned.train.fit import Fitted, build_model, fit
from training import a_job, a_plan, events_of, lora, open_attempt, qlora

NEW = {"added_tokens": ("<think>",)}


@dataclass(frozen=True)
class Earlier:
    """A job that is done, and the adapter that came of it."""

    model: Path
    adapter: Path
    last_eval_loss: float


def saved(fitted: Fitted, folder: Path) -> Path:
    fitted.model.network.save_pretrained(folder, save_embedding_layers=False)
    return folder


def go_on_from(adapter: Path, **changes: Any) -> LoraTuning:
    files = tuple(hash_files(adapter, ["adapter_config.json", "adapter_model.safetensors"]))
    return lora(init_adapter=AdapterFacts(path=str(adapter), files=files, r=4, alpha=8, target_modules="x"), **changes)


@pytest.fixture(scope="module")
def earlier(model_of: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Earlier:
    """DoRA, and a norm that is trained whole."""
    spool = tmp_path_factory.mktemp("earlier")
    plan = a_plan(model_of("llama"), spool, tuning=lora(use_dora=True, modules_to_save=("model.norm",)))
    job = a_job(spool, plan)
    adapter = saved(fit(open_attempt(job), plan), spool / "adapter")
    return Earlier(model_of("llama"), adapter, events_of(job, Evaluated)[-1].eval_loss)


def started(spool: Path, model: Path, tuning: LoraTuning, **changes: Any) -> Any:
    plan = a_plan(model, spool, tuning=tuning, **changes)
    return build_model(open_attempt(prepared_job(spool, plan)), plan)


def prepared_job(spool: Path, plan: RunPlan, name: str = "job") -> Any:
    job = a_job(spool, plan, name)
    job.facts_file.touch()
    return job


def test_it_begins_with_the_weights_and_the_loss_of_the_earlier_adapter(earlier: Earlier, spool: Path):
    """Not with those of a new adapter, nor does it end at once for having no steps left."""
    plan = a_plan(earlier.model, spool, tuning=go_on_from(earlier.adapter))
    job = prepared_job(spool, plan)
    fitted = fit(open_attempt(job), plan)
    losses = [event.eval_loss for event in events_of(job, Evaluated)]
    assert losses[0] == pytest.approx(earlier.last_eval_loss, abs=1e-6)
    stored = load_file(earlier.adapter / "adapter_model.safetensors")
    assert not any(
        torch.equal(weight, stored[name.replace(".default", "")])
        for name, weight in copied_weights(fitted.model).items()
        if "lora_A" in name
    )
    assert (fitted.position.step, len(events_of(job, Stepped))) == (12, 12)
    assert events_of(job, Restored)[0].step == 0


def test_the_optimizer_begins_anew(earlier: Earlier, spool: Path):
    plan = a_plan(earlier.model, spool, tuning=go_on_from(earlier.adapter), total_steps=1, eval_steps=0)
    job = prepared_job(spool, plan)
    fit(open_attempt(job), plan)
    states = load_file(job.checkpoints / "step-00000001" / "optimizer.safetensors")
    assert {int(value) for name, value in states.items() if name.startswith("step/")} == {1}


def test_the_earlier_adapters_own_shape_holds(earlier: Earlier, spool: Path):
    model = started(spool, earlier.model, go_on_from(earlier.adapter, dropout=0.3, r=64))
    stored = load_file(earlier.adapter / "adapter_model.safetensors")
    assert {tuple(weight.shape) for weight in stored.values()} == {
        tuple(weight.shape) for weight in model.trainable.values()
    }
    config = model.network.peft_config["default"]
    assert (config.use_dora, config.r, config.lora_dropout) == (True, 4, 0.3)
    assert {weight.dtype for weight in model.trainable.values()} == {torch.float32}


def test_a_resumed_run_goes_on_from_its_checkpoint_and_not_from_the_earlier_adapter(earlier: Earlier, spool: Path):
    """Bit for bit: the first loss after the stop is that of the undisturbed run."""
    plan = a_plan(earlier.model, spool, tuning=go_on_from(earlier.adapter), total_steps=6)
    whole = prepared_job(spool, plan, "whole")
    expected = fit(open_attempt(whole), plan).model.trainable
    job = prepared_job(spool, plan, "stopped")

    def stop(event: Any, run: Any) -> None:
        if isinstance(event, Stepped) and event.step == 3:
            run.stop.why = "asked to stop"

    with pytest.raises(StopRequested):
        fit(open_attempt(job, stop), plan)
    found = fit(open_attempt(job), plan).model.trainable
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    losses = [[event.loss for event in events_of(each, Stepped)] for each in (whole, job)]
    assert losses[0] == losses[1]


def test_ranks_that_differ_by_layer_carry_over(model_of: Callable[..., Path], spool: Path, tmp_path: Path):
    from peft import LoraConfig, get_peft_model

    base = AutoModelForCausalLM.from_pretrained(model_of("llama"))
    config = LoraConfig(r=4, target_modules="all-linear", rank_pattern={"q_proj": 2}, task_type="CAUSAL_LM")
    get_peft_model(base, config).save_pretrained(tmp_path / "adapter")
    model = started(spool, model_of("llama"), go_on_from(tmp_path / "adapter"))
    assert {len(weight) for name, weight in model.trainable.items() if "q_proj.lora_A" in name} == {2}


def test_it_goes_on_upon_a_quantized_base(earlier: Earlier, spool: Path):
    tuning = go_on_from(earlier.adapter, quantization=qlora("nf4").quantization)
    model = started(spool, earlier.model, tuning)
    stored = load_file(earlier.adapter / "adapter_model.safetensors")
    ours = {name.replace(".default", ""): weight for name, weight in model.trainable.items() if "lora_A" in name}
    assert ours
    assert all(torch.equal(weight, stored[name]) for name, weight in ours.items())


def changed(adapter: Path, into: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    folder = shutil.copytree(adapter, into)
    weights = load_file(folder / "adapter_model.safetensors")
    change(weights)
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    return folder


def test_an_adapter_that_lacks_weights_or_has_odd_ones_is_refused_by_name(
    earlier: Earlier, spool: Path, tmp_path: Path
):
    name = "base_model.model.model.layers.0.mlp.up_proj.lora_B.weight"
    lacking = changed(earlier.adapter, tmp_path / "lacking", lambda weights: weights.pop(name))
    with pytest.raises(StageFailed, match=rf"1 weights differ.*{name} \(nothing is stored, \[128, 4\] expected\)"):
        started(spool, earlier.model, go_on_from(lacking))
    odd = changed(earlier.adapter, tmp_path / "odd", lambda weights: weights.update({name: torch.zeros(7, 4)}))
    with pytest.raises(StageFailed, match=r"\[7, 4\] is stored, \[128, 4\] expected") as refusal:
        started(spool / "again", earlier.model, go_on_from(odd))
    assert not refusal.value.retry


def test_an_adapter_that_was_exchanged_after_prepare_is_refused_by_name(earlier: Earlier, spool: Path, tmp_path: Path):
    folder = shutil.copytree(earlier.adapter, tmp_path / "adapter")
    plan = a_plan(earlier.model, spool, tuning=go_on_from(folder))
    job = prepared_job(spool, plan)
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | {"lora_alpha": 99}))
    with pytest.raises(StageFailed, match=r"adapter_config\.json is not the file"):
        build_model(open_attempt(job), plan)


def test_new_tokens_go_on_from_where_the_earlier_job_left_them(
    model_of: Callable[..., Path], spool: Path, tmp_path: Path
):
    plan = a_plan(model_of("llama"), spool, total_steps=2, eval_steps=0, **NEW)
    adapter = saved(fit(open_attempt(a_job(spool, plan)), plan), tmp_path / "adapter")
    stored = load_file(adapter / "adapter_model.safetensors")
    model = started(spool / "on", model_of("llama"), go_on_from(adapter), **NEW)
    rows = [weight for name, weight in model.trainable.items() if "trainable_tokens" in name]
    expected = [weight for name, weight in sorted(stored.items()) if "trainable_tokens" in name]
    assert len(rows) == 2
    assert all(any(torch.equal(row, each) for each in expected) for row in rows)
    with pytest.raises(StageFailed, match="trained with new tokens") as refusal:
        started(spool / "without", model_of("llama"), go_on_from(adapter))
    assert "same added_tokens" in refusal.value.hint


def test_an_adapter_without_new_tokens_gets_them(earlier: Earlier, spool: Path):
    model = started(spool, earlier.model, go_on_from(earlier.adapter), **NEW)
    assert len([name for name in model.trainable if "trainable_tokens" in name]) == 2


def test_what_comes_of_it_is_one_adapter_on_the_same_base(earlier: Earlier, spool: Path, tmp_path: Path):
    plan = a_plan(earlier.model, spool, tuning=go_on_from(earlier.adapter), total_steps=2, eval_steps=0)
    fitted = fit(open_attempt(prepared_job(spool, plan)), plan)
    adapter = saved(fitted, tmp_path / "adapter")
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(earlier.model), adapter)
    ids = torch.arange(5, 25)[None]
    with torch.no_grad():
        assert torch.allclose(loaded.eval()(ids).logits, fitted.model.network.eval()(ids).logits, atol=1e-5)
