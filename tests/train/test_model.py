"""Loading the base model and making part of it trainable."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from finetuned.core.plan import LoraTuning
from finetuned.core.problems import StageFailed
from finetuned.host.store import hash_files
from finetuned.train.batches import lay_out
from finetuned.train.fit import build_model, fit
from finetuned.train.main import read_plan
from finetuned.train.methods.causal import sum_of_losses
from finetuned.train.model.load import choose_device, load_base, require_prepared_model
from finetuned.train.model.tuned import TunedModel
from finetuned.train.rows import Rows
from training import a_job, a_plan, full_tuning, lora, open_attempt


@pytest.fixture
def llama(model_of: Callable[..., Path]) -> Path:
    return model_of("llama")


def built(spool: Path, model: Path, **changes: object) -> TunedModel:
    shutil.rmtree(spool, ignore_errors=True)
    plan = a_plan(model, spool, **changes)
    return build_model(open_attempt(a_job(spool, plan)), plan)


@pytest.mark.parametrize(
    ("tuning", "precision", "base", "trained"),
    [
        (lora(), "fp32", torch.float32, torch.float32),
        (lora(), "bf16", torch.bfloat16, torch.float32),
        (full_tuning(), "bf16", torch.float32, torch.float32),
    ],
)
def test_a_frozen_base_takes_the_precision_and_trained_weights_are_fp32(
    spool: Path, llama: Path, tuning: object, precision: str, base: torch.dtype, trained: torch.dtype
):
    model = built(spool, llama, tuning=tuning, precision=precision)
    assert model.network.get_input_embeddings().weight.dtype == base
    assert {weight.dtype for weight in model.trainable.values()} == {trained}


def test_lora_trains_only_its_adapters_and_starts_as_the_base_model(spool: Path, llama: Path):
    model = built(spool, llama)
    assert all("lora_" in name for name in model.trainable)
    assert len(model.trainable) == 2 * 7 * 2
    assert all(weight.count_nonzero() == 0 for name, weight in model.trainable.items() if "lora_B" in name)


def test_the_same_plan_builds_the_same_adapter_and_another_seed_another(spool: Path, llama: Path):
    def first_weight(seed: int) -> torch.Tensor:
        return next(iter(built(spool, llama, seed=seed).trainable.values()))

    assert torch.equal(first_weight(1), first_weight(1))
    assert not torch.equal(first_weight(1), first_weight(2))


def test_full_tuning_counts_tied_weights_once(spool: Path, model_of: Callable[..., Path]):
    tied = built(spool, model_of("smollm"), tuning=full_tuning())
    assert "lm_head.weight" not in tied.trainable
    assert all(weight.requires_grad for weight in tied.network.parameters())


@pytest.mark.parametrize("tuning", [lora(dropout=0.1), full_tuning()], ids=lambda tuning: tuning.kind)
def test_gradient_checkpointing_gives_the_same_gradients(spool: Path, model_of: Callable[..., Path], tuning: object):
    def gradients(checkpointing: bool) -> dict[str, torch.Tensor]:
        folder = model_of("llama", attention_dropout=0.1)
        model = built(spool, folder, tuning=tuning, gradient_checkpointing=checkpointing)
        assert model.network.is_gradient_checkpointing == checkpointing
        rows = Rows(spool / "store" / "prepared" / "rows" / "train.arrow")
        torch.manual_seed(1)
        sum_of_losses(model.network, lay_out([rows.example(row) for row in range(3)])).backward()
        return {name: weight.grad for name, weight in model.trainable.items()}

    plain, checkpointed = gradients(False), gradients(True)
    assert all(torch.equal(plain[name], checkpointed[name]) for name in plain)


def test_target_modules_that_fit_nothing_are_refused_with_the_names_there_are(spool: Path, llama: Path):
    nothing = LoraTuning(r=4, alpha=8, dropout=0.0, target_modules=("query_key_value",))
    with pytest.raises(StageFailed, match="query_key_value") as refusal:
        built(spool, llama, tuning=nothing)
    assert "down_proj, gate_proj, k_proj" in refusal.value.hint
    assert not refusal.value.retry


def test_named_target_modules_get_the_adapters(spool: Path, llama: Path):
    model = built(spool, llama, tuning=LoraTuning(r=4, alpha=8, dropout=0.0, target_modules=("q_proj", "v_proj")))
    assert len(model.trainable) == 2 * 2 * 2


def test_a_config_of_another_size_than_the_weights_is_told_by_name_and_shapes(spool: Path, tmp_path: Path, llama: Path):
    other = tmp_path / "other"
    shutil.copytree(llama, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"intermediate_size": 2 * config["intermediate_size"]}))
    with pytest.raises(StageFailed, match=r"6 weights .* among them model\.layers\.0\.mlp\.down_proj") as refusal:
        built(spool, other)
    assert "[64, 128] is stored, [64, 256] expected" in str(refusal.value)
    assert not refusal.value.retry


def test_a_model_that_lacks_weights_is_refused(spool: Path, tmp_path: Path, llama: Path):
    folder = shutil.copytree(llama, tmp_path / "lacking")
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(StageFailed, match=r"lacks 1 weights .*layers\.1\.mlp\.up_proj") as refusal:
        load_base(a_plan(folder, spool), torch.device("cpu"))
    assert not refusal.value.retry


def test_a_torn_weight_file_is_refused_by_the_folder(spool: Path, tmp_path: Path, llama: Path):
    folder = shutil.copytree(llama, tmp_path / "torn")
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(StageFailed, match="torn cannot be loaded"):
        load_base(a_plan(folder, spool), torch.device("cpu"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine whose torch has no GPU")
def test_a_gpu_that_torch_cannot_use_is_a_refusal_that_names_driver_and_torch(spool: Path, llama: Path):
    with pytest.raises(StageFailed, match=rf"its driver is .*torch {torch.__version__.replace('+', '.')}") as refusal:
        choose_device(a_plan(llama, spool, device="cuda"), spool)
    assert "device: cpu" in refusal.value.hint
    assert not refusal.value.retry


def test_a_plan_that_cannot_be_read_fails_at_once_and_says_what_to_do(spool: Path, llama: Path):
    job = a_job(spool, a_plan(llama, spool))
    job.plan_file.write_text("{")
    with pytest.raises(StageFailed, match=r"plan\.json is not a readable") as refusal:
        read_plan(open_attempt(job))
    assert (refusal.value.retry, refusal.value.hint) == (False, f"finetunectl resubmit {job.job}")


def test_a_base_model_that_was_exchanged_after_prepare_is_refused_by_name(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"old weights")
    files = tuple(hash_files(tmp_path, ["config.json", "model.safetensors"]))
    model = a_plan(tmp_path, tmp_path).model.model_copy(update={"files": files})
    prepared = tmp_path / "facts.json"
    prepared.touch()
    hashed_ns = prepared.stat().st_ctime_ns
    require_prepared_model(model, hashed_ns)
    weights.write_bytes(b"new weights")
    with pytest.raises(StageFailed, match=r"model\.safetensors is not the file"):
        require_prepared_model(model, hashed_ns)
    weights.write_bytes(b"old weights")
    require_prepared_model(model, hashed_ns)
    weights.unlink()
    with pytest.raises(StageFailed, match=r"model\.safetensors is not the file"):
        require_prepared_model(model, hashed_ns)


def test_training_does_not_begin_on_a_base_model_that_was_exchanged(model_of, spool: Path, tmp_path: Path):
    folder = shutil.copytree(model_of("llama"), tmp_path / "model")
    plan = a_plan(folder, spool, files=tuple(hash_files(folder, ["config.json", "model.safetensors"])))
    job = a_job(spool, plan)
    job.facts_file.touch()
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    with pytest.raises(StageFailed, match=r"model\.safetensors is not the file"):
        fit(open_attempt(job), plan)
