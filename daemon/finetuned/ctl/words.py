"""How numbers, times and strangers' names read on a terminal; where words (stderr) and data (stdout) go."""

import difflib
import json
import unicodedata
from collections.abc import Iterable
from datetime import UTC, datetime

import typer

from finetuned.core.durations import in_words
from finetuned.core.record import Record


def say(text: str) -> None:
    """Words for a person, on stderr."""
    typer.echo(printable(text, keep="\n"), err=True)


def print_json(record: Record) -> None:
    """One JSON value on stdout; NaN and infinities become null."""
    typer.echo(record.model_dump_json(indent=2))


def printable(text: str, keep: str = "") -> str:
    """`text` without the control characters by which a file name could steer a terminal."""
    return "".join(
        each
        if each in keep or unicodedata.category(each) not in ("Cc", "Cs", "Zl", "Zp")
        else "\N{REPLACEMENT CHARACTER}"
        for each in text
    )


def strict_json(value: object) -> str:
    """One line of JSON that every parser takes: NaN and infinities become null."""
    return json.dumps(_without_nan(value), ensure_ascii=False, separators=(",", ":"))


def _without_nan(value: object) -> object:
    if isinstance(value, float) and value - value != 0:
        return None
    if isinstance(value, dict):
        return {key: _without_nan(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_nan(each) for each in value]
    return value


def did_you_mean(text: str, known: Iterable[str]) -> str:
    """`; did you mean X?`, or nothing when nothing is near."""
    near = difflib.get_close_matches(text, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def ago(moment: datetime) -> str:
    return f"{in_words((datetime.now(UTC) - moment).total_seconds())} ago"


def local(moment: datetime) -> str:
    """In the time zone of the person who looks."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def size(count: int) -> str:
    """Bytes: 512 B, 3.4 MB, 16 GB (powers of 1000)."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 10 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"
