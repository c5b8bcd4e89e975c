"""Learning rates and weight decay."""

import pytest

from finetuned.core.plan import Schedule
from finetuned.train.engine.schedule import learning_rate_at


def a_schedule(kind: str, warmup_steps: int = 2, total_steps: int = 10) -> Schedule:
    return Schedule.model_validate(
        {"lr_scheduler_type": kind, "warmup_steps": warmup_steps, "total_steps": total_steps}
    )


@pytest.mark.parametrize(
    ("kind", "step", "rate"),
    [
        ("linear", 0, 0.0),
        ("linear", 1, 0.5),
        ("linear", 2, 1.0),
        ("linear", 6, 0.5),
        ("linear", 10, 0.0),
        ("cosine", 0, 0.0),
        ("cosine", 2, 1.0),
        ("cosine", 6, 0.5),
        ("cosine", 10, 0.0),
        ("constant", 0, 0.0),
        ("constant", 1, 0.5),
        ("constant", 2, 1.0),
        ("constant", 9, 1.0),
    ],
)
def test_rate_at_a_step(kind: str, step: int, rate: float):
    assert learning_rate_at(step, 1.0, a_schedule(kind)) == pytest.approx(rate)


@pytest.mark.parametrize("kind", ["linear", "cosine", "constant"])
@pytest.mark.parametrize("warmup_steps", [0, 1, 3, 20])
def test_rates_are_those_of_transformers(kind: str, warmup_steps: int):
    import torch
    from transformers import get_scheduler

    name = "constant_with_warmup" if kind == "constant" else kind
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=3e-4)
    scheduler = get_scheduler(name, optimizer, num_warmup_steps=warmup_steps, num_training_steps=20)
    for step in range(20):
        expected = optimizer.param_groups[0]["lr"]
        assert learning_rate_at(step, 3e-4, a_schedule(kind, warmup_steps, 20)) == pytest.approx(expected, abs=1e-12)
        optimizer.step()
        scheduler.step()
