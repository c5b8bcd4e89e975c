"""Rows from JSONL files. One function per format; what a row does not say stays unsaid, nothing is guessed.

Lines end at a newline byte and nowhere else (U+2028 inside a string is text), a byte-order mark and carriage returns
are dropped, blank lines skipped.
"""

import difflib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetuned.core.problems import Problem, StageFailed
from finetuned.host.sources import RowKind

ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython")
_MAX_ROW_BYTES = 64 << 20
_CHUNK_BYTES = 4 << 20


@dataclass(frozen=True)
class DataFile:
    """A file of rows as it was when it was looked through first."""

    shown: str
    """The path as the job file has it: the file part of every file:line."""
    path: Path
    kind: RowKind
    sha256: str
    lines: int


@dataclass(frozen=True)
class Conversation:
    messages: tuple[Mapping[str, Any], ...]
    """In the form that chat templates expect, without `weight`; absent keys stay absent."""
    counts: tuple[bool, ...]
    """One a message: False where the row says `weight: 0`. Which roles are learned is not the row's to say."""
    tools: list[Any] | None = None


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class Completion:
    """Plain text of which only the second part is learned."""

    prompt: str
    completion: str


@dataclass(frozen=True)
class Tokens:
    """A row that was tokenized elsewhere; one bool a token: it is learned."""

    input_ids: tuple[int, ...]
    is_target: tuple[bool, ...]


Content = Conversation | Text | Completion | Tokens


@dataclass(frozen=True)
class Row:
    place: str
    """file:line"""
    content: Content
    digest: int
    """64 bits of the hash of the content: equal for rows that say the same, whatever else they carry."""


class MalformedRow(Exception):
    """What is wrong with one row: key, expected, found."""

    def __init__(self, what: str, hint: str = ""):
        self.hint = hint
        super().__init__(what)


def look_through(shown: str, path: Path, kind: RowKind, on_bytes: Callable[[int], None]) -> DataFile:
    """Hash a file and count its lines; `on_bytes` is told of every few MB read."""
    digest = hashlib.sha256()
    lines, last = 0, b"\n"
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            lines += chunk.count(b"\n")
            last = chunk[-1:]
            on_bytes(len(chunk))
    return DataFile(shown, path, kind, digest.hexdigest(), lines + (last != b"\n"))


def read_rows(file: DataFile) -> Iterator[Row | Problem]:
    """The rows of a file in order, a Problem in place of each that cannot be used.

    Raises StageFailed (retry) when the file is no longer what `look_through` saw.
    """
    parse: Callable[[dict[str, Any]], Conversation | Text] = _conversation if file.kind == "chat" else _text
    digest = hashlib.sha256()
    with open(file.path, "rb") as lines:
        for number, line in enumerate(iter(lambda: lines.readline(_MAX_ROW_BYTES + 1), b""), 1):
            place = f"{file.shown}:{number}"
            digest.update(line)
            if len(line) > _MAX_ROW_BYTES:
                yield Problem(place=place, what=f"is longer than {_MAX_ROW_BYTES:,} bytes", hint="is this JSONL?")
                return
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if not line.strip():
                continue
            try:
                content = parse(_object(line))
            except MalformedRow as error:
                yield Problem(place=place, what=str(error), hint=error.hint)
            else:
                yield Row(place, content, _digest(content))
        size_bytes = os.fstat(lines.fileno()).st_size
    if digest.hexdigest() != file.sha256:
        raise StageFailed(
            f"{file.shown} was changed while it was being read (now {size_bytes:,} bytes)",
            retry=True,
            hint="leave data files alone until the job is prepared",
        )


def _object(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
        if rb"\u" in line:
            json.dumps(row, ensure_ascii=False).encode()  # Half of a surrogate pair is no text.
    except UnicodeDecodeError as error:
        raise MalformedRow(f"is not UTF-8 at byte {error.start + 1} of the line", "iconv -t utf-8 mends it") from error
    except UnicodeEncodeError as error:
        raise MalformedRow(f"holds half a surrogate pair, {error.object[error.start]!r}, which is no text") from error
    except json.JSONDecodeError as error:
        raise MalformedRow(f"is not JSON: {error.msg} at column {error.colno}") from error
    except (ValueError, RecursionError) as error:
        raise MalformedRow(f"is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise MalformedRow(f"expected a JSON object, got {_kind_of(row)}")
    return row


def _text(row: dict[str, Any]) -> Text:
    if "text" not in row:
        raise MalformedRow(f"has no `text`; its keys are {_keys(row)}")
    if not isinstance(row["text"], str):
        raise MalformedRow(f"text: expected a string, got {_kind_of(row['text'])}")
    return Text(row["text"])


def _conversation(row: dict[str, Any]) -> Conversation:
    if "messages" not in row:
        raise MalformedRow(f"has no `messages`; its keys are {_keys(row)}")
    messages, tools = row["messages"], row.get("tools")
    if not isinstance(messages, list) or not messages:
        raise MalformedRow(f"messages: expected a list of messages, got {_kind_of(messages)}")
    if tools is not None and not isinstance(tools, list):
        raise MalformedRow(f"tools: expected a list, got {_kind_of(tools)}")
    for index, message in enumerate(messages):
        _check_message(f"messages[{index}]", message)
    counts = tuple(message.get("weight", 1) != 0 for message in messages)
    plain = tuple({key: value for key, value in message.items() if key != "weight"} for message in messages)
    return Conversation(plain, counts, tools or None)


def _check_message(place: str, message: Any) -> None:
    if not isinstance(message, dict):
        raise MalformedRow(f"{place}: expected an object with role and content, got {_kind_of(message)}")
    if "role" not in message:
        hint = "ShareGPT's from/value are not read yet: write role/content" if "from" in message else ""
        raise MalformedRow(f"{place} has no `role`; its keys are {_keys(message)}", hint)
    role = message["role"]
    if role not in ROLES:
        close = difflib.get_close_matches(str(role), ROLES, n=1)
        raise MalformedRow(
            f"{place}.role: expected system, user, assistant or tool, got {json.dumps(role)[:60]}",
            f"did you mean {close[0]}?" if close else "",
        )
    if message.get("content") is None and not message.get("tool_calls"):
        raise MalformedRow(f"{place}.content: expected a string, got {_missing_or_null(message, 'content')}")
    if not isinstance(message.get("content", ""), str | None):
        raise MalformedRow(f"{place}.content: expected a string, got {_kind_of(message['content'])}")
    if message.get("weight", 1) not in (0, 1):
        raise MalformedRow(f"{place}.weight: expected 0 or 1, got {json.dumps(message['weight'])[:60]}")


def _digest(content: Conversation | Text) -> int:
    said = content.text if isinstance(content, Text) else [content.messages, content.counts, content.tools]
    canonical = json.dumps(said, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(canonical.encode()).digest()[:8], "big")


def _missing_or_null(message: Mapping[str, Any], key: str) -> str:
    return "null" if key in message else "nothing"


def _keys(row: Mapping[str, Any]) -> str:
    return ", ".join(sorted(row)[:8]) or "none"


def _kind_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return json.dumps(value)
        case int() | float():
            return f"the number {value}"
        case str():
            return f"the string {json.dumps(value[:40], ensure_ascii=False)}"
        case list():
            return f"a list of {len(value)}" if value else "an empty list"
        case _:
            return f"an object with the keys {_keys(value)}"
