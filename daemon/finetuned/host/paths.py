"""Paths that a job file names: made absolute, kept inside a dropped folder, and told with who looked and what to do."""

import difflib
import itertools
import os
import pwd
import stat
from collections.abc import Iterable
from pathlib import Path


class Unusable(Exception):
    """Something that a job file names cannot be used; the message says why, the hint what to do.

    `field` is the one of the named thing's fields that is wrong.
    """

    def __init__(self, what: str, hint: str = "", field: str = "path"):
        self.hint = hint
        self.field = field
        super().__init__(what)


def locate(named: str | Path, folder: Path | None) -> Path:
    """The absolute path that a job file means; relative ones are taken from `folder`, the dropped folder.

    Raises Unusable for a relative path without such a folder, or one that leads out of it.
    """
    text = str(named)
    if "\0" in text:
        raise Unusable(f"{text!r} is not a path")
    if text.startswith("~"):
        raise Unusable(f"{text} begins with ~, which means nothing to a service", "write the whole path")
    if os.path.isabs(text):
        return Path(text)
    if folder is None:
        raise Unusable(
            f"{text} is a relative path, and a job file dropped alone has no folder to start from",
            "write the whole path; or drop a folder that holds job.yaml and the data; or use finetunectl submit",
        )
    return require_inside(folder / text, folder, text)


def require_inside(path: Path, folder: Path, shown: str) -> Path:
    """`path` with its links followed. Raises Unusable when that leads out of `folder`."""
    try:
        found = path.resolve()
    except RuntimeError as error:  # Python before 3.13 says so of links that lead in a circle.
        raise Unusable(f"{shown} is a link that leads back to itself", "put the file itself in the folder") from error
    if not found.is_relative_to(folder.resolve()):
        raise Unusable(
            f"{shown} leads out of the dropped folder", "write the whole path, or put the file in the folder"
        )
    return found


def require_file(path: Path, expected: str) -> os.stat_result:
    """Raise Unusable unless `path` is a regular file that this process may read."""
    found = look_at(path)
    if stat.S_ISDIR(found.st_mode):
        raise Unusable(f"{path} is a folder; expected {expected}")
    if not stat.S_ISREG(found.st_mode):
        raise Unusable(f"{path} is not a regular file; expected {expected}")
    if not os.access(path, os.R_OK, effective_ids=True):
        raise Unusable(*not_readable(path))
    return found


def look_at(path: Path) -> os.stat_result:
    """What is there, links followed. Raises Unusable with the nearest name where nothing is."""
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        if path.is_symlink():
            target = os.fsencode(os.readlink(path)).decode(errors="replace")
            raise Unusable(f"{path} is a link to {target}, which does not exist") from error
        raise Unusable(f"{path} does not exist", nearest_name(path)) from error
    except PermissionError as error:
        raise Unusable(*not_readable(path)) from error
    except OSError as error:
        raise Unusable(f"{path}: {error.strerror}") from error


def nearest_name(path: Path) -> str:
    """A hint: what lies beside `path` under a similar name."""
    try:
        with os.scandir(path.parent) as entries:
            names = [entry.name for entry in itertools.islice(entries, 1000) if entry.name.isprintable()]
    except OSError:
        return ""
    return did_you_mean(path.name, names, path.parent)


def did_you_mean(name: str, names: Iterable[str], folder: Path | None = None) -> str:
    """A hint with the nearest of `names`, or none."""
    close = difflib.get_close_matches(name, list(names), n=1)
    if not close:
        return ""
    return f"did you mean {folder / close[0] if folder else close[0]}?"


def not_readable(path: Path) -> tuple[str, str]:
    """Names who looked: the service's user after the claim, the submitter's own in `finetunectl check`."""
    uid = os.geteuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"{path} cannot be read by uid {uid}", f"setfacl -m u:{uid}:rX {path}, and its folders"
    return f"{path} cannot be read by {name} (uid {uid})", f"setfacl -m u:{name}:rX {path}, and its folders"
