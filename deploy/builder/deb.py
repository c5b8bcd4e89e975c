"""The Debian package of the daemon half: its environment without torch, units, users and rules.

For the distribution it is built on, whose Python its environment is made from. The worker is added on the machine by
the deploy/install that the package brings, since no package should hold gigabytes of PyTorch.
"""

import gzip
import hashlib
import os
import re
import shutil
from pathlib import Path

from installer.files import arrange
from installer.interpreter import Interpreter, named
from installer.machine import package_version, systemd_version
from installer.places import Places, PlacesOfPackage
from installer.programs import Programs, Trouble
from installer.release import PACKAGED, write_mark
from installer.source import EPOCH, Source
from installer.writing import replace_link

from builder.scripts import MAINTAINER_SCRIPTS

PACKAGE = "finetuned-daemon"

_PYTHON = "/usr/bin/python3"

_EXEC_BY_SHELL = re.compile(r"""\A#!/bin/sh\n'{3}exec' "?([^ "]+)"? .*\n' '{3}\n""")
"""How pip begins a script whose interpreter lies too deep for a first line; at its final place it does not."""

_CONTROL = """\
Package: {package}
Version: {version}
Architecture: {architecture}
Maintainer: finetuned maintainers <maintainers@finetuned.invalid>
Installed-Size: {kilobytes}
Depends: {depends}
Section: science
Priority: optional
Description: fine-tuning daemon, without the worker that trains
 Drop a job file in a folder, find a tuned Llama-class model in the morning.
 .
 This package holds the daemon, its units and finetunectl. The worker, with
 PyTorch, is built on the machine: sudo /opt/finetuned/current/deploy/install
"""


def write_deb(source: Source, wheel: Path, scratch: Path, pip_python: Path, programs: Programs) -> Path:
    """finetuned-daemon_VERSION_ARCH.deb in `scratch`. Raises Trouble where no such package can be built."""
    if shutil.which("dpkg-deb") is None:
        raise Trouble("dpkg-deb is not here; on Debian or Ubuntu build the package, elsewhere: deploy/build bundle")
    python = named(programs, _PYTHON)
    places = PlacesOfPackage(scratch / "deb")
    name = f"{source.version}-{source.digest()[:8]}-deb"
    release = places.releases / name
    source.copy_parts(release)
    shutil.copy(wheel, release)
    programs.run(python.path, "-m", "venv", "--without-pip", release / "daemon")
    # Whoever's pip it is, it works as the package's Python.
    pip = (pip_python, "-m", "pip", "--python", release / "daemon/bin/python")
    _fill_environment(release, wheel, source, scratch / "wheels", pip, programs)
    write_mark(release / "release.json", source, python, PACKAGED)
    _put_files(release, places, systemd_version(programs))
    architecture = programs.run("dpkg", "--print-architecture").strip()
    _write_control(source, places.root, architecture, python, programs)
    package = scratch / f"{PACKAGE}_{source.version}_{architecture}.deb"
    epoch = {"SOURCE_DATE_EPOCH": str(EPOCH)}
    programs.run("dpkg-deb", "--root-owner-group", "-Zxz", "--build", places.root, package, env=epoch)
    return package


def _fill_environment(
    release: Path, wheel: Path, source: Source, wheels: Path, pip: tuple[str | Path, ...], programs: Programs
) -> None:
    """release/daemon, as if it had been made at its final place."""
    environment = release / "daemon"
    pinned = ("--quiet", "--no-input", "--constraint", source.constraints)
    programs.run(*pip, "wheel", *pinned, "--no-deps", "--use-pep517", "-w", wheels, "systemd-python")
    for compiled in wheels.iterdir():
        shutil.copy(compiled, release)  # For the worker, so that its machine needs no compiler.
    shutil.copy(wheel, wheels)
    # By name, not by path: pip would note in the environment where the file lay.
    wanted = ("--no-compile", "--find-links", wheels, f"finetuned[systemd]=={source.version}")
    programs.run(*pip, "install", *pinned, *wanted)
    stage = str(release).removesuffix(f"/opt/finetuned/releases/{release.name}")
    for path in [environment / "pyvenv.cfg", *(environment / "bin").iterdir()]:
        if path.is_file() and not path.is_symlink():
            path.write_text(_EXEC_BY_SHELL.sub(r"#!\1\n", path.read_text().replace(stage, "")))
    # The daemon's user cannot write here, and dpkg's files do not change: never compared with the source.
    compiling = ("-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "-s", stage, "-p", "/")
    programs.run(environment / "bin/python", *compiling, environment / "lib")


def _put_files(release: Path, places: Places, systemd: int) -> None:
    content = arrange(release / "units", systemd, needs_launch_helper=False, places=places).content
    # Until there is a worker, every job would fail for want of it.
    waits = f"[Unit]\nConditionPathExists=/{places.current.relative_to(places.root)}/worker.json\n"
    content[places.units / "finetuned.service.d/10-worker.conf"] = waits.encode()
    for path, text in content.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
    replace_link(places.current, f"releases/{release.name}")
    places.command.parent.mkdir(parents=True)
    replace_link(places.command, "/opt/finetuned/current/daemon/bin/finetunectl")


def _write_control(source: Source, tree: Path, architecture: str, python: Interpreter, programs: Programs) -> None:
    documents = tree / "usr/share/doc" / PACKAGE
    documents.mkdir(parents=True)
    shutil.copy(source.path / "LICENSE", documents / "copyright")
    with gzip.GzipFile(documents / "changelog.gz", "wb", mtime=0) as changelog:
        changelog.write((source.path / "CHANGELOG.md").read_bytes())
    files = sorted(path for path in tree.rglob("*") if path.is_file() and not path.is_symlink())
    sums = [f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(tree)}\n" for path in files]
    kilobytes = sum(-(-path.stat().st_size // 1024) for path in files)
    control = tree / "DEBIAN"
    control.mkdir()
    (control / "md5sums").write_text("".join(sums))
    (control / "control").write_text(
        _CONTROL.format(
            package=PACKAGE,
            version=source.version,
            architecture=architecture,
            kilobytes=kilobytes,
            depends=", ".join(_depends(python, programs)),
        )
    )
    for name, script in MAINTAINER_SCRIPTS.items():
        (control / name).write_text(script)
        (control / name).chmod(0o755)
    for path in tree.rglob("*"):
        os.utime(path, (EPOCH, EPOCH), follow_symlinks=False)


def _depends(python: Interpreter, programs: Programs) -> list[str]:
    """What the files in the package were linked against or made for, and what its scripts call."""
    libc = package_version(programs, "libc6")
    if libc is None:
        raise Trouble("there is no package libc6 here; the package can be built on Debian and Ubuntu only")
    built_for = re.match(r"\d+\.\d+", libc)
    return [
        f"{python.name} (>= {python.name.removeprefix('python')})",
        f"{python.name}-venv",
        f"libc6 (>= {built_for[0] if built_for else libc})",
        "libsystemd0 (>= 249)",
        "systemd (>= 249)",
        "init-system-helpers",
        "polkitd (>= 121)",
        "dbus",
    ]
