"""New tokens: their ids, their rows in the embeddings, and that what is trained of them is what others load."""

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import AutoPeftModelForCausalLM
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from finetuned.core.plan import RunPlan
from finetuned.core.problems import StageFailed
from finetuned.host.tokenizer import TokensUnusable, load_tokenizer, token_ids
from finetuned.train.fit import build_model, fit
from finetuned.train.model.load import load_tokenizer as load_the_plans_tokenizer
from finetuned.train.model.tokens import grow_embeddings
from finetuned.train.model.tuned import TunedModel
from training import a_job, a_plan, freeze, full_tuning, lora, open_attempt, qlora, random_rows

NEW = {"added_tokens": ("<think>", "</think>"), "added_special_tokens": ("<|tool|>",)}


@pytest.fixture
def llama(model_of: Callable[..., Path]) -> Path:
    return model_of("llama")


@pytest.fixture
def smollm(model_of: Callable[..., Path]) -> Path:
    """Its head is tied to its embeddings."""
    return model_of("smollm")


@pytest.fixture(scope="module")
def padded(model_of: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has 40 rows more than its tokenizer has tokens."""
    folder = shutil.copytree(model_of("llama"), tmp_path_factory.mktemp("padded") / "model")
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(known(folder) + 40)
    model.save_pretrained(folder)
    return folder


def known(model: Path) -> int:
    return len(AutoTokenizer.from_pretrained(model))


def a_plan_with_new_tokens(model: Path, spool: Path, tuning: Any, **changes: Any) -> RunPlan:
    """Its rows hold the new tokens, among others."""
    first = known(model)
    rows = [
        ([first + row % 3, *ids, first + row % 3], [False, *targets, True])
        for row, (ids, targets) in enumerate(random_rows(22))
    ]
    return a_plan(model, spool, tuning=tuning, rows=rows, eval_rows=(), **NEW | changes)


def built(spool: Path, plan: RunPlan) -> TunedModel:
    shutil.rmtree(spool / "active", ignore_errors=True)
    return build_model(open_attempt(a_job(spool, plan)), plan)


def trained(spool: Path, plan: RunPlan) -> TunedModel:
    return fit(open_attempt(a_job(spool, plan)), plan).model


def test_new_tokens_get_the_ids_after_the_tokenizers_own_special_ones_last(llama: Path):
    tokenizer = load_tokenizer(llama, NEW["added_tokens"], NEW["added_special_tokens"])
    first = known(llama)
    assert token_ids(tokenizer, ("<think>", "</think>", "<|tool|>")) == [first, first + 1, first + 2]
    ids = tokenizer("<think>add</think><|tool|>")["input_ids"]
    assert (ids[0], ids[-2], ids[-1]) == (first, first + 1, first + 2)
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<think>add</think>"


def test_the_worker_and_prepare_read_text_with_the_same_tokenizer(llama: Path, spool: Path):
    text = "<think>add 1 and 2</think> gives 3<|tool|>"
    prepares = load_tokenizer(llama, NEW["added_tokens"], NEW["added_special_tokens"])
    workers = load_the_plans_tokenizer(a_plan(llama, spool, **NEW))
    assert workers(text)["input_ids"] == prepares(text)["input_ids"]


def test_a_token_that_is_there_already_is_refused_by_name(llama: Path):
    with pytest.raises(TokensUnusable, match=r"'<\|im_end\|>'"):
        load_tokenizer(llama, ("<think>", "<|im_end|>"))


def test_a_token_that_is_named_twice_is_refused_by_name(llama: Path):
    with pytest.raises(TokensUnusable, match="'<a>': every new token needs"):
        load_tokenizer(llama, ("<a>", "<b>"), ("<a>",))


@pytest.mark.parametrize("tuning", [lora(), qlora("nf4"), qlora("int8")], ids=["lora", "nf4", "int8"])
def test_an_adapter_trains_the_new_rows_and_no_others(llama: Path, spool: Path, tuning: Any):
    plan = a_plan_with_new_tokens(llama, spool, tuning)
    before = {name: weight.detach().clone() for name, weight in built(spool, plan).trainable.items()}
    model = trained(spool / "run", a_plan_with_new_tokens(llama, spool / "run", tuning))
    rows = {name: weight for name, weight in model.trainable.items() if "lora_" not in name}
    assert {tuple(weight.shape) for weight in rows.values()} == {(3, 64)}
    assert len(rows) == 2
    assert all((weight != before[name]).any(1).all() for name, weight in rows.items())
    assert model.network.get_base_model().config.vocab_size == known(llama) + 3


def test_tied_embeddings_stay_tied_and_their_new_rows_are_trained_once(smollm: Path, spool: Path):
    model = trained(spool, a_plan_with_new_tokens(smollm, spool, lora()))
    assert len([name for name in model.trainable if "lora_" not in name]) == 1
    network = model.network.get_base_model()
    embeddings, head = network.get_input_embeddings(), network.get_output_embeddings()
    assert torch.equal(
        embeddings.token_adapter.get_merged_weights(["default"]), head.token_adapter.get_merged_weights(["default"])
    )


def test_embeddings_that_are_padded_keep_their_size(padded: Path, spool: Path):
    model = built(spool, a_plan_with_new_tokens(padded, spool, lora()))
    assert model.network.get_base_model().config.vocab_size == known(padded) + 40


@pytest.mark.parametrize("family", ["llama", "smollm"])
def test_new_rows_begin_near_the_mean_of_the_others_and_are_a_function_of_the_seed(
    model_of: Callable[..., Path], family: str
):
    first_id = known(model_of(family))

    def grown(seed: int) -> Any:
        model = AutoModelForCausalLM.from_pretrained(model_of(family), dtype=torch.float32)
        torch.rand(3)
        grow_embeddings(model, [first_id, first_id + 1], seed)
        return model

    first, again, other = grown(1), grown(1), grown(2)
    for embeddings in ("get_input_embeddings", "get_output_embeddings"):
        new, same, different = (getattr(model, embeddings)().weight[first_id:] for model in (first, again, other))
        old = getattr(first, embeddings)().weight[:first_id]
        assert torch.equal(new, same)
        assert not torch.equal(new, different)
        assert not torch.equal(new[0], new[1])
        assert (new - old.mean(0)).norm() < 0.5 * old[1].norm()
    is_tied = first.get_input_embeddings().weight is first.get_output_embeddings().weight
    assert is_tied == (family == "smollm")


@pytest.mark.parametrize("tuning", [full_tuning(), freeze("norm")], ids=["full", "freeze"])
def test_the_embeddings_are_trained_where_there_is_no_adapter(llama: Path, spool: Path, tuning: Any):
    model = built(spool, a_plan_with_new_tokens(llama, spool, tuning))
    rows = {name: weight for name, weight in model.trainable.items() if "embed_tokens" in name or "lm_head" in name}
    assert {tuple(weight.shape) for weight in rows.values()} == {(known(llama) + 3, 64)}
    assert len(rows) == 2


def test_one_of_tied_embeddings_cannot_be_trained_whole_when_there_are_new_tokens(smollm: Path, spool: Path):
    with pytest.raises(StageFailed, match="embed_tokens and lm_head are tied") as refusal:
        built(spool, a_plan_with_new_tokens(smollm, spool, lora(modules_to_save=("lm_head",))))
    assert "both of them, or neither" in refusal.value.hint


def test_adapters_on_embeddings_that_have_new_rows_are_refused(llama: Path, spool: Path):
    with pytest.raises(StageFailed, match="no adapter fits lora_target_modules"):
        built(spool, a_plan_with_new_tokens(llama, spool, lora(target_modules=("embed_tokens", "q_proj"))))


def logits(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.eval()(torch.tensor([ids]), use_cache=False).logits[0].float()
    return found


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {}),
        pytest.param(*("smollm", {}), marks=pytest.mark.slow),
        ("padded", {}),
        pytest.param(*("llama", {"modules_to_save": ("embed_tokens", "lm_head")}), marks=pytest.mark.slow),
        pytest.param(*("llama", {"modules_to_save": ("lm_head",)}), marks=pytest.mark.slow),
        ("smollm", {"modules_to_save": ("embed_tokens", "lm_head")}),
    ],
)
def test_a_plain_loader_of_the_adapter_gets_the_trained_model(
    model_of: Callable[..., Path], padded: Path, spool: Path, tmp_path: Path, family: str, changes: dict[str, Any]
):
    """Also where embeddings are tied and both are trained: two matrices, of which neither may overwrite the other."""
    folder = padded if family == "padded" else model_of(family)
    plan = a_plan_with_new_tokens(folder, spool, lora(**changes))
    model = trained(spool, plan)
    adapter = tmp_path / "adapter"
    model.network.save_pretrained(adapter, save_embedding_layers=False)
    load_the_plans_tokenizer(plan).save_pretrained(adapter)
    torch.manual_seed(7)
    with warnings.catch_warnings(action="ignore"):
        loaded = AutoPeftModelForCausalLM.from_pretrained(adapter)
    ids = [*range(5, 25), known(folder), known(folder) + 2]
    assert torch.allclose(logits(loaded, ids), logits(model.network, ids), atol=1e-5)
    assert AutoConfig.from_pretrained(folder).vocab_size == loaded.config.vocab_size - (0 if family == "padded" else 3)
