"""Which ready jobs start next, on which devices: priority, then age."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from finetuned.core.lifecycle import Ready


@dataclass(frozen=True)
class Start:
    job: str
    devices: tuple[str, ...]


def in_order(ready: Iterable[Ready]) -> list[Ready]:
    """Higher priority first, among equals the older first (ids sort by time)."""
    return sorted(ready, key=lambda job: (-job.priority, job.job))


def choose(ready: Iterable[Ready], devices: Sequence[str], taken: frozenset[str]) -> list[Start]:
    """One free device for each of the first jobs in order; the others wait."""
    free = [device for device in devices if device not in taken]
    return [Start(job.job, (device,)) for job, device in zip(in_order(ready), free, strict=False)]
