"""One thing that is wrong with what a person asked for, and how a list of them reads."""

from collections.abc import Sequence
from typing import Literal

from finetuned.core.record import Record


class Problem(Record):
    """`place`: where (line and field, file:line). `what`: found and expected. `hint`: what to do."""

    place: str
    what: str
    hint: str = ""


class InvalidSpec(Exception):
    """What was asked for cannot be done as written; carries every problem at once."""

    def __init__(self, source: str, problems: Sequence[Problem]):
        self.source = source
        self.problems = tuple(problems)
        super().__init__(describe(source, self.problems))


class CannotRun(Exception):
    """A sound spec that this machine, model or data set cannot carry out."""

    def __init__(self, problems: Sequence[Problem]):
        self.problems = tuple(problems)
        super().__init__(describe("this job", self.problems))


class StageFailed(Exception):
    """A stage cannot go on. `retry`: another attempt may fare better. `cause`: what outside the job failed."""

    def __init__(
        self,
        what: str,
        *,
        retry: bool,
        hint: str = "",
        problems: Sequence[Problem] = (),
        cause: Literal["", "network", "disk"] = "",
    ):
        self.retry = retry
        self.cause = cause
        self.hint = hint
        self.problems = tuple(problems)
        super().__init__(what)


class StopRequested(Exception):
    """Raised inside a stage, at a place where stopping loses nothing, after it was asked to stop."""


def describe(source: str, problems: Sequence[Problem]) -> str:
    """The problems as a person reads them: a headline, then a line each with aligned places, hints indented below."""
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    width = max((len(problem.place) for problem in problems), default=0)
    lines = [f"{source}: {count}"]
    for problem in problems:
        lines.append(f"  {problem.place:<{width}}  {problem.what}")
        if problem.hint:
            lines.append(f"  {'':<{width}}  hint: {problem.hint}")
    return "\n".join(lines)
