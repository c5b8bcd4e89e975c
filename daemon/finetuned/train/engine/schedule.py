"""The learning rate as a pure function of the step."""

import math

from finetuned.core.plan import Schedule


def learning_rate_at(step: int, peak: float, schedule: Schedule) -> float:
    """The rate of the update that comes after `step` steps; the same numbers as transformers' schedulers.

    Rises linearly from 0 over the warm-up, then stays, or falls to 0 at `total_steps` along a line or half a cosine.
    """
    if step < schedule.warmup_steps:
        return peak * step / schedule.warmup_steps
    done = (step - schedule.warmup_steps) / max(1, schedule.total_steps - schedule.warmup_steps)
    match schedule.lr_scheduler_type:
        case "constant":
            return peak
        case "linear":
            return peak * max(0.0, 1 - done)
        case "cosine":
            return peak * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
