"""What kind of file holds the rows: seen from its first bytes, from its name where those do not tell."""

import gzip
import json
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from finetuned.host.paths import Unusable

Kind = Literal["jsonl", "json", "csv", "text", "parquet", "arrow_file", "arrow_stream"]
Compression = Literal["none", "gzip", "zstd"]

COLUMNAR: tuple[Kind, ...] = ("parquet", "arrow_file", "arrow_stream")
DATA_SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow")
TEXT_SUFFIXES = (".txt", ".md")
PACKED_SUFFIXES = (".gz", ".zst")
LOOK_BYTES = 1 << 18
_BOM = b"\xef\xbb\xbf"
_BLANK = b" \t\r\n"
_BY_NAME: dict[str, Kind] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".csv": "csv", ".tsv": "csv"}
_MAGIC: tuple[tuple[bytes, Kind], ...] = (
    (b"PAR1", "parquet"),
    (b"ARROW1", "arrow_file"),
    (b"\xff\xff\xff\xff", "arrow_stream"),
)
_ZIP = ("a zip archive", "unpack it and name the folder")
_BZIP2 = ("packed with bzip2", "bunzip2 it, or pack it with gzip or zstd")
_XZ = ("packed with xz", "unxz it, or pack it with gzip or zstd")
_LZ4 = ("packed with lz4", "unlz4 it, or pack it with gzip or zstd")
_PACKINGS_NOT_READ = {
    ".zip": _ZIP,
    ".bz2": _BZIP2,
    ".xz": _XZ,
    ".lz4": _LZ4,
    ".lzma": ("packed with lzma", "unlzma it, or pack it with gzip or zstd"),
    ".br": ("packed with brotli", "unbrotli it, or pack it with gzip or zstd"),
    ".7z": ("a 7z archive", "unpack it and name the folder"),
    ".rar": ("a RAR archive", "unpack it and name the folder"),
}
_OTHERS = (
    (b"PK\x03\x04", *_ZIP),
    (b"BZh", *_BZIP2),
    (b"\xfd7zXZ", *_XZ),
    (b"\x04\x22\x4d\x18", *_LZ4),
    (b"SQLite format 3", "an SQLite database", "export its rows as JSONL or CSV"),
    (b"\x89HDF", "an HDF5 file", "export its rows as JSONL or Parquet"),
    (b"%PDF", "a PDF", "extract its text first"),
    (b"\xff\xfe", "UTF-16 text", "iconv -f utf-16 -t utf-8 mends it"),
    (b"\xfe\xff", "UTF-16 text", "iconv -f utf-16 -t utf-8 mends it"),
)


@dataclass(frozen=True)
class Container:
    kind: Kind | None
    """None: packed so that only prepare can look inside."""
    compression: Compression = "none"


def bare_suffix(path: Path) -> str:
    """The suffix that tells what a file holds: `.jsonl` of `rows.jsonl.gz`, in lower case."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    while suffixes and suffixes[-1] in PACKED_SUFFIXES:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def packing_not_read(path: Path) -> tuple[str, str] | None:
    """What `rows.jsonl.bz2` and the like are by their name, and a hint; None of what is not data so packed."""
    is_data = bare_suffix(Path(path.stem)) in DATA_SUFFIXES
    return _PACKINGS_NOT_READ.get(path.suffix.lower()) if is_data else None


def see_container(path: Path) -> Container:
    """Reads some hundred KB. Raises Unusable for what holds no rows."""
    with open(path, "rb") as file:
        head = file.read(LOOK_BYTES)
    if not head:
        raise Unusable(f"{path} is empty")
    if head.startswith(b"\x1f\x8b"):
        head = _unpacked(path)
        if not head:
            raise Unusable(f"{path} is empty inside")
        return Container(_kind(path, head), "gzip")
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        return Container(None, "zstd")
    return Container(_kind(path, head))


def kind_inside(path: Path, head: bytes) -> Kind:
    """What unpacked bytes are, `head` being the first of them. Raises Unusable."""
    if not head:
        raise Unusable(f"{path} is empty inside")
    return _kind(path, head)


def _unpacked(path: Path) -> bytes:
    try:
        with gzip.open(path) as file:
            return file.read(LOOK_BYTES)
    except EOFError:
        pass
    except (OSError, zlib.error) as error:
        raise Unusable(f"{path} is a damaged gzip file: {error}", "copy or download it again") from error
    raise Unusable(f"{path} is a gzip file that is cut off", "copy or download it again")


def _kind(path: Path, head: bytes) -> Kind:
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return kind
    for magic, what, hint in _OTHERS:
        if head.startswith(magic):
            raise Unusable(f"{path} is {what}", hint)
    text = head.removeprefix(_BOM).lstrip(_BLANK)
    if not text:
        raise Unusable(f"{path} has only blank lines")
    named = bare_suffix(path)
    if text[:1] in b"[{" and (named not in (".csv", ".tsv", *TEXT_SUFFIXES) or _begins_with_json(text)):
        return _json_kind(text, named)
    if b"\0" in head[:4096]:
        raise Unusable(f"{path} is no text and none of the formats that finetuned reads", _expected())
    return _kind_by_name(path)


def _json_kind(text: bytes, suffix: str) -> Kind:
    """One object a line is JSONL, whatever the name says; an array, or an object over several lines, is JSON."""
    if text.startswith(b"["):
        return "json"
    line, newline, rest = text.partition(b"\n")
    is_whole = _is_object(line)
    if suffix == ".json" and (not newline or not rest.strip(_BLANK)):
        return "json"
    return "jsonl" if is_whole or suffix in (".jsonl", ".ndjson") or not newline else "json"


def _begins_with_json(text: bytes) -> bool:
    line = text.partition(b"\n")[0]
    if len(line) == len(text):
        return bool(re.match(rb'[\[{]\s*["\[{]', line))
    return _is_object(line)


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict | list)
    except (ValueError, RecursionError):
        return False


def _kind_by_name(path: Path) -> Kind:
    suffix = bare_suffix(path)
    if suffix in TEXT_SUFFIXES:
        return "text"
    if suffix == ".parquet":
        return "parquet"
    if suffix == ".arrow":
        return "arrow_stream"
    if suffix in _BY_NAME:
        return _BY_NAME[suffix]
    raise Unusable(f"{path} is none of the formats that finetuned reads", _expected())


def _expected() -> str:
    return "expected JSONL, JSON, .csv, .tsv, Parquet, Arrow, .txt or .md, plain or as .gz or .zst"
