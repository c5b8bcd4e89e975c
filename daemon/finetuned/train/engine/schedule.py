"""The learning rate as a pure function of the step."""

import math

from finetuned.core.plan import Schedule


def learning_rate_at(step: int, peak: float, schedule: Schedule) -> float:
    """The rate of the update that comes after `step` steps; the same numbers as transformers' schedulers.

    Rises linearly from 0 over the warm-up and then stays, or falls to 0 at `total_steps` along a line or half a cosine:
    at once, or (warmup_stable_decay) in the last `decay_steps` alone.
    """
    warmup, total = schedule.warmup_steps, schedule.total_steps
    if step < warmup:
        return peak * step / warmup
    match schedule.lr_scheduler_type:
        case "constant":
            return peak
        case "linear":
            return peak * (1 - _part_done(step, warmup, total))
        case "cosine":
            return peak * _half_cosine(_part_done(step, warmup, total))
        case "warmup_stable_decay":
            return peak * _half_cosine(_part_done(step, total - schedule.decay_steps, total))


def _part_done(step: int, first: int, last: int) -> float:
    """How much of the way from `first` to `last` is done: 0 before, 1 after."""
    return min(1.0, max(0.0, (step - first) / max(1, last - first)))


def _half_cosine(part: float) -> float:
    """From 1 to 0, slowly at both ends."""
    return 0.5 * (1 + math.cos(math.pi * part))
