"""What finetunectl asks prepare to look at before anything is submitted, and what prepare saw."""

from finetuned.core.problems import Problem
from finetuned.core.record import Record


class PreviewAsked(Record):
    spec: str
    """The text of a job file, its paths absolute."""
    source: str
    """The name it goes by in messages."""
    rows: int
    """How many of each set to show."""
    with_tokens: bool = False
    """Also token by token."""
    models: str | None = None
    """The folder of models that came from the hub before: SPOOL/store/models."""


class Preview(Record):
    """`finetunectl preview --json`."""

    source: str
    text: str
    """For a person to read; what is learned stands between ⟦ and ⟧. Empty where nothing can be shown."""
    problems: tuple[Problem, ...] = ()
    """What would fail the job, as far as the first rows tell."""
    notices: tuple[str, ...] = ()
