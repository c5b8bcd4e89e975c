"""The merged model: it answers as the adapter does, in the base's own type, whatever was trained."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

import tiny
from exports import LORA
from finetuned.core.events import Noticed
from finetuned.core.job import Stage
from finetuned.core.plan import LoraTuning, Quantization
from finetuned.core.problems import StageFailed
from finetuned.host.journal import read_events
from finetuned.train.artifacts import merge
from trained import Trained, a_tuned_run, logits, proofs_in_this_process, stored_as, with_a_token_the_model_lacks


@pytest.fixture(scope="module", autouse=True)
def proven_here() -> Iterator[None]:
    with proofs_in_this_process(charts=False):
        yield


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build_model(tmp_path_factory.mktemp("models") / "tied", "smollm")


@pytest.fixture(scope="module")
def bf16_base(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Path:
    return stored_as("bfloat16", base, tmp_path_factory.mktemp("models") / "tiny-bf16")


def lora(**changes: Any) -> LoraTuning:
    return LORA.model_copy(update=changes)


def merged(spool: Path, base: Path, tuning: LoraTuning = LORA, **changes: Any) -> Trained:
    return a_tuned_run(spool, base, tuning, merge=True, **changes).export()


def config_of(trained: Trained, folder: str = "merged") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((trained.artifacts / folder / "config.json").read_text())
    return found


def weights_of(trained: Trained, folder: str = "merged") -> dict[str, torch.Tensor]:
    return load_file(trained.artifacts / folder / "model.safetensors")


def assert_answers_as_trained(trained: Trained, folder: str = "merged") -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(trained.artifacts / folder)
    torch.testing.assert_close(logits(model, trained.rows), trained.logits, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "tuning",
    [
        lora(),
        pytest.param(lora(use_dora=True), marks=pytest.mark.slow),
        pytest.param(lora(use_rslora=True), marks=pytest.mark.slow),
        pytest.param(lora(init_lora_weights="orthogonal"), marks=pytest.mark.slow),
    ],
    ids=["lora", "dora", "rslora", "orthogonal"],
)
def test_the_merged_model_answers_as_the_adapter(tmp_path: Path, base: Path, tuning: LoraTuning) -> None:
    trained = merged(tmp_path, base, tuning)
    assert_answers_as_trained(trained)
    assert trained.exported().merge_drift is not None
    assert "logits of" in (trained.artifacts / "merged" / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("whole", [("lm_head",), ("embed_tokens",), ("embed_tokens", "lm_head")], ids=",".join)
def test_tied_embeddings_that_were_trained_apart_are_both_saved_and_said_to_be_untied(
    tmp_path: Path, tied: Path, whole: tuple[str, ...]
) -> None:
    trained = merged(tmp_path, tied, lora(modules_to_save=whole))
    assert config_of(trained)["tie_word_embeddings"] is False
    weights = weights_of(trained)
    assert not torch.equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"])
    assert_answers_as_trained(trained)


@pytest.mark.slow
def test_an_adapter_on_a_tied_head_changes_the_head_alone(tmp_path: Path, tied: Path) -> None:
    trained = merged(tmp_path, tied, lora(target_modules=("q_proj", "lm_head")))
    assert config_of(trained)["tie_word_embeddings"] is False
    before = load_file(tied / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(weights_of(trained)["model.embed_tokens.weight"], before)
    assert_answers_as_trained(trained)


@pytest.mark.slow
def test_tied_embeddings_that_stayed_equal_stay_tied(tmp_path: Path, tied: Path) -> None:
    trained = merged(tmp_path, tied)
    assert config_of(trained)["tie_word_embeddings"] is True
    assert "lm_head.weight" not in weights_of(trained)
    assert_answers_as_trained(trained)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "smollm"], ids=["untied", "tied"])
def test_new_tokens_are_in_the_merged_model_and_the_adapter_loads_on_a_base_without_them(
    tmp_path: Path, base: Path, tied: Path, family: str
) -> None:
    added = {"added_tokens": ("<think>", "</think>"), "added_special_tokens": ("<|tool|>",)}
    trained = merged(tmp_path, tied if family == "smollm" else base, **added)
    assert config_of(trained)["vocab_size"] == len(trained.tokenizer)
    assert config_of(trained)["tie_word_embeddings"] is (family == "smollm")
    tokenizer = transformers.AutoTokenizer.from_pretrained(trained.artifacts / "merged")
    assert tokenizer.encode("<think>", add_special_tokens=False) == [len(tokenizer) - 3]
    assert_answers_as_trained(trained)
    assert "The tokenizer has 3 new tokens" in (trained.artifacts / "adapter" / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "smollm"], ids=["untied", "tied"])
def test_new_tokens_come_after_those_that_the_tokenizer_has_and_the_model_lacks(
    tmp_path: Path, base: Path, tied: Path, family: str
) -> None:
    padded = with_a_token_the_model_lacks(tied if family == "smollm" else base, tmp_path / "padded")
    trained = merged(tmp_path / "spool", padded, added_tokens=("<think>",))
    assert config_of(trained)["vocab_size"] == len(trained.tokenizer) == 321
    assert config_of(trained)["pad_token_id"] == trained.tokenizer.pad_token_id == 319
    assert_answers_as_trained(trained)


@pytest.mark.slow
def test_a_16_bit_base_stays_a_16_bit_model(tmp_path: Path, bf16_base: Path) -> None:
    trained = merged(tmp_path, bf16_base)
    assert {weight.dtype for weight in weights_of(trained).values()} == {torch.bfloat16}
    assert config_of(trained)["dtype"] == "bfloat16"
    drift = trained.exported().merge_drift
    assert drift is not None
    assert 1e-4 < drift < 0.1


@pytest.mark.parametrize(
    ("stored", "precision"),
    [
        ("float16", "bf16"),
        pytest.param("float32", "bf16", marks=pytest.mark.slow),
        pytest.param("bfloat16", "bf16", marks=pytest.mark.slow),
        pytest.param("float16", "fp32", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("kind", [None, pytest.param("nf4", marks=pytest.mark.slow)], ids=["lora", "qlora"])
def test_a_merged_model_is_stored_as_its_base_and_proven_whatever_the_run_computed_in(
    tmp_path: Path, base: Path, stored: str, precision: str, kind: Any
) -> None:
    folder = stored_as(stored, base, tmp_path / "base")
    tuning = lora(quantization=kind and Quantization(kind=kind, double_quant=True))
    trained = merged(tmp_path / "spool", folder, tuning, precision=precision)
    assert {weight.dtype for weight in weights_of(trained).values()} == {getattr(torch, stored)}
    assert trained.exported().merge_drift is not None


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_an_adapter_of_a_quantized_base_is_merged_into_the_16_bit_one_and_the_drift_is_told(
    tmp_path: Path, bf16_base: Path, kind: Any
) -> None:
    quantization = Quantization(kind=kind, double_quant=kind == "nf4")
    trained = merged(tmp_path, bf16_base, lora(quantization=quantization))
    weights, before = weights_of(trained), load_file(bf16_base / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    # What no adapter touched is the base's own, not what quantizing had made of it.
    assert torch.equal(weights["model.norm.weight"], before["model.norm.weight"])
    assert "quantization_config" not in config_of(trained)
    drift = trained.exported().merge_drift
    assert drift is not None
    assert drift > 0
    [notice] = [
        event.text for event in read_events(trained.run.job.events_file(Stage.TRAIN)) if isinstance(event, Noticed)
    ]
    assert "the adapter was trained on a quantized one: logits differ by" in notice
    assert "mean KL divergence" in notice
    page = (trained.artifacts / "report.html").read_text()
    assert notice in page
    assert "QLoRA" in page


@pytest.mark.slow
def test_merging_adds_the_adapter_to_the_base_itself(tmp_path: Path, bf16_base: Path) -> None:
    """Into rounded weights it would be lost: the merged projection differs from the base by the adapter's product."""
    trained = merged(tmp_path, bf16_base, lora(quantization=Quantization(kind="nf4")))
    adapter = load_file(trained.artifacts / "adapter" / "adapter_model.safetensors")
    layer = "model.layers.0.self_attn.q_proj"
    a, b = (adapter[f"base_model.model.{layer}.lora_{part}.weight"] for part in "AB")
    expected = load_file(bf16_base / "model.safetensors")[f"{layer}.weight"].float() + (LORA.alpha / LORA.r) * (b @ a)
    torch.testing.assert_close(weights_of(trained)[f"{layer}.weight"].float(), expected, rtol=1e-2, atol=1e-2)


