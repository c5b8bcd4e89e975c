"""What this machine is: distribution, systemd, polkit, Python, disk and GPU; and whether finetuned can live here."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
from dataclasses import dataclass

from installer.interpreter import Interpreter
from installer.places import Places
from installer.programs import Programs, Trouble

OLDEST_SYSTEMD = 249
TRIED = {("debian", "12"), ("debian", "13")}
EXPECTED = {("ubuntu", "22.04"), ("ubuntu", "24.04"), ("ubuntu", "26.04")}
"""Meant to work; see "What could not be tried here" in deploy/README.md."""

_ARCHITECTURES = ("x86_64", "aarch64")
_POLKIT_WITH_JAVASCRIPT = (0, 106)
_NVIDIA = "0x10de"
_DISPLAY_CONTROLLERS = "0x03"
"""The PCI class of graphics cards and of accelerators without a screen."""


@dataclass(frozen=True)
class Distribution:
    id: str
    version: str
    name: str
    is_debian_like: bool

    @property
    def is_known(self) -> bool:
        return (self.id, self.version) in TRIED | EXPECTED


@dataclass(frozen=True)
class Machine:
    distribution: Distribution
    systemd: int
    architecture: str
    has_nvidia_card: bool
    polkit: str | None
    """Version of the package, None when it is not installed."""
    interpreter: Interpreter

    @property
    def needs_launch_helper(self) -> bool:
        """Polkit before 0.106 knows no rules in JavaScript; Ubuntu 22.04 is the last release that has it."""
        if self.polkit is None:
            return (self.distribution.id, self.distribution.version) == ("ubuntu", "22.04")
        numbers = tuple(int(number) for number in re.findall(r"\d+", self.polkit.split("-")[0])[:2])
        return numbers < _POLKIT_WITH_JAVASCRIPT


def look_at(places: Places, programs: Programs, interpreter: Interpreter) -> Machine:
    """Raises Trouble when this is no machine for finetuned."""
    return Machine(
        distribution=_distribution(places),
        systemd=_running_systemd(places, programs),
        architecture=_architecture(),
        has_nvidia_card=_has_nvidia_card(places, programs),
        polkit=package_version(programs, "polkitd") or package_version(programs, "policykit-1"),
        interpreter=interpreter,
    )


def package_version(programs: Programs, package: str) -> str | None:
    """None when the package is not wholly installed."""
    answer = programs.attempt("dpkg-query", "-W", "-f=${db:Status-Status} ${Version}", package)
    status, _, version = answer.stdout.partition(" ")
    return version if answer.returncode == 0 and status == "installed" else None


def _distribution(places: Places) -> Distribution:
    path = places.root / "etc/os-release"
    try:
        lines = shlex.split(path.read_text(), comments=True)
    except OSError as error:
        raise Trouble(f"{path} cannot be read ({error.strerror}): which distribution is this?") from error
    said = dict(line.partition("=")[::2] for line in lines if "=" in line)
    family = [said.get("ID", ""), *said.get("ID_LIKE", "").split()]
    found = Distribution(
        id=said.get("ID", "unknown"),
        version=said.get("VERSION_ID", ""),
        name=said.get("PRETTY_NAME", said.get("ID", "an unknown distribution")),
        is_debian_like="debian" in family or "ubuntu" in family,
    )
    if not found.is_debian_like:
        raise Trouble(
            f"this is {found.name}; finetuned is installed on Debian 12 and 13 and on Ubuntu 22.04, 24.04 and 26.04.\n"
            "hint: elsewhere, run it by hand from a virtual environment: pip install 'finetuned[train]'; finetuned run"
        )
    return found


def _running_systemd(places: Places, programs: Programs) -> int:
    if not (places.root / "run/systemd/system").is_dir():
        raise Trouble(
            "systemd does not run this machine (no /run/systemd/system); the service needs it.\n"
            "hint: in a container or on a laptop, run the daemon by hand: finetuned run"
        )
    version = systemd_version(programs)
    if version < OLDEST_SYSTEMD:
        raise Trouble(f"this is systemd {version}; finetuned's units need {OLDEST_SYSTEMD} or newer")
    return version


def systemd_version(programs: Programs) -> int:
    said = programs.run("systemctl", "--version")
    found = re.match(r"systemd (\d+)", said)
    if found is None:
        raise Trouble(f"systemctl --version does not say which systemd this is: {said[:80]!r}")
    return int(found[1])


def _architecture() -> str:
    found = platform.machine()
    if found not in _ARCHITECTURES:
        raise Trouble(f"this is a {found} machine; PyTorch comes for {' and '.join(_ARCHITECTURES)} only")
    return found


def _has_nvidia_card(places: Places, programs: Programs) -> bool:
    """Also one whose driver is not there yet: on PCI it can be seen without."""
    if programs.attempt("nvidia-smi", "-L", timeout=60).stdout.startswith("GPU "):
        return True
    for device in (places.root / "sys/bus/pci/devices").glob("*"):
        try:
            vendor, kind = (device / "vendor").read_text().strip(), (device / "class").read_text().strip()
        except OSError:
            continue
        if vendor == _NVIDIA and kind.startswith(_DISPLAY_CONTROLLERS):
            return True
    return False


def require_room(places: Places, needed_bytes: int, what: str) -> int:
    """How much is free where releases go. Raises Trouble when that is less than `needed_bytes`."""
    place = places.releases
    while not place.is_dir():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < needed_bytes:
        raise Trouble(
            f"{what} needs about {gigabytes(needed_bytes)} in {places.releases}; {gigabytes(free)} are free there.\n"
            f"hint: make room, or mount a larger disk at {places.home}"
        )
    return free


def gigabytes(number: int) -> str:
    return f"{number / 1e9:.1f} GB"


def require_root(places: Places) -> None:
    """Of the real machine; another root is a test's own."""
    if os.geteuid() != 0 and places.root == Places().root:
        raise Trouble("this has to be run as root: sudo deploy/install …")
