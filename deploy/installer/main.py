"""The command line of deploy/install, and the edge where trouble becomes one message and an exit status."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from installer import credentials, interpreter
from installer.installation import Installation
from installer.machine import Machine, look_at, require_root
from installer.places import Places, PlacesOfPackage
from installer.programs import Programs, Trouble
from installer.release import PackagedRelease, Recipe, Release, is_packaged, linked, release_name
from installer.source import Source, find_source
from installer.steps import carry_out, check, tell
from installer.uninstall import Removal

INSTALLED, TROUBLE, USAGE, INTERRUPTED = 0, 1, 2, 130

_EPILOG = """\
Run again, it does only what is missing. A running job keeps the release it was started with, whatever is done here.
Exit status: 0 all is in place; 1 it is not, and the last lines say why; 2 the command line is wrong; 130 interrupted.
See README.md beside this program.
"""


_BY_PACKAGE = """\
finetuned came to this machine as the Debian package finetuned-daemon, which apt upgrades and removes.
hint: what adds its worker, and secrets, is /opt/finetuned/current/deploy/install, without --rollback or --uninstall"""


def main(arguments: list[str], installer: Path) -> int:
    """`installer`: the running program, which lies in the deploy/ of what is to be installed."""
    options = _parse(arguments)
    os.umask(0o022)
    try:
        places = Places(options.root.resolve())
        require_root(places)
        return _carry_out(options, places, installer)
    except Trouble as trouble:
        print(f"install: {trouble}", file=sys.stderr)
        return TROUBLE
    except KeyboardInterrupt:
        print("install: interrupted; run it again, and it does what is missing", file=sys.stderr)
        return INTERRUPTED


def _carry_out(options: argparse.Namespace, places: Places, installer: Path) -> int:
    if options.check:
        return _install(options, places, Programs(), installer)
    with _locked(places, needs_installation=options.rollback or options.uninstall or options.upgrade) as lock:
        programs = Programs(lock)
        if (options.uninstall or options.rollback) and is_packaged(places.current):
            raise Trouble(_BY_PACKAGE)
        if options.uninstall:
            Removal(places, programs, stops_jobs=options.force, takes_settings=options.purge).carry_out()
            return INSTALLED
        if options.rollback:
            return _roll_back(options, places, programs)
        return _install(options, places, programs, installer)


def _install(options: argparse.Namespace, places: Places, programs: Programs, installer: Path) -> int:
    source = find_source(installer)
    if is_packaged(source.path):
        places = PlacesOfPackage(places.root)
    elif is_packaged(places.current):
        raise Trouble(_BY_PACKAGE)
    python = interpreter.named(programs, options.python) if options.python else interpreter.find(programs)
    machine = look_at(places, programs, python)
    tell("ok", "machine", _said_of(machine))
    recipe = Recipe(
        interpreter=python,
        torch="cuda" if machine.has_nvidia_card and not options.cpu else "cpu",
        worker_site=str(options.worker_site) if options.worker_site else None,
        wheelhouse=str(options.wheelhouse) if options.wheelhouse else None,
    )
    installation = Installation(
        places=places,
        programs=programs,
        machine=machine,
        target=_target(options, source, recipe, places, programs),
        gate_seconds=options.gate_seconds,
        users=tuple(options.user or _caller()),
        always_restart=options.upgrade,
    )
    installation.require_users()
    if options.wheelhouse and not installation.target.is_whole:
        source.require_setuptools(options.wheelhouse)
    for complaint in credentials.complaints(places.credentials, source.path / "units"):
        tell("warning", "secrets", complaint)
    steps = installation.steps(source, recipe)
    if options.check:
        lacking = check(steps)
        print(f"{lacking} of {len(steps)} steps have something to do" if lacking else "all is in place")
        return TROUBLE if lacking else INSTALLED
    done = carry_out(steps)
    print(f"{installation.target.name} is installed" + ("" if done else ", as it was: nothing had to be done"))
    return INSTALLED


def _target(options: argparse.Namespace, source: Source, recipe: Recipe, places: Places, programs: Programs) -> Release:
    """The installed release itself where this runs from it, it is sound, and no option asks for another build of it."""
    if is_packaged(source.path):
        return PackagedRelease(places, source.path.name)
    itself = Release(places, source.path.name)
    asks_for_another = options.python or options.cpu or options.worker_site
    if itself.path == source.path and itself.is_whole and not asks_for_another and itself.answers(programs):
        return itself
    return Release(places, release_name(source, recipe))


def _roll_back(options: argparse.Namespace, places: Places, programs: Programs) -> int:
    previous, current = linked(places.previous, places), linked(places.current, places)
    if previous is None or current is None:
        raise Trouble(f"there is no earlier release to go back to: {places.previous} names none that is whole")
    # Its virtual environments are there; any Python tells what the rest needs to know.
    machine = look_at(places, programs, interpreter.named(programs, str(previous.python("daemon"))))
    installation = Installation(places, programs, machine, previous, options.gate_seconds, always_restart=True)
    carry_out(installation.swap_steps())
    print(
        f"went back from {current.name} to {previous.name}; deploy/install --rollback again returns to {current.name}"
    )
    return INSTALLED


def _said_of(machine: Machine) -> str:
    tried = "" if machine.distribution.is_known else ", on which finetuned was never tried"
    card = "an NVIDIA card" if machine.has_nvidia_card else "no NVIDIA card: PyTorch for the CPU"
    return f"{machine.distribution.name}{tried}; {machine.architecture}, systemd {machine.systemd}, {card}"


def _caller() -> list[str]:
    """Who called sudo; nobody for root's own login."""
    name = os.environ.get("SUDO_USER", "")
    return [] if name in ("", "root") else [name]


