"""JSON as rows need it: strict where leniency would change what a row says, and in flat memory."""

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

MAX_ROW_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 18
_BLANK = re.compile(r"[ \t\r\n]*")
_WRAPPERS = ("data", "rows", "train", "examples", "instances", "records", "items", "samples", "dataset")


class Malformed(Exception):
    """What is wrong with a record: expected, found."""

    def __init__(self, what: str, hint: str = ""):
        self.hint = hint
        super().__init__(what)


def parse(text: str) -> Any:
    """The value that a JSON text holds. Raises Malformed, also for NaN, keys said twice and half a surrogate pair."""
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise Malformed(f"is not JSON: {error.msg} at column {error.colno}") from error
    except (ValueError, RecursionError) as error:
        raise Malformed(f"is not JSON: {error}") from error
    _require_whole_characters(text, value)
    return value


def parse_bytes(line: bytes) -> Any:
    """`parse` of UTF-8."""
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise Malformed(f"is not UTF-8 at byte {error.start + 1} of the line", "iconv -t utf-8 mends it") from error
    return parse(text)


def values(file: BinaryIO) -> Iterator[tuple[int, int, Any]]:
    """(line, position in the list from 1, value) of the rows in a JSON file, in flat memory.

    The rows are the elements of an array, or of the array under `data`, `rows` and the like in an object that holds no
    other; else the objects that stand one after another. A value that cannot be used is a Malformed, the last one
    where nothing after it can be told apart any more.
    """
    return _Reader(file).rows()


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise Malformed(f"says the key {json.dumps(twice[:60])} twice in one object")
    return found


def _no_constant(name: str) -> Any:
    raise Malformed(f"holds {name}, which is no JSON", "write null, or leave the key out")


_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_constant)
_LENIENT = json.JSONDecoder()


def _require_whole_characters(text: str, value: Any) -> None:
    if r"\u" not in text:
        return
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise Malformed(f"holds half a surrogate pair, {half!r}, which is no text") from error


class _End(Exception):
    """What follows cannot be read; the message says why."""


class _Reader:
    """A sliding window over the text of a JSON file."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._window = ""
        self._at = 0
        self._line = 1
        self._read_bytes = 0
        self._is_whole = False

    def rows(self) -> Iterator[tuple[int, int, Any]]:
        try:
            if self._peek() == "[":
                yield from self._array()
                if self._peek():
                    raise _End("something stands behind the end of the array")
            else:
                yield from self._objects()
        except _End as error:
            yield self._line, 0, Malformed(str(error), getattr(error, "hint", ""))

    def _array(self) -> Iterator[tuple[int, int, Any]]:
        self._skip("[")
        if self._peek() == "]":
            self._skip("]")
            return
        for number in range(1, 1 << 62):
            self._peek()
            yield self._line, number, self._value()
            if self._peek() == "]":
                self._skip("]")
                return
            self._skip(",")
            self._forget()

    def _objects(self) -> Iterator[tuple[int, int, Any]]:
        number = 0
        while self._peek():
            if number == 0 and self._is_wrapper():
                yield from self._wrapped()
                continue
            number += 1
            yield self._line, number, self._value()
            self._forget()

    def _is_wrapper(self) -> bool:
        """Whether the object here holds rows under one of its keys; looked at no further than its first 256 KB."""
        opening = re.compile(r'[{,]\s*"(' + "|".join(_WRAPPERS) + r')"\s*:\s*\[\s*\{')
        found = opening.search(self._window, self._at)
        return found is not None and _depth(self._window[self._at : found.start() + 1]) == 1

    def _wrapped(self) -> Iterator[tuple[int, int, Any]]:
        self._skip("{")
        rows_under = ""
        while True:
            key = self._value()
            if not isinstance(key, str):
                raise _End("expected a key")
            self._skip(":")
            if self._peek() == "[" and key in _WRAPPERS:
                if rows_under:
                    raise _End(_two_lists(rows_under, key))
                rows_under = key
                yield from self._array()
            elif _holds_rows(self._value()):
                if rows_under:
                    raise _End(_two_lists(rows_under, key))
                rows_under = key
            if self._peek() != ",":
                self._skip("}")
                return
            self._skip(",")
            self._peek()

    def _value(self) -> Any:
        """The value at the cursor, or a Malformed for one that is JSON and cannot be used. Raises _End."""
        while True:
            try:
                value, end = self._decode()
            except json.JSONDecodeError as error:
                if self._is_whole or len(self._window) - self._at > MAX_ROW_BYTES:
                    where = f"line {self._line + self._window.count(chr(10), self._at, error.pos)} column {error.colno}"
                    raise _End(f"is not JSON: {error.msg} at {where}") from error
                self._read(len(self._window) - self._at)
                continue
            except (ValueError, RecursionError) as error:
                raise _End(f"is not JSON: {error}") from error
            if end == len(self._window) and not self._is_whole:
                self._read(1)  # A number may go on.
                continue
            text = self._window[self._at : end]
            self._move(end)
            if isinstance(value, Malformed):
                return value
            try:
                _require_whole_characters(text, value)
            except Malformed as error:
                return error
            return value

    def _decode(self) -> tuple[Any, int]:
        try:
            return _DECODER.raw_decode(self._window, self._at)
        except Malformed as error:
            return error, _LENIENT.raw_decode(self._window, self._at)[1]

    def _peek(self) -> str:
        """The next character that is not blank; none at the end."""
        while True:
            found = _BLANK.match(self._window, self._at)
            assert found is not None
            self._move(found.end())
            if self._at < len(self._window):
                return self._window[self._at]
            if self._is_whole:
                return ""
            self._read(1)

    def _skip(self, expected: str) -> None:
        if (found := self._peek()) != expected:
            end = f"expected {expected!r}, got " + (repr(found) if found else "the end of the file")
            raise _End(f"is not JSON: {end}")
        self._move(self._at + 1)

    def _move(self, to: int) -> None:
        self._line += self._window.count("\n", self._at, to)
        self._at = to

    def _forget(self) -> None:
        if self._at > _CHUNK_BYTES:
            self._window, self._at = self._window[self._at :], 0

    def _read(self, at_least: int) -> None:
        chunk = self._file.read(max(at_least, _CHUNK_BYTES))
        try:
            self._window += self._decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            at = self._read_bytes + error.start + 1
            raise _End(f"is not UTF-8 at about byte {at:,} of the file") from error
        self._read_bytes += len(chunk)
        self._is_whole = not chunk


def _holds_rows(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(each, dict) for each in value)


def _two_lists(one: str, other: str) -> str:
    return f"holds rows under `{one}` and under `{other}`; expected one list of rows"


def _depth(text: str) -> int:
    """How many objects and arrays are open at the end of `text`, strings aside."""
    plain = re.sub(r'"(?:[^"\\]|\\.)*"', '""', text)
    return sum(plain.count(mark) for mark in "{[") - sum(plain.count(mark) for mark in "}]")
