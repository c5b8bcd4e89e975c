"""What a person gave, field by field, as the rules look at it."""

from collections.abc import Mapping
from typing import Any

from finetuned.core.jobfile.findings import Findings, shown
from finetuned.core.jobfile.reading import Given

Asked = Mapping[str, Given]


def find(asked: Asked, name: str) -> Given | None:
    """The field if it has a value of its own: neither auto nor already refused."""
    found = asked.get(name)
    return found if found is not None and found.value is not None else None


def value_of(asked: Asked, name: str) -> Any:
    found = asked.get(name)
    return found.value if found else None


def text_of(asked: Asked, name: str) -> str | None:
    found = value_of(asked, name)
    return found if isinstance(found, str) else None


def refuse(field: Given, findings: Findings, expected: str, hint: str) -> None:
    found = shown(field.value) if isinstance(field.value, str) else f"{field.value:g}"
    findings.refuse(field.line, field.name, f"is {found}; expected {expected}", hint)


def refuse_tilde(field: Given, findings: Findings) -> None:
    what = f"is {shown(field.value)}; expected a path without ~, which would be the daemon's home and not yours"
    findings.refuse(field.line, field.name, what, "write the whole path, beginning with /")


def notice_no_effect(asked: Asked, findings: Findings, names: tuple[str, ...], why: str) -> None:
    for name in names:
        if field := find(asked, name):
            findings.notice(field.line, field.name, f"has no effect: {why}")
