"""What each tuning trains, and how the base is held meanwhile."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft.tuners.lora import LoraLayer

from finetuned.core.events import Noticed
from finetuned.core.problems import StageFailed
from finetuned.train.batches import lay_out
from finetuned.train.engine.optimizer import build_optimizer, decaying_weights
from finetuned.train.fit import build_model, fit
from finetuned.train.memory import explained_memory_errors
from finetuned.train.methods.causal import sum_of_losses
from finetuned.train.model.isolation import is_isolated
from finetuned.train.model.load import load_base
from finetuned.train.model.tuned import TunedModel
from finetuned.train.noise import drop_known_noise
from finetuned.train.rows import Rows
from training import a_job, a_plan, events_of, freeze, full_tuning, lora, open_attempt, qlora

KINDS = ["nf4", "fp4", "int8"]
QUANTIZED_TYPE = {"nf4": torch.uint8, "fp4": torch.uint8, "int8": torch.int8}


@pytest.fixture
def llama(model_of: Callable[..., Path]) -> Path:
    return model_of("llama")


@pytest.fixture
def smollm(model_of: Callable[..., Path]) -> Path:
    """Its head is tied to its embeddings."""
    return model_of("smollm")


def built(spool: Path, model: Path, tuning: Any, **changes: Any) -> TunedModel:
    shutil.rmtree(spool, ignore_errors=True)
    plan = a_plan(model, spool, tuning=tuning, **changes)
    return build_model(open_attempt(a_job(spool, plan)), plan)


def rows_of(spool: Path) -> Rows:
    return Rows(spool / "store" / "prepared" / "rows" / "train.arrow")


def gradients(model: TunedModel, spool: Path) -> dict[str, torch.Tensor | None]:
    rows = rows_of(spool)
    with model.computing():
        losses = sum_of_losses(model.network, lay_out([rows.example(row) for row in range(3)]))
    losses.backward()
    return {name: weight.grad for name, weight in model.trainable.items()}


def short_names(model: TunedModel) -> set[str]:
    return {name.removeprefix("base_model.model.").replace(".default", "") for name in model.trainable}


@pytest.mark.parametrize("kind", KINDS)
def test_qlora_quantizes_the_linear_layers_and_neither_head_nor_embeddings(spool: Path, llama: Path, kind: Any):
    model = built(spool, llama, qlora(kind), precision="bf16")
    network = model.network.get_base_model()
    inner = [module.get_base_layer() for module in network.modules() if isinstance(module, LoraLayer)]
    assert len(inner) == 14
    assert {module.weight.dtype for module in inner} == {QUANTIZED_TYPE[kind]}
    assert network.get_input_embeddings().weight.dtype == network.get_output_embeddings().weight.dtype == torch.bfloat16
    assert {weight.dtype for weight in model.trainable.values()} == {torch.float32}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_adapter_on_a_quantized_base_gets_gradients_also_with_checkpointing(
    spool: Path, llama: Path, kind: Any, precision: str
):
    model = built(spool, llama, qlora(kind, use_dora=kind != "int8"), precision=precision, gradient_checkpointing=True)
    found = gradients(model, spool)
    assert found
    assert all(grad is not None and grad.dtype == torch.float32 for grad in found.values())
    assert all(grad.abs().max() > 0 for name, grad in found.items() if grad is not None and "lora_A" not in name)


def test_dora_on_8_bits_is_refused_before_the_model_is_read(spool: Path, tmp_path: Path, llama: Path):
    without_weights = shutil.copytree(llama, tmp_path / "base", ignore=shutil.ignore_patterns("*.safetensors"))
    with pytest.raises(StageFailed, match="breaks off once it is loaded again") as failed:
        built(spool, without_weights, qlora("int8", use_dora=True))
    assert not failed.value.retry
    assert "load_in_4bit: true" in failed.value.hint


@pytest.mark.parametrize("kind", KINDS)
def test_a_quantized_base_answers_much_as_the_base_does(spool: Path, llama: Path, kind: Any):
    ids = torch.arange(5, 25)[None]
    with torch.no_grad():
        exact = built(spool, llama, lora()).network.eval()(ids).logits
        rounded = built(spool, llama, qlora(kind)).network.eval()(ids).logits
    assert 0 < (rounded - exact).norm() / exact.norm() < 0.5


@pytest.mark.parametrize("tuning", [qlora("nf4"), qlora("int8"), lora(use_dora=True), freeze("norm")], ids=str)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_examples_stay_apart_under_every_tuning(spool: Path, llama: Path, tuning: Any, precision: str):
    assert is_isolated(built(spool, llama, tuning, precision=precision), rows_of(spool))


def test_weights_of_4_bits_are_never_repacked_for_inference(spool: Path, llama: Path):
    network = built(spool, llama, qlora("nf4")).network
    flags = {getattr(module, "support_avx512bf16_for_cpu", False) for module in network.modules()}
    assert flags == {False}
    network.eval()(torch.arange(5, 25)[None])
    states = [module.weight.quant_state for module in network.modules() if hasattr(module, "quant_state")]
    assert not any(getattr(state, "packing_format_for_cpu", False) for state in states)


def test_a_quantized_model_that_lacks_weights_is_refused_too(spool: Path, tmp_path: Path, llama: Path):
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(llama, tmp_path / "lacking")
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(StageFailed, match=r"lacks 1 weights .*layers\.1\.mlp\.up_proj"):
        load_base(a_plan(folder, spool, tuning=qlora("nf4")), torch.device("cpu"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_quantized_model_of_another_size_is_refused_too(spool: Path, tmp_path: Path, llama: Path, kind: Any):
    folder = shutil.copytree(llama, tmp_path / "other")
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"intermediate_size": 128', '"intermediate_size": 256'))
    with pytest.raises(StageFailed, match=r"6 weights .* have other shapes"):
        load_base(a_plan(folder, spool, tuning=qlora(kind)), torch.device("cpu"))


def test_bitsandbytes_line_for_each_multiplication_is_dropped_and_others_stay(caplog: pytest.LogCaptureFixture):
    drop_known_noise()
    logger = logging.getLogger("bitsandbytes.autograd._functions")
    logger.warning("MatMul8bitLt: inputs will be cast from %s to float16 during quantization", torch.float32)
    logger.error("something is wrong")
    assert [record.getMessage() for record in caplog.records] == ["something is wrong"]


def test_dora_trains_a_magnitude_beside_each_adapter(spool: Path, llama: Path):
    names = short_names(built(spool, llama, lora(use_dora=True)))
    assert len(names) == 3 * 14
    assert "model.layers.0.mlp.up_proj.lora_magnitude_vector.weight" in names


def test_rslora_scales_by_the_root_of_the_rank(spool: Path, llama: Path):
    def scaling(**changes: Any) -> float:
        network = built(spool, llama, lora(**changes)).network
        return next(module.scaling["default"] for module in network.modules() if isinstance(module, LoraLayer))

    assert scaling() == 8 / 4
    assert scaling(use_rslora=True) == 8 / 2


@pytest.mark.parametrize("words", ["default", "gaussian", "orthogonal"])
def test_every_initialisation_begins_as_the_base_model(spool: Path, llama: Path, words: Any):
    ids = torch.arange(5, 25)[None]
    network = built(spool, llama, lora(init_lora_weights=words)).network.eval()
    with torch.no_grad(), network.disable_adapter():
        base = network(ids).logits
    with torch.no_grad():
        assert torch.allclose(network(ids).logits, base, atol=1e-5)


@pytest.mark.parametrize(
    ("targets", "adapters"),
    [("all-linear", 14), (("q_proj", "v_proj"), 4), (r".*layers\.1\..*(gate|up)_proj", 2)],
    ids=["all-linear", "names", "regex"],
)
@pytest.mark.parametrize("tuning", [lora, lambda **changes: qlora("nf4", **changes)], ids=["lora", "qlora"])
def test_adapters_go_where_lora_target_modules_says(
    spool: Path, llama: Path, tuning: Callable[..., Any], targets: Any, adapters: int
):
    assert len(built(spool, llama, tuning(target_modules=targets)).trainable) == 2 * adapters


def test_an_odd_rank_that_orthogonal_cannot_take_is_said_as_such(spool: Path, llama: Path):
    with pytest.raises(StageFailed, match="rank to be even, got 3"):
        built(spool, llama, lora(init_lora_weights="orthogonal", r=3))


@pytest.mark.parametrize("tuning", [lora, lambda **changes: qlora("int8", **changes)], ids=["lora", "qlora"])
def test_modules_to_save_are_trained_whole_in_fp32_and_never_quantized(
    spool: Path, llama: Path, tuning: Callable[..., Any]
):
    whole = ("lm_head", "model.norm", "mlp.down_proj")
    targets = ("q_proj", "v_proj")
    model = built(spool, llama, tuning(modules_to_save=whole, target_modules=targets), precision="bf16")
    names = {name for name in short_names(model) if "lora" not in name}
    assert names == {
        "lm_head.modules_to_save.weight",
        "model.norm.modules_to_save.weight",
        *(f"model.layers.{layer}.mlp.down_proj.modules_to_save.weight" for layer in (0, 1)),
    }
    assert {weight.dtype for weight in model.trainable.values()} == {torch.float32}
    assert all(grad is not None for grad in gradients(model, spool).values())


def test_modules_to_save_that_are_not_there_are_refused_by_name(spool: Path, llama: Path):
    with pytest.raises(StageFailed, match="no module 'lm_heads'") as refusal:
        built(spool, llama, lora(modules_to_save=("lm_heads",)))
    assert "lm_head" in refusal.value.hint


def test_freeze_trains_what_the_patterns_find_and_nothing_else(spool: Path, llama: Path):
    model = built(spool, llama, freeze(r"layers\.1\.mlp", r"^model\.norm"), precision="bf16")
    assert set(model.trainable) == {
        "model.norm.weight",
        *(f"model.layers.1.mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
    }
    others = [weight for weight in model.network.parameters() if not weight.requires_grad]
    assert {weight.dtype for weight in model.trainable.values()} == {torch.float32}
    assert {weight.dtype for weight in others} == {torch.bfloat16}
    assert all(grad is not None for grad in gradients(model, spool).values())


def test_a_pattern_that_finds_nothing_is_refused_with_names_there_are(spool: Path, llama: Path):
    with pytest.raises(StageFailed, match=r"'blocks' is found in none of the 21 names") as refusal:
        built(spool, llama, freeze("norm", "blocks"))
    assert "model.layers.0.self_attn.q_proj.weight" in refusal.value.hint
    assert not refusal.value.retry


def test_a_head_that_is_tied_is_unfrozen_with_the_embeddings_it_is(spool: Path, smollm: Path):
    model = built(spool, smollm, freeze("lm_head"))
    assert set(model.trainable) == {"model.embed_tokens.weight"}
    assert model.network.lm_head.weight is model.network.model.embed_tokens.weight


@pytest.mark.parametrize("tuning", [lora(dropout=0.1), qlora("nf4"), lora(use_dora=True), freeze("mlp")], ids=str)
def test_the_seed_is_set_before_the_model_is_built(spool: Path, llama: Path, tuning: Any):
    """Two runs of a plan begin with the same weights, bit for bit, whatever was drawn in the process before."""
    first = {name: weight.clone() for name, weight in built(spool, llama, tuning).trainable.items()}
    torch.rand(5)
    second = built(spool, llama, tuning).trainable
    assert all(torch.equal(first[name], weight) for name, weight in second.items())


def test_lora_plus_makes_b_matrices_learn_faster_and_nothing_else(spool: Path, llama: Path):
    tuning = lora(use_dora=True, modules_to_save=("lm_head", "embed_tokens"))
    model = built(spool, llama, tuning, loraplus_lr_ratio=16.0)
    plan = a_plan(llama, spool, loraplus_lr_ratio=16.0)
    factors = factors_of(model, build_optimizer(model, plan.optimizer))
    assert {name for name, factor in factors.items() if factor == 16} == {name for name in factors if "lora_B" in name}
    assert {factor for name, factor in factors.items() if "lora_B" not in name} == {1}


def test_a_step_of_lora_plus_takes_b_matrices_further(spool: Path, llama: Path):
    """AdamW's first step is as long as the learning rate, whatever the gradient."""
    plan = a_plan(llama, spool, loraplus_lr_ratio=16.0, total_steps=1, warmup_steps=0, eval_steps=0, learning_rate=1e-3)
    trainable = fit(open_attempt(a_job(spool, plan)), plan).model.trainable
    furthest = max(weight.abs().max().item() for name, weight in trainable.items() if "lora_B" in name)
    assert furthest == pytest.approx(16e-3, rel=1e-3)


