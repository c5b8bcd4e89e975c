"""Examples that share a micro-batch never see one another."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from finetuned.core.events import Noticed, Stepped
from finetuned.train.batches import lay_out
from finetuned.train.fit import build_model, fit
from finetuned.train.model.isolation import is_isolated, largest_difference
from finetuned.train.rows import Rows
from training import a_job, a_plan, events_of, full_tuning, open_attempt

PACKING = ["llama", "qwen2", "mistral", "gemma", "smollm"]


@pytest.mark.parametrize("family", PACKING)
def test_logits_inside_a_micro_batch_are_those_of_the_example_alone(
    model_of: Callable[..., Path], spool: Path, family: str
):
    plan = a_plan(model_of(family), spool, tuning=full_tuning())
    model = build_model(open_attempt(a_job(spool, plan)), plan)
    rows = Rows(spool / "store" / "prepared" / "rows" / "train.arrow")
    examples = [rows.example(row) for row in range(4)]
    batch = lay_out(examples)
    model.network.eval()
    with torch.no_grad():
        together_TV = model.network(
            input_ids=batch.input_ids_1T, position_ids=batch.position_ids_1T, use_cache=False
        ).logits[0]
        start = 0
        for example in examples:
            alone_TV = model.network(input_ids=torch.tensor([example.input_ids.tolist()])).logits[0]
            assert (together_TV[start : start + example.tokens] - alone_TV).abs().max() < 1e-5
            start += example.tokens


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("family", [*PACKING, "opt"])
def test_the_check_tells_which_architectures_keep_examples_apart(
    model_of: Callable[..., Path], spool: Path, family: str, precision: str
):
    plan = a_plan(model_of(family), spool, precision=precision)
    model = build_model(open_attempt(a_job(spool, plan)), plan)
    rows = Rows(spool / "store" / "prepared" / "rows" / "train.arrow")
    assert is_isolated(model, rows) == (family != "opt")
    assert model.network.training


class WithoutPositions(torch.nn.Module):
    """A network that does not know where examples begin."""

    def __init__(self, network: torch.nn.Module):
        super().__init__()
        self.network = network

    def forward(self, position_ids: torch.Tensor, **inputs: Any) -> Any:
        return self.network(**inputs)


def test_the_check_sees_a_leak(model_of: Callable[..., Path], spool: Path):
    plan = a_plan(model_of("llama"), spool)
    model = build_model(open_attempt(a_job(spool, plan)), plan)
    leaking = replace(model, network=WithoutPositions(model.network))
    rows = Rows(spool / "store" / "prepared" / "rows" / "train.arrow")
    assert largest_difference(leaking, [rows.example(row) for row in range(3)]) > 0.05
    assert not is_isolated(leaking, rows)


def test_an_architecture_that_mixes_examples_trains_one_at_a_time_and_says_so(
    model_of: Callable[..., Path], spool: Path
):
    plan = a_plan(model_of("opt"), spool, total_steps=3)
    job = a_job(spool, plan)
    fit(open_attempt(job), plan)
    assert [event.micro_batches for event in events_of(job, Stepped)] == [4, 4, 4]
    assert "micro-batch of its own" in events_of(job, Noticed)[0].text