@contextlib.contextmanager
def _locked(places: Places, needs_installation: bool) -> Iterator[int]:
    """One installer at a time. Waits for another, or for a pip that a killed one left behind."""
    if needs_installation and not places.current.is_symlink():
        raise Trouble(f"finetuned is not installed here: there is no {places.current}")
    places.home.mkdir(parents=True, exist_ok=True)
    lock = os.open(places.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 32, 0).decode().strip()
            tell("waiting", "lock", f"another deploy/install (pid {holder}), or what it started, is still at work")
            fcntl.flock(lock, fcntl.LOCK_EX)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield lock
    finally:
        os.close(lock)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="install",
        description="Installs finetuned as a service: its environments, units, user and folders; and starts it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    deeds = parser.add_mutually_exclusive_group()
    deeds.add_argument(
        "--check", action="store_true", help="say what would be done, change nothing; exit 1 if anything"
    )
    deeds.add_argument(
        "--upgrade",
        action="store_true",
        help="only where finetuned is installed: also writes the units again and restarts the daemon",
    )
    deeds.add_argument("--rollback", action="store_true", help="back to the release before this one")
    deeds.add_argument(
        "--uninstall", action="store_true", help="remove it; the spool, settings and people's files are kept"
    )
    parser.add_argument("--force", action="store_true", help="with --uninstall: stop the jobs that run")
    parser.add_argument(
        "--purge", action="store_true", help="with --uninstall: settings, secrets, state and caches too"
    )
    parser.add_argument("--python", metavar="PATH", help="the Python (3.11 to 3.14) for both virtual environments")
    parser.add_argument("--cpu", action="store_true", help="PyTorch for the CPU, even where there is an NVIDIA card")
    parser.add_argument(
        "--wheelhouse", metavar="DIR", type=_folder, help="a folder of wheels; no package index is asked then"
    )
    parser.add_argument(
        "--worker-site",
        metavar="DIR",
        type=_folder,
        help="a site-packages folder that holds torch, transformers and the rest already; they are not installed then",
    )
    parser.add_argument(
        "--user", metavar="NAME", action="append", help="who may drop jobs (default: who called sudo); may be repeated"
    )
    parser.add_argument(
        "--gate-seconds",
        metavar="N",
        type=float,
        default=60.0,
        help="how long the daemon may take to be ready and well (default: 60)",
    )
    parser.add_argument("--root", metavar="DIR", type=_folder, default=Path("/"), help="for tests: another root")
    options = parser.parse_args(arguments)
    if (options.force or options.purge) and not options.uninstall:
        parser.error("--force and --purge go with --uninstall")
    return options


def _folder(text: str) -> Path:
    path = Path(text).resolve()
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is no folder")
    return path
