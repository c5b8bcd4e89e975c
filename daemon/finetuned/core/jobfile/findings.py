"""What reading a job file brings to light: problems that refuse it, and notices about what was understood."""

import json
from dataclasses import dataclass, field

from finetuned.core.problems import Problem

_AFTER_EVERY_LINE = 10**9
_LONGEST_SHOWN = 60


@dataclass
class Findings:
    """Collects while a job file is read; both lists come out in the order of the file."""

    _problems: list[tuple[int, Problem]] = field(default_factory=list)
    _notices: list[tuple[int, str]] = field(default_factory=list)

    def refuse(self, line: int | None, name: str, what: str, hint: str = "") -> None:
        """`line` None: the file as a whole, as for a missing field."""
        problem = Problem(place=place(line, name), what=what, hint=hint)
        self._problems.append((_AFTER_EVERY_LINE if line is None else line, problem))

    def notice(self, line: int, name: str, what: str) -> None:
        self._notices.append((line, f"line {line}: {shown_name(name)} {what}"))

    @property
    def problem_count(self) -> int:
        return len(self._problems)

    @property
    def problems(self) -> tuple[Problem, ...]:
        return tuple(problem for _, problem in sorted(self._problems, key=lambda each: each[0]))

    @property
    def notices(self) -> tuple[str, ...]:
        return tuple(notice for _, notice in sorted(self._notices, key=lambda each: each[0]))


def place(line: int | None, name: str) -> str:
    """E.g. "line 7   num_train_epoch": names line up whatever the line's number."""
    if line is None:
        return shown_name(name)
    return f"line {line:<3} {shown_name(name)}".rstrip()


def shown_name(name: str) -> str:
    """A field's name as written, quoted and shortened when it is no plain word."""
    return name if name.isprintable() and len(name) <= _LONGEST_SHOWN else shown(name)


def shown(text: str) -> str:
    """A stranger's text in quotes: one line, no control characters, not too long."""
    quoted = json.dumps(text[: _LONGEST_SHOWN + 1], ensure_ascii=not text.isprintable())
    return quoted if len(text) <= _LONGEST_SHOWN else quoted[:_LONGEST_SHOWN] + '…"'


def one_of(words: tuple[str, ...]) -> str:
    """ "a", "a or b", "a, b or c"."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " or " + words[-1]
