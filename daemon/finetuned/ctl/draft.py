"""A job file on its way to the spool: read from where a person keeps it, changed as they say, paths pinned."""

import difflib
import sys
from dataclasses import dataclass
from pathlib import Path

from finetuned.ctl.edit import pin_to, rewrite_paths, set_field
from finetuned.ctl.exits import ExitCode, Sorry
from finetuned.ctl.words import printable
from finetuned.host.drops import JOB_FILES
from finetuned.host.files import MAX_STRANGER_BYTES

_SUFFIXES = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class Draft:
    """`text` as asked, so that line numbers are a person's own; `pinned` is what goes to the spool."""

    source: str
    """How problems name it."""
    name: str
    """File name to drop it under."""
    text: str
    pinned: str


def read_draft(spec: str, assignments: list[str], name: str | None) -> Draft:
    """`spec` is a file, a folder that holds job.yaml, or `-` for standard input. Raises Sorry."""
    if spec == "-":
        return make_draft("standard input", "job.yaml", sys.stdin.read(), Path.cwd(), assignments, name)
    path = Path(spec)
    if path.is_dir():
        path = _spec_in(path)
        own_name = f"{path.parent.resolve().name or 'job'}{path.suffix}"
    else:
        own_name = path.name
    return make_draft(printable(spec), own_name, read_text(path), path.absolute().parent, assignments, name)


def make_draft(source: str, own_name: str, text: str, folder: Path, assignments: list[str], name: str | None) -> Draft:
    """`folder` is where relative paths start."""
    for assignment in assignments:
        text = set_field(text, assignment)
    return Draft(source, _dropped_name(own_name, name), text, rewrite_paths(text, pin_to(folder)))


def _spec_in(folder: Path) -> Path:
    for name in JOB_FILES:
        if (folder / name).is_file():
            return folder / name
    raise Sorry(ExitCode.USAGE, f"{folder} holds no job.yaml", "name the job file itself")


def read_text(path: Path) -> str:
    """A person's small file. Raises Sorry, with what was probably meant."""
    try:
        if not path.is_file() and path.exists():
            raise Sorry(ExitCode.USAGE, f"{path} is not a regular file", "name a YAML or JSON file")
        size_bytes = path.stat().st_size
        if size_bytes > MAX_STRANGER_BYTES:
            what = f"{path} is {size_bytes:,} bytes; a job file is at most {MAX_STRANGER_BYTES:,} bytes"
            raise Sorry(ExitCode.USAGE, what, "data belongs in files that the job names under datasets")
        return path.read_bytes().decode(errors="replace")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Sorry(ExitCode.USAGE, f"there is no file {path}", _nearest(path)) from error
    except OSError as error:
        raise Sorry(ExitCode.USAGE, f"{path} cannot be read: {error.strerror}") from error


def _nearest(path: Path) -> str:
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return ""
    near = difflib.get_close_matches(path.name, names, n=1)
    return f"did you mean {path.parent / near[0]}?" if near else ""


def _dropped_name(own_name: str, asked: str | None) -> str:
    """A visible name with a suffix that the spool takes; the file's own where it has one."""
    name = own_name if asked is None else asked
    if "/" in name or "\0" in name or not name.strip():
        raise Sorry(ExitCode.USAGE, f"--name {printable(name)!r} cannot be a name", "leave out slashes")
    suffix = next((suffix for suffix in _SUFFIXES if own_name.lower().endswith(suffix)), ".yaml")
    stem = name[: -len(suffix)] if name.lower().endswith(suffix) else name
    # Names that begin with a dot are what is still arriving.
    stem = stem.lstrip(".") or "job"
    return _fitting(stem, suffix)


def _fitting(stem: str, suffix: str) -> str:
    """At most 255 bytes, whole characters, with room for a number."""
    room = 255 - len(suffix) - len("-999")
    return stem.encode(errors="surrogateescape")[:room].decode(errors="ignore") + suffix
