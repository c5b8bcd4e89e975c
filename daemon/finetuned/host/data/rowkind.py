"""Which format a set of rows has, seen from the keys of one row, and whether `columns` makes sense for it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from finetuned.core.spec import Dataset
from finetuned.host.data.records import keys_of
from finetuned.host.paths import Unusable, did_you_mean

RowKind = Literal["chat", "sharegpt", "alpaca", "prompt_completion", "text", "tokenized"]


@dataclass(frozen=True)
class _Keys:
    needed: tuple[str, ...]
    others: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    """Keys of a message."""

    @property
    def outer(self) -> tuple[str, ...]:
        return self.needed + self.others


_MESSAGE = ("role", "content", "name", "weight", "tool_calls", "tool_call_id", "function_call")
KEYS: Mapping[RowKind, _Keys] = {
    "chat": _Keys(("messages",), ("tools", "functions"), _MESSAGE),
    "sharegpt": _Keys(("conversations",), ("system", "tools"), ("from", "value", "weight")),
    "alpaca": _Keys(("instruction", "output"), ("input", "system", "history")),
    "prompt_completion": _Keys(("prompt", "completion"), ("tools",), _MESSAGE),
    "text": _Keys(("text",)),
    "tokenized": _Keys(("input_ids",), ("labels", "attention_mask", "completion_mask", "assistant_masks")),
}
INNER_NAMES = frozenset(name for keys in KEYS.values() for name in keys.inner)
PLAIN: tuple[RowKind, ...] = ("text", "tokenized")
"""What `method: pretrain` learns."""
_PREFERENCE = ("chosen", "rejected")
_USUAL_NAMES = {
    "messages": ("dialog", "dialogue", "chat", "turns", "conversation", "msgs"),
    "prompt": ("question", "query", "input", "problem"),
    "completion": ("answer", "response", "target", "output", "solution", "reply"),
    "text": ("content", "document", "body", "txt", "raw_content"),
    "input_ids": ("tokens", "token_ids", "ids"),
}


def kind_of_rows(dataset: Dataset, keys: Iterable[str], shown: str) -> RowKind:
    """The format of a set whose first row has `keys`; `shown` names the file. Raises Unusable."""
    theirs = set(keys)
    kind = dataset.format if dataset.format != "auto" else _seen(dataset, theirs, shown)
    check_columns(dataset, kind)
    return kind


def columns_used(kind: RowKind, columns: Mapping[str, str], there: Iterable[str]) -> list[str]:
    """Of the columns that are there those that a row of this kind is read from."""
    wanted = {columns.get(name, name) for name in KEYS[kind].outer}
    return [name for name in there if name in wanted]


def _seen(dataset: Dataset, theirs: set[str], shown: str) -> RowKind:
    ours = {name for name in theirs if name not in dataset.columns.values()}
    ours |= {our for our, their in dataset.columns.items() if their in theirs}
    found = [kind for kind, keys in KEYS.items() if all(key in ours for key in keys.needed)]
    if len(found) > 1:
        them = " and ".join(f"{kind} rows ({_quoted(KEYS[kind].needed)})" for kind in found)
        raise Unusable(f"{shown} could hold {them}", f"say which: format: {' or format: '.join(found)}", "format")
    if found:
        return found[0]
    if all(key in ours for key in _PREFERENCE):
        raise Unusable(
            f"{shown} holds preference rows (`chosen`, `rejected`), which no method of this version learns",
            "expected a conversation, text or the like: docs/job-file.md lists the formats",
        )
    raise Unusable(
        f"{shown}: the first row is of no known format; its keys are {keys_of(theirs)}", _guess(dataset, theirs)
    )


def _guess(dataset: Dataset, theirs: set[str]) -> str:
    """What `columns` could say, where the names look like something."""
    for kind, keys in KEYS.items():
        meant = {}
        for our in keys.needed:
            near = [name for name in (our, *_USUAL_NAMES.get(our, ())) if name in theirs]
            if near and our != near[0]:
                meant[our] = near[0]
            elif not near:
                break
        else:
            if meant:
                said = ", ".join(f"{our}: {their}" for our, their in meant.items())
                return f"if they are {kind} rows, say columns: {{{said}}}"
    if missing := [their for their in dataset.columns.values() if their not in theirs]:
        return did_you_mean(missing[0], theirs) or f"columns names {missing[0]}, which no row here has"
    return "expected " + "; ".join(_quoted(keys.needed) for keys in KEYS.values()) + "; or say columns"


def check_columns(dataset: Dataset, kind: RowKind) -> None:
    """Raise Unusable where `columns` gives names to what such rows do not have."""
    keys = KEYS[kind]
    known = (*keys.outer, *keys.inner)
    for our in dataset.columns:
        if our not in known:
            hint = did_you_mean(our, known) or f"{kind} rows have {', '.join(known)}"
            raise Unusable(f'"{our}" is nothing that {kind} rows have', hint, "columns")
    if twice := [their for their in dataset.columns.values() if list(dataset.columns.values()).count(their) > 1]:
        raise Unusable(f'"{twice[0]}" stands for two things', "name each column once", "columns")


def check_header(dataset: Dataset, kind: RowKind, header: Iterable[str], shown: str) -> None:
    """Raise Unusable where `columns` names one that a table does not have."""
    there = list(header)
    for our, their in dataset.columns.items():
        if our in KEYS[kind].outer and their not in there:
            raise Unusable(
                f'{our}: {shown} has no column "{their}"; it has {keys_of(there)}',
                did_you_mean(their, there),
                "columns",
            )


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
