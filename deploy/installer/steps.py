"""A step of the installation: is anything missing, then do it, and tell it in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    name: str
    missing: Callable[[], str]
    """What would be done, in a few words; empty when everything is in place. Changes nothing."""
    act: Callable[[], object]
    in_place: str = "in place"


def carry_out(steps: Iterable[Step]) -> int:
    """Do what is missing; how many steps had something to do. The first Trouble ends it."""
    done = 0
    for step in steps:
        if what := step.missing():
            tell("doing", step.name, what)
            step.act()
            done += 1
        else:
            tell("ok", step.name, step.in_place)
    return done


def check(steps: Iterable[Step]) -> int:
    """Tell what would be done; how many steps that are."""
    lacking = 0
    for step in steps:
        what = step.missing()
        tell("missing" if what else "ok", step.name, what or step.in_place)
        lacking += bool(what)
    return lacking


def tell(state: str, name: str, what: str) -> None:
    print(f"{state:<8} {name:<10} {what}", flush=True)
