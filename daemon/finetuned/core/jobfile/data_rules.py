"""Rules about data sets, what is learned of them, and the template that renders them."""

import re
from collections.abc import Mapping
from difflib import get_close_matches

from finetuned.core.jobfile.asked import Asked, find, notice_no_effect, refuse, refuse_tilde, text_of, value_of
from finetuned.core.jobfile.findings import Findings, one_of, shown
from finetuned.core.jobfile.later import LATER_SOURCES
from finetuned.core.jobfile.reading import Given

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")
TEMPLATE_SUFFIXES = (".jinja", ".jinja2", ".j2", ".txt")
ROLES = ("assistant", "user", "system", "developer", "tool", "function", "ipython")
PRETRAIN_FORMATS = ("auto", "text", "tokenized")
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "chat": ("messages", "tools", "role", "content", "weight"),
    "sharegpt": ("conversations", "system", "tools", "from", "value", "weight"),
    "alpaca": ("instruction", "input", "output", "system", "history"),
    "prompt_completion": ("prompt", "completion", "tools"),
    "text": ("text",),
    "tokenized": ("input_ids", "labels", "attention_mask"),
}
"""Names that a row of a format has, which `columns` may give other names."""

_SCHEME = re.compile(r"[a-z0-9]+:")
_FILE_SUFFIX = re.compile(r"\.(jsonl?|ndjson|txt|md|gz|zst|csv|tsv|parquet|arrow)$", re.IGNORECASE)
_END = r"-?[0-9_]*%?"
_SPLIT = re.compile(rf"[A-Za-z][\w-]*(\[{_END}:{_END}\])?|\[{_END}:{_END}\]")


def check_dataset(asked: Asked, findings: Findings) -> None:
    """Whether a path can be one; whether it is there is not looked at."""
    _check_columns(asked, findings)
    _check_split(asked, findings)
    if (path := text_of(asked, "path")) is None:
        return
    given = asked["path"]
    if later := later_source(path):
        what = f"is {shown(path)}: known, but this version cannot do it yet ({later})"
        findings.refuse(given.line, given.name, what, "copy the rows to this machine and write the file's path")
    elif path.startswith("~"):
        refuse_tilde(given, findings)
    elif _SCHEME.match(path):
        refuse(given, findings, "a file, a folder or a pattern", "write the path alone, as /path/to/rows.jsonl")
    elif HUB_NAME.fullmatch(path) and not _FILE_SUFFIX.search(path):
        what = f"is {shown(path)}: known, but this version cannot do it yet (data sets on a hub)"
        findings.refuse(given.line, given.name, what, f"write the path of a file; for one here: ./{path}")
    elif not path.strip():
        refuse(given, findings, "a file, a folder or a pattern", "")


def later_source(text: str) -> str | None:
    """What kind of source `text` names that this version cannot read."""
    scheme = _SCHEME.match(text)
    return LATER_SOURCES.get(scheme.group()) if scheme else None


def _check_columns(asked: Asked, findings: Findings) -> None:
    if (columns := find(asked, "columns")) is None:
        return
    kind = text_of(asked, "format") or "auto"
    known = COLUMNS.get(kind) or tuple(dict.fromkeys(name for names in COLUMNS.values() for name in names))
    for ours, theirs in columns.value.items():
        name = f"{columns.name}.{ours}"
        if ours not in known:
            likely = get_close_matches(ours, known, n=1)
            hint = f"did you mean {likely[0]}?" if likely else "on the left stand our names, on the right the file's"
            of_format = "" if kind == "auto" else f" of format {kind}"
            findings.refuse(columns.line, name, f"is no column{of_format}; expected {one_of(known)}", hint)
        elif not theirs.strip():
            findings.refuse(columns.line, name, "is empty; expected the name that the file has for it", "")


def _check_split(asked: Asked, findings: Findings) -> None:
    if (split := find(asked, "split")) and not _SPLIT.fullmatch(split.value):
        refuse(split, findings, "a split and a part of it, such as train, train[:1000] or test[10%:]", "")


def check_method(asked: Asked, findings: Findings) -> None:
    """What is learned of which rows, and under which template."""
    if (template := text_of(asked, "chat_template")) is not None:
        _check_template(asked["chat_template"], template, findings)
    _check_roles(asked, findings)
    if value_of(asked, "method") != "pretrain":
        return
    why = "method pretrain learns plain text whole"
    notice_no_effect(asked, findings, ("train_on_inputs", "chat_template", "roles_to_train"), why)
    for name in ("datasets", "eval_datasets"):
        given = asked.get(name)
        formats = [dataset.format for dataset in (given.value if given else None) or ()]
        if given and (odd := next((each for each in formats if each not in PRETRAIN_FORMATS), None)):
            what = f"has rows in {odd} format, but method in line {asked['method'].line} is pretrain, which learns text"
            findings.refuse(given.line, given.name, what, "write method: sft, or format: text")


def _check_roles(asked: Asked, findings: Findings) -> None:
    if (roles := find(asked, "roles_to_train")) is None:
        return
    for role in roles.value:
        if role not in ROLES:
            likely = get_close_matches(role, ROLES, n=1)
            hint = f"did you mean {likely[0]}?" if likely else ""
            findings.refuse(roles.line, roles.name, f"has {shown(role)}; expected roles of {one_of(ROLES)}", hint)
    if value_of(asked, "train_on_inputs"):
        findings.notice(roles.line, roles.name, "has no effect beside train_on_inputs, which learns everything")


def is_inline_template(text: str) -> bool:
    """Whether `chat_template` holds a template itself rather than a name or a path."""
    return "{%" in text or "{{" in text


def _check_template(given: Given, template: str, findings: Findings) -> None:
    if template in ("chatml", "llama3") or is_inline_template(template):
        return
    if "/" not in template and not template.endswith(TEMPLATE_SUFFIXES):
        hint = "leave it out to use the model's own"
        refuse(given, findings, "chatml, llama3, the path of a Jinja file (/… or ./…) or the template itself", hint)
    elif template.startswith("~"):
        refuse_tilde(given, findings)
