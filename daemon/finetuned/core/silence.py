"""For how long a stage may be silent before it counts as hung: each activity has its own patience."""

from collections.abc import Sequence

from finetuned.core.events import Activity

_MINUTE = 60.0
_PATIENCE_SECONDS: dict[Activity, float] = {
    # A hub's client that writes the end of a file and hashes it makes no byte grow meanwhile.
    "fetching": 60 * _MINUTE,
    # Sorting, deduplicating and splitting of the largest data sets.
    "reading": 60 * _MINUTE,
    "loading": 30 * _MINUTE,
    "evaluating": 30 * _MINUTE,
    # Merging and writing all weights of a large model is one part of it.
    "exporting": 60 * _MINUTE,
}
_FIRST_STEP_SECONDS = 30 * _MINUTE
"""Kernels are compiled and memory is laid out in it."""
_MEDIANS = 20


def allowed_silence_seconds(
    activity: Activity | None, recent_step_seconds: Sequence[float], hang_seconds: float
) -> float:
    """`recent_step_seconds`: of this attempt; `hang_seconds`: for a step that is no slower than others, and for a save.

    `activity` is None at the beginning and after the ending.
    """
    if activity == "training":
        if not recent_step_seconds:
            return max(hang_seconds, _FIRST_STEP_SECONDS)
        median = sorted(recent_step_seconds)[len(recent_step_seconds) // 2]
        return max(hang_seconds, _MEDIANS * median)
    if activity is None or activity == "saving":
        return hang_seconds
    return _PATIENCE_SECONDS[activity]