def factors_of(model: TunedModel, optimizer: torch.optim.Optimizer) -> dict[str, float]:
    names = {id(weight): name for name, weight in model.trainable.items()}
    return {names[id(weight)]: group["lr_factor"] for group in optimizer.param_groups for weight in group["params"]}


def test_what_decays_are_matrices_and_no_embeddings_under_every_tuning(spool: Path, llama: Path):
    def decaying(tuning: Any, **changes: Any) -> set[str]:
        model = built(spool, llama, tuning, **changes)
        return {name.replace(".default", "").split(".", 2)[-1] for name in decaying_weights(model)}

    dora = decaying(lora(use_dora=True, modules_to_save=("embed_tokens",)), added_tokens=("<think>",))
    assert all("lora_A" in name or "lora_B" in name for name in dora)
    assert not any("norm" in name or "embed" in name for name in decaying(freeze("norm", "embed", "mlp")))


def states_of(model: TunedModel, optimizer: torch.optim.Optimizer, spool: Path) -> dict[str, dict[str, Any]]:
    gradients(model, spool)
    optimizer.step()
    return {name: optimizer.state[weight] for name, weight in model.trainable.items()}


def test_states_of_large_matrices_are_held_in_8_bits_and_those_of_embeddings_are_not(spool: Path, llama: Path):
    model = built(spool, llama, full_tuning())
    optimizer = build_optimizer(model, a_plan(llama, spool, optim="adamw_8bit").optimizer)
    states = states_of(model, optimizer, spool)
    assert states["model.layers.0.mlp.up_proj.weight"]["state1"].dtype == torch.uint8
    assert states["model.embed_tokens.weight"]["state1"].dtype == torch.float32
    assert states["model.norm.weight"]["state1"].dtype == torch.float32


