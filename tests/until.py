"""Waiting for a condition, never for a duration."""

import time
from collections.abc import Callable


def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Return as soon as `condition()` is true; fail when it is not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain"
        time.sleep(0.01)
