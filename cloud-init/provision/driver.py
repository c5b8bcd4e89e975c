"""What is to be done about the NVIDIA driver: a look at the machine, and a pure decision on what was seen.

The order of the questions is the point: a driver that works is never touched, a mismatch is never reinstalled.
"""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

from .hardware import find_gpus, find_nvswitches
from .machine import Machine
from .settings import Settings

FLOOR = 580
"""The oldest branch that runs CUDA 13, which torch is built with since 2.11."""
NO_ANSWER = 124
VERSION_MISMATCH, LIBRARY_NOT_FOUND, NOT_LOADED = 18, 12, 9
SYSTEM_NOT_READY = 802
PROBE_SECONDS = 90


@dataclass(frozen=True)
class Probe:
    """What the driver's own libraries answered (see probe.py)."""

    nvml: int = LIBRARY_NOT_FOUND
    driver: str = ""
    cuda: int = -1
    cuda_devices: int = 0
    gpus: tuple[str, ...] = ()
    fabric: tuple[int, ...] = ()


@dataclass(frozen=True)
class DriverState:
    gpus: int
    nvswitches: int = 0
    wanted: bool = True
    """False: the settings say that GPUs are to be let be."""
    baking: bool = False
    loaded: str | None = None
    """Version of the module in the running kernel."""
    on_disk: str | None = None
    """Version of the module that this kernel would load; None also where only another kernel has one."""
    uvm_loaded: bool = False
    packages: tuple[str, ...] = ()
    probe: Probe = Probe()
    secure_boot: bool = False
    nouveau: bool = False
    kernel: str = ""
    next_kernel: str | None = None
    """What the next boot takes, where that is known and not the running one."""
    distribution: str = "ubuntu"
    prebuilt: bool = False
    """The distribution has signed modules for the running kernel."""
    from_nvidia: bool = False
    """NVIDIA's own repository is set up."""


@dataclass(frozen=True)
class Fine:
    why: str


@dataclass(frozen=True)
class Load:
    """modprobe."""


@dataclass(frozen=True)
class Reboot:
    why: str


@dataclass(frozen=True)
class InstallPrebuilt:
    """The distribution's signed modules."""

    branch: int


@dataclass(frozen=True)
class InstallFromNvidia:
    """NVIDIA's repository; the module is compiled here."""

    branch: int


@dataclass(frozen=True)
class Refuse:
    why: str
    hint: str


Action = Union[Fine, Load, Reboot, InstallPrebuilt, InstallFromNvidia, Refuse]  # noqa: UP007 (Python 3.9)


def branch_of(version: str) -> int:
    return int(version.split(".")[0]) if version[:1].isdigit() else 0


def decide(state: DriverState, branch: int = FLOOR, too_old: str = "fail") -> Action:
    imagined = state.baking and state.wanted
    if not state.gpus and not imagined:
        return Fine("no NVIDIA GPU on the bus: CPU only")
    if not state.wanted:
        return Fine("the settings say gpu: none")
    probe = state.probe
    if state.loaded and probe.nvml == NO_ANSWER:
        return Refuse("the driver does not answer", "the GPU may have fallen off the bus; stop and start the machine")
    if state.loaded and probe.nvml == VERSION_MISMATCH:
        return Reboot(f"module {state.loaded} is loaded and newer libraries are installed (NVML 18)")
    if state.loaded and state.on_disk and state.loaded != state.on_disk:
        return Reboot(f"module {state.loaded} is loaded, {state.on_disk} is installed")
    version = state.loaded or state.on_disk
    if version and branch_of(version) < FLOOR:
        return _about_an_old(version, state, branch, too_old)
    if state.loaded:
        return _about_a_loaded(state)
    if state.on_disk and imagined and not state.gpus:
        return Fine(f"driver {state.on_disk} is in the image")
    if state.on_disk and state.nouveau:
        return Reboot("nouveau holds the GPU until the next boot")
    if state.on_disk:
        return Load()
    return _how_to_install(state, branch)


def _about_a_loaded(state: DriverState) -> Action:
    probe = state.probe
    if probe.nvml in (LIBRARY_NOT_FOUND, NOT_LOADED) or (probe.nvml == 0 and probe.cuda == -1):
        return _how_to_install(state, branch_of(state.loaded or ""))
    if probe.nvml != 0:
        return Refuse(
            f"NVML fails with error {probe.nvml}",
            "15: the GPU is lost, 16: it needs a reset; stop and start the machine, or rent another one",
        )
    if probe.cuda == 0 and probe.cuda_devices >= state.gpus:
        return Fine(f"driver {state.loaded}, a CUDA context on {probe.cuda_devices} GPU")
    if probe.cuda == 0:
        return Refuse(
            f"{state.gpus} GPUs are on the bus and CUDA has {probe.cuda_devices}",
            "see `journalctl -k | grep NVRM`; a card may be broken: rent another machine",
        )
    if probe.cuda == SYSTEM_NOT_READY and state.nvswitches:
        return Fine(f"driver {state.loaded}; CUDA waits for the fabric")
    if probe.cuda == SYSTEM_NOT_READY:
        return Refuse(
            "CUDA says 802, system not yet initialized, and there is no NVSwitch in this machine",
            "the fabric manager outside it is the provider's: tell them, or rent another machine",
        )
    if not state.uvm_loaded:
        return Load()
    return Refuse(
        f"driver {state.loaded} is loaded and NVML works, but CUDA fails with error {probe.cuda}",
        "see `journalctl -k | grep NVRM`; 804: a compatibility library shadows the driver's",
    )


