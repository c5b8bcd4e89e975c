"""Rows that were tokenized elsewhere: `input_ids`, with `labels` or a mask that say what is learned of them."""

from collections.abc import Sequence
from typing import Any

from finetuned.prepare.read.content import Tokens
from finetuned.prepare.read.formats.values import Malformed, kind_of, required, structure

_IGNORED = -100
_MOST = (1 << 31) - 1
_MASKS = ("completion_mask", "assistant_masks")
_TRUTHS = ("attention_mask", *_MASKS)
"""What may be written as true and false as well."""


def read_tokenized(row: dict[str, Any]) -> Tokens:
    """`labels` are the ids themselves, or -100 where a token is not learned; without them, and without one of TRL's
    masks, all are. Padding, where attention_mask is 0, is cut off."""
    ids = _numbers("input_ids", required(row, "input_ids"))
    if not ids:
        raise Malformed("input_ids: expected token ids, got an empty list")
    for index, token in enumerate(ids):
        if not 0 <= token <= _MOST:
            raise Malformed(f"input_ids[{index}]: expected a token id, got {token}")
    is_target = _targets(row, ids)
    kept = _attended(row, len(ids))
    return Tokens(tuple(ids[kept]), tuple(is_target[kept]))


def _targets(row: dict[str, Any], ids: Sequence[int]) -> list[bool]:
    given = [key for key in ("labels", *_MASKS) if row.get(key) is not None]
    if len(given) > 1:
        raise Malformed(f"has `{given[0]}` and `{given[1]}`; expected one that says what is learned")
    if not given:
        return [True] * len(ids)
    values = _as_long(given[0], row, len(ids))
    if given[0] != "labels":
        return [value == 1 for value in _bits(given[0], values)]
    for index, (label, token) in enumerate(zip(values, ids, strict=True)):
        if label not in (_IGNORED, token):
            raise Malformed(
                f"labels[{index}]: expected {token} (the id there) or {_IGNORED}, got {label}",
                "labels are not shifted, and say of each token whether it is learned",
            )
    return [label != _IGNORED for label in values]


def _attended(row: dict[str, Any], tokens: int) -> slice:
    if row.get("attention_mask") is None:
        return slice(0, tokens)
    mask = _bits("attention_mask", _as_long("attention_mask", row, tokens))
    if 1 not in mask:
        raise Malformed("attention_mask: is 0 everywhere, which leaves no token")
    first, end = mask.index(1), tokens - mask[::-1].index(1)
    if 0 in mask[first:end]:
        where = first + mask[first:end].index(0)
        raise Malformed(f"attention_mask[{where}]: is 0 between tokens; expected padding at the ends alone")
    return slice(first, end)


def _as_long(key: str, row: dict[str, Any], tokens: int) -> list[int]:
    values = _numbers(key, row[key])
    if len(values) != tokens:
        raise Malformed(f"{key}: expected {tokens:,} values, as many as input_ids, got {len(values):,}")
    return values


def _bits(key: str, values: list[int]) -> list[int]:
    for index, value in enumerate(values):
        if value not in (0, 1):
            raise Malformed(f"{key}[{index}]: expected 0 or 1, got {value}")
    return values


def _numbers(key: str, value: Any) -> list[int]:
    found = structure(key, value)
    if not isinstance(found, list):
        raise Malformed(f"{key}: expected a list of whole numbers, got {kind_of(found)}")
    allowed = (int, bool) if key in _TRUTHS else (int,)
    for index, each in enumerate(found):
        if type(each) not in allowed:
            raise Malformed(f"{key}[{index}]: expected a whole number, got {kind_of(each)}")
    return found
