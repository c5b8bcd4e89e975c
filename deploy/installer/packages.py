"""The Debian packages that an installation needs, and those of them that are not here."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from installer.machine import Machine, package_version
from installer.programs import Programs, Trouble
from installer.source import Source


def missing_packages(machine: Machine, programs: Programs, wheelhouse: str | None, is_built: bool) -> list[str]:
    """`is_built`: the release is there already, so nothing is compiled any more."""
    wanted = [] if package_version(programs, "dbus") else ["dbus"]
    if machine.polkit is None and not machine.needs_launch_helper:
        wanted.append("polkitd")
    if is_built:
        return wanted
    python = machine.interpreter
    if not python.has_venv:
        wanted.append(f"{python.name}-venv")
    if not _has_systemd_python(wheelhouse, python.version):
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


def _has_systemd_python(wheelhouse: str | None, version: tuple[int, int]) -> bool:
    if wheelhouse is None:
        return False
    wheel = re.compile(rf"systemd_python-[^-]+-cp{version[0]}{version[1]}-.*\.whl")
    return any(wheel.fullmatch(path.name) for path in Path(wheelhouse).iterdir())