def test_a_merge_that_answers_otherwise_on_the_same_base_fails_the_job(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = merge.save_model

    def save_another(plan: Any, model: Any, tokenizer: Any, into: Path, dtype: torch.dtype) -> dict[str, str]:
        model.model.norm.weight.data *= 1.5
        return honest(plan, model, tokenizer, into, dtype)

    monkeypatch.setattr(merge, "save_model", save_another)
    with pytest.raises(StageFailed, match=r"the model in merged/ does not answer as the trained one"):
        merged(tmp_path, base)


def test_a_base_that_is_stored_quantized_is_not_merged_into(tmp_path: Path, base: Path) -> None:
    folder = tmp_path / "quantized"
    tiny.build_model(folder)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    trained = a_tuned_run(tmp_path / "spool", folder, LORA, merge=True)
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(StageFailed, match=r"is stored quantized"):
        merge.merge_adapter(trained.plan, folder, tmp_path / "into")


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "smollm"])
def test_a_whole_head_on_a_bf16_base_is_exported_merged_and_proven(tmp_path: Path, family: str) -> None:
    base = tiny.build_model(tmp_path / "base", family)
    transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).save_pretrained(base)
    tuning = lora(modules_to_save=("lm_head", "embed_tokens"))
    trained = merged(tmp_path / "spool", base, tuning, precision="bf16")
    drift = trained.exported().merge_drift
    assert drift is not None
    assert drift < 0.1