@pytest.mark.parametrize("optim", ["adamw_8bit", "paged_adamw_32bit", "paged_adamw_8bit"])
def test_every_optimizer_takes_much_the_same_step_as_torch(spool: Path, llama: Path, optim: str):
    def after_a_step(name: str) -> dict[str, torch.Tensor]:
        model = built(spool, llama, full_tuning())
        states_of(model, build_optimizer(model, a_plan(llama, spool, optim=name).optimizer), spool)
        return {name: weight.detach() for name, weight in model.trainable.items()}

    before = {name: weight.detach() for name, weight in built(spool, llama, full_tuning()).trainable.items()}
    torchs, found = after_a_step("adamw_torch"), after_a_step(optim)
    moved = torch.cat([(torchs[name] - before[name]).flatten() for name in before])
    differing = torch.cat([(torchs[name] - found[name]).flatten() for name in before])
    assert moved.norm() > 0
    assert differing.norm() < (0.1 if optim.endswith("8bit") else 1e-3) * moved.norm()


@pytest.mark.parametrize(
    ("tuning", "kind", "smaller"),
    [
        (lora(), "LoRA", "finetuning_type: qlora"),
        (qlora("int8"), "QLoRA", "load_in_4bit"),
        (qlora("nf4"), "QLoRA", "a smaller max_seq_length"),
        (freeze("norm"), "freeze", "fewer unfrozen_parameters"),
    ],
)
def test_running_out_of_memory_names_the_tuning_and_what_takes_less(
    spool: Path, llama: Path, tuning: Any, kind: str, smaller: str
):
    plan = a_plan(llama, spool, tuning=tuning)
    expected = pytest.raises(StageFailed, match=f"ran out of memory: {kind} tuning of tiny")
    with expected as failure, explained_memory_errors(plan):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    assert failure.value.hint.startswith(smaller)


def test_a_paged_optimizer_on_a_cpu_is_a_plain_one_and_says_so(spool: Path, llama: Path):
    plan = a_plan(llama, spool, optim="paged_adamw_8bit", total_steps=1, eval_steps=0)
    job = a_job(spool, plan)
    fit(open_attempt(job), plan)
    assert [event.text for event in events_of(job, Noticed)] == [
        "optim: paged_adamw_8bit: on a CPU there is nothing to page; the result is the same"
    ]