def _about_an_old(version: str, state: DriverState, branch: int, too_old: str) -> Action:
    if too_old != "upgrade":
        return Refuse(
            f"driver {version} is too old: torch needs branch {FLOOR} or newer",
            'choose an image with CUDA 13, or render with --upgrade-driver ("driver_too_old": "upgrade")',
        )
    if not state.packages:
        return Refuse(
            f"driver {version} is too old, and no package holds it (installed by NVIDIA's .run file?)",
            "run its nvidia-uninstall, or choose another image",
        )
    return _how_to_install(state, branch)


def _how_to_install(state: DriverState, branch: int) -> Action:
    branch = max(branch, FLOOR)
    if state.next_kernel:
        return Reboot(
            f"kernel {state.next_kernel} is installed and {state.kernel} runs; the driver is for the one that stays"
        )
    if state.distribution == "ubuntu" and state.prebuilt and not state.from_nvidia:
        return InstallPrebuilt(branch)
    if state.secure_boot:
        return Refuse(
            f"Secure Boot is on, and there is no signed driver for kernel {state.kernel}; a compiled one is refused",
            "create the machine with Secure Boot off, or choose Ubuntu with a kernel that has signed modules",
        )
    return InstallFromNvidia(branch)


def observe(machine: Machine, settings: Settings) -> DriverState:
    gpus = find_gpus(machine)
    kernel = machine.kernel
    wanted = settings.gpu == "required" if machine.baking and not gpus else settings.gpu != "none"
    if not wanted or not (gpus or machine.baking):
        return DriverState(gpus=len(gpus), wanted=wanted, baking=machine.baking, kernel=kernel)
    loaded = loaded_version(machine)
    modules = {line.split(" ", 1)[0] for line in machine.read("/proc/modules").splitlines()}
    prebuilt = f"linux-modules-nvidia-{settings.driver_branch}-server-open-{kernel}"
    return DriverState(
        gpus=len(gpus),
        nvswitches=len(find_nvswitches(machine)),
        wanted=wanted,
        baking=machine.baking,
        loaded=loaded,
        on_disk=machine.answer("modinfo", "-k", kernel, "-F", "version", "nvidia") or None,
        uvm_loaded="nvidia_uvm" in modules,
        packages=driver_packages(machine),
        probe=ask_driver(machine),
        secure_boot=secure_boot(machine),
        nouveau="nouveau" in modules,
        kernel=kernel,
        next_kernel=next_kernel(machine, kernel),
        distribution=machine.system.name,
        prebuilt=bool(machine.answer("apt-cache", "show", "--no-all-versions", prebuilt)),
        from_nvidia=has_nvidia_repository(machine),
    )


def loaded_version(machine: Machine) -> str | None:
    found = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", machine.read("/proc/driver/nvidia/version"))
    return found[1] if found else None


def ask_driver(machine: Machine) -> Probe:
    """In a child with a deadline: a call to a GPU that has fallen off the bus never comes back."""
    ended = machine.ask(sys.executable, "-IS", str(Path(__file__).with_name("probe.py")), timeout_seconds=PROBE_SECONDS)
    if ended.status != 0:
        return Probe(nvml=NO_ANSWER)
    said: dict[str, Any] = json.loads(ended.output.splitlines()[-1])
    lists: dict[str, Any] = {name: tuple(said.pop(name, ())) for name in ("gpus", "fabric")}
    return Probe(**said, **lists)


def driver_packages(machine: Machine) -> tuple[str, ...]:
    """Installed ones of driver, libraries, modules and fabric manager, from whichever repository."""
    patterns = ("*nvidia*", "libcuda*", "cuda-drivers*")
    said = machine.ask("dpkg-query", "-W", "-f=${db:Status-Abbrev} ${Package}\n", *patterns).output
    lines = (line.split() for line in said.splitlines())
    return tuple(sorted({fields[1] for fields in lines if len(fields) == 2 and fields[0][1:] == "i"}))


def secure_boot(machine: Machine) -> bool:
    """The firmware's own word: four bytes of attributes, then 1 for on."""
    for variable in machine.path("/sys/firmware/efi/efivars").glob("SecureBoot-*"):
        return variable.read_bytes()[4:5] == b"\x01"
    return False


def next_kernel(machine: Machine, running: str) -> str | None:
    """From the links that Debian and Ubuntu keep to the newest installed kernel; or the package system's request."""
    for link in ("/vmlinuz", "/boot/vmlinuz"):
        path = machine.path(link)
        if path.is_symlink():
            newest = os.path.basename(os.readlink(path)).partition("-")[2]
            return newest if newest and newest != running else None
    requests = machine.read("/run/reboot-required.pkgs").split()
    return next((name for name in requests if name.startswith("linux-image")), None)


def has_nvidia_repository(machine: Machine) -> bool:
    return any(machine.path("/etc/apt/sources.list.d").glob("cuda-*"))
