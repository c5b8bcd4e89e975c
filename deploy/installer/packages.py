"""The Debian packages that an installation needs, and those of them that are not here."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from installer.machine import Machine, package_version
from installer.programs import Programs, Trouble
from installer.release import Recipe
from installer.source import Source


def missing_packages(machine: Machine, programs: Programs, builds: bool = False, compiles: bool = False) -> list[str]:
    """`builds`: environments are made now; `compiles`: systemd-python too."""
    wanted = [] if package_version(programs, "dbus") else ["dbus"]
    if machine.polkit is None and not machine.needs_launch_helper:
        wanted.append("polkitd")
    python = machine.interpreter
    if builds and not python.has_venv:
        wanted.append(f"{python.name}-venv")
    if compiles:
        wanted += [name for name in ("gcc", "pkg-config") if shutil.which(name) is None]
        if package_version(programs, "libsystemd-dev") is None:
            wanted.append("libsystemd-dev")
        if not python.has_headers:
            wanted.append(f"{python.name}-dev")
    return wanted


def install_packages(packages: list[str], machine: Machine, source: Source, programs: Programs) -> None:
    """Raises Trouble naming what could not be had."""
    python = machine.interpreter
    theirs = [name for name in packages if name.startswith(python.name)]
    if theirs and not python.is_of_the_distribution:
        raise Trouble(
            f"{python.path} lacks what {' and '.join(theirs)} would bring, and no package of this distribution adds to "
            "it.\nhint: name a whole Python, with venv and headers, with --python PATH"
        )
    try:
        programs.run(source.path / "deploy/apt-install", *packages)
    except Trouble as error:
        raise Trouble(f"{error}\nhint: these packages are needed and could not be had: {' '.join(packages)}") from error


def has_systemd_python(folder: str | Path | None, recipe: Recipe) -> bool:
    """Whether its wheel for this Python lies in `folder`."""
    if folder is None:
        return False
    major, minor = recipe.interpreter.version
    wheel = re.compile(rf"systemd_python-[^-]+-cp{major}{minor}-.*\.whl")
    return any(wheel.fullmatch(path.name) for path in Path(folder).iterdir())
