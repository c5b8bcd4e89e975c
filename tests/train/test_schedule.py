"""Learning rates: a pure function of the step, with the numbers people know."""

import pytest

from finetuned.core.plan import Schedule
from finetuned.train.engine.schedule import learning_rate_at

KINDS = ["linear", "cosine", "constant", "warmup_stable_decay"]
PEAK = 3e-4


def a_schedule(kind: str, warmup_steps: int = 2, total_steps: int = 10, decay_steps: int = 0) -> Schedule:
    return Schedule.model_validate(
        {
            "lr_scheduler_type": kind,
            "warmup_steps": warmup_steps,
            "total_steps": total_steps,
            "decay_steps": decay_steps,
        }
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


def test_warmup_stable_decay_stays_at_the_peak_until_the_last_steps_and_falls_to_0_at_the_end():
    schedule = a_schedule("warmup_stable_decay", warmup_steps=2, decay_steps=4)
    rates = [learning_rate_at(step, 1.0, schedule) for step in range(11)]
    assert rates[:7] == [0, 0.5, 1, 1, 1, 1, 1]
    assert rates[8] == pytest.approx(0.5)
    assert rates[10] == pytest.approx(0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("warmup_steps", "decay_steps"), [(0, 5), (1, 1), (3, 17), (3, 20), (15, 10), (20, 0)])
def test_rates_are_those_of_transformers(kind: str, warmup_steps: int, decay_steps: int):
    import torch
    from transformers import get_scheduler

    name = "constant_with_warmup" if kind == "constant" else kind
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    extra = {"num_decay_steps": decay_steps} if kind == "warmup_stable_decay" else None
    scheduler = get_scheduler(name, optimizer, warmup_steps, 20, scheduler_specific_kwargs=extra)
    schedule = a_schedule(kind, warmup_steps, 20, decay_steps)
    for step in range(20):
        expected = optimizer.param_groups[0]["lr"]
        assert learning_rate_at(step, PEAK, schedule) == pytest.approx(expected, rel=1e-12, abs=1e-18)
        optimizer.step()
        scheduler.step()
