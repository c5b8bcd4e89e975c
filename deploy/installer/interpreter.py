"""The Python that both virtual environments are made from: found, or named, and fit for another user to run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from installer.programs import Programs, Trouble

OLDEST, NEWEST = (3, 11), (3, 14)
"""What the pinned releases have wheels for; a newer one is taken only when --python names it."""

_NAMES = ("python3", "python3.13", "python3.12", "python3.11", "python3.14")
"""The distribution's own first: it is kept secure by apt, and its headers come as a package."""

_ASK = """
import importlib.util, json, os, sys, sysconfig
executable = getattr(sys, "_base_executable", sys.executable) or sys.executable
print(json.dumps({
    "version": list(sys.version_info[:2]),
    "path": executable,
    "prefix": sys.base_prefix,
    "has_venv": all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")),
    "has_headers": os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")),
}))
"""


@dataclass(frozen=True)
class Interpreter:
    path: str
    version: tuple[int, int]
    prefix: str
    has_venv: bool
    has_headers: bool

    @property
    def name(self) -> str:
        """As its packages are called: python3.11."""
        return f"python{self.version[0]}.{self.version[1]}"

    @property
    def is_of_the_distribution(self) -> bool:
        return self.prefix == "/usr"


def named(programs: Programs, path: str) -> Interpreter:
    """The one of --python. Raises Trouble when finetuned cannot run on it."""
    found = _ask(programs, os.path.abspath(path))
    if found is None:
        raise Trouble(f"--python: {path} is no Python that answers")
    if why := _unfit(found):
        raise Trouble(f"--python: {path} is {why}")
    return found


def find(programs: Programs) -> Interpreter:
    """The first on PATH that is fit. Raises Trouble naming what was found instead."""
    seen = []
    for path in _candidates():
        found = _ask(programs, path)
        if found is None:
            continue
        why = _unfit(found) or (
            f"{found.name}, newer than what finetuned is tried with" if found.version > NEWEST else ""
        )
        if not why:
            return found
        seen.append(f"{path} is {why}")
    raise Trouble(
        "\n    ".join(["finetuned needs Python 3.11 to 3.14, and there is none:", *(seen or ["no python3 at all"])])
        + "\nhint: name one with --python PATH, for instance one from uv or from a package python3.12"
    )


def _candidates() -> Iterator[str]:
    for name in _NAMES:
        for folder in os.get_exec_path():
            path = os.path.join(folder, name)
            if os.access(path, os.X_OK):
                yield path


def _ask(programs: Programs, path: str) -> Interpreter | None:
    answer = programs.attempt(path, "-I", "-c", _ASK, timeout=60)
    if answer.returncode != 0:
        return None
    said = json.loads(answer.stdout.splitlines()[-1])
    return Interpreter(
        path=said["path"],
        version=(said["version"][0], said["version"][1]),
        prefix=said["prefix"],
        has_venv=said["has_venv"],
        has_headers=said["has_headers"],
    )


def _unfit(found: Interpreter) -> str:
    """Why finetuned cannot run on it; empty when it can."""
    if found.version < OLDEST:
        return f"{found.name}, too old"
    for path in (Path(os.path.realpath(found.path)), Path(os.path.realpath(found.prefix))):
        for folder in [path, *path.parents]:
            if not folder.stat().st_mode & 0o001:
                return f"in {folder}, where the user finetuned may not look"
    return ""
