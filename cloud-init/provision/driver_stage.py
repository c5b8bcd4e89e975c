"""Carries out what driver.decide says, until it says that the driver is fine."""

from __future__ import annotations

import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import apt
from .driver import (
    Action,
    DriverState,
    Fine,
    InstallFromNvidia,
    InstallPrebuilt,
    Load,
    Reboot,
    Refuse,
    decide,
    driver_packages,
    loaded_version,
    next_kernel,
    observe,
)
from .machine import CommandFailed, Machine, ProvisionFailed
from .settings import Settings
from .stages import NeedsReboot

MODULES = ("nvidia", "nvidia_uvm")
"""In this order: uvm loaded first leaves CUDA dead until the next boot."""
MODULES_AT_BOOT = "/etc/modules-load.d/finetuned-nvidia.conf"
KEYRING = "cuda-keyring_1.1-1_all.deb"


@dataclass(frozen=True)
class Driver:
    machine: Machine
    settings: Settings
    name: str = "driver"

    def missing(self) -> list[str]:
        state = observe(self.machine, self.settings)
        action = self.decide(state)
        if isinstance(action, Refuse):
            raise ProvisionFailed(action.why, action.hint)
        if not isinstance(action, Fine):
            return [describe(action)]
        if self.concerns(state) and not self.machine.read(MODULES_AT_BOOT):
            return ["the modules are not loaded at boot"]
        return []

    def act(self) -> None:
        done: list[Action] = []
        while True:
            state = observe(self.machine, self.settings)
            action = self.decide(state)
            if isinstance(action, (InstallPrebuilt, InstallFromNvidia)) and not done:
                apt.update(self.machine)
                state = observe(self.machine, self.settings)
                action = self.decide(state)
            if isinstance(action, Refuse):
                raise ProvisionFailed(action.why, action.hint)
            if isinstance(action, Reboot):
                raise NeedsReboot(action.why)
            if isinstance(action, Fine):
                break
            if action in done:
                raise ProvisionFailed(
                    f"{describe(action)}: done, and it did not help (NVML {state.probe.nvml}, CUDA {state.probe.cuda})"
                )
            done.append(action)
            self.carry_out(action)
        if self.concerns(state):
            self.machine.write(MODULES_AT_BOOT, "".join(f"{module}\n" for module in MODULES))
            if self.machine.service_exists("nvidia-persistenced.service"):
                self.machine.do("systemctl", "enable", "nvidia-persistenced.service")
                self.machine.ask("systemctl", "start", "nvidia-persistenced.service")

    def versions(self) -> dict[str, Any]:
        state = observe(self.machine, self.settings)
        return {
            "driver": loaded_version(self.machine) or state.on_disk,
            "gpus": list(state.probe.gpus),
            "kernel": state.kernel,
        }

    def decide(self, state: DriverState) -> Action:
        return decide(state, self.settings.driver_branch, self.settings.driver_too_old)

    def concerns(self, state: DriverState) -> bool:
        return state.wanted and (state.gpus > 0 or state.baking)

    def carry_out(self, action: Action) -> None:
        if isinstance(action, Load):
            load_modules(self.machine)
        elif isinstance(action, InstallPrebuilt):
            install_prebuilt(self.machine, action.branch)
        elif isinstance(action, InstallFromNvidia):
            install_from_nvidia(self.machine, action.branch, self.settings.nvidia_repository)


def describe(action: Action) -> str:
    if isinstance(action, Load):
        return "load the driver's modules"
    if isinstance(action, Reboot):
        return f"reboot: {action.why}"
    if isinstance(action, InstallPrebuilt):
        return f"install driver {action.branch}, the distribution's signed modules"
    if isinstance(action, InstallFromNvidia):
        return f"install driver {action.branch} from NVIDIA's repository"
    return action.why


def load_modules(machine: Machine) -> None:
    for module in MODULES:
        try:
            machine.do_patiently("modprobe", module, pauses_seconds=(2, 5))
        except CommandFailed as failed:
            raise ProvisionFailed(str(failed), why_not_loaded(machine, failed.output)) from failed


def why_not_loaded(machine: Machine, said: str) -> str:
    if any(words in said for words in ("Key was rejected", "Required key not available", "Operation not permitted")):
        lockdown = machine.read("/sys/kernel/security/lockdown").strip()
        return (
            f"the kernel takes signed modules only (lockdown {lockdown or 'unknown'}): "
            "create the machine with Secure Boot off"
        )
    if "No such device" in said:
        return "the module does not know this GPU (open modules need Turing or newer), or another driver holds it"
    if "not found" in said:
        return f"no module for kernel {machine.kernel}; see /var/lib/dkms/nvidia/*/build/make.log"
    return "see `journalctl -k | grep -e NVRM -e nvidia`"


def install_prebuilt(machine: Machine, branch: int) -> None:
    """Modules for exactly the running kernel, since kernels are held afterwards."""
    apt.install(
        machine,
        f"linux-modules-nvidia-{branch}-server-open-{machine.kernel}",
        f"nvidia-headless-no-dkms-{branch}-server-open",
        f"nvidia-utils-{branch}-server",
    )


def install_from_nvidia(machine: Machine, branch: int, repository: str) -> None:
    """Raises NeedsReboot before the driver where a newer kernel came with its headers."""
    kernel = machine.kernel
    if machine.system.name == "debian":
        # The headers of an older kernel leave Debian's archive at a point release: take both, newest.
        flavour = kernel_flavour(kernel)
        apt.install(machine, f"linux-image-{flavour}", f"linux-headers-{flavour}")
        newer = next_kernel(machine, kernel)
        if newer:
            raise NeedsReboot(f"kernel {newer} was installed with its headers; the driver is compiled for it")
    else:
        apt.install(machine, f"linux-headers-{kernel}")
    enrol_nvidia_repository(machine, repository)
    apt.update(machine)
    apt.install(machine, f"nvidia-driver-pinning-{branch}")
    apt.install(machine, "nvidia-open")
    if machine.service_exists("dkms.service"):
        # On Debian 13 it and cloud-init-network.service wait for each other at the next boot, and cloud-init loses.
        machine.do("systemctl", "disable", "dkms.service")
    if not driver_packages(machine):
        raise ProvisionFailed("nvidia-open was installed, and no package of a driver is there")


def kernel_flavour(kernel: str) -> str:
    """6.1.0-41-cloud-amd64 → cloud-amd64, 6.12.57+deb13-amd64 → amd64."""
    words = kernel.split("-")
    return "-".join(words[-2:]) if words[-2:-1] in (["cloud"], ["rt"]) else words[-1]


def enrol_nvidia_repository(machine: Machine, repository: str) -> None:
    if apt.is_installed(machine, "cuda-keyring"):
        return
    system = machine.system
    architecture = {"aarch64": "sbsa"}.get(machine.architecture, machine.architecture)
    address = f"{repository}/{system.name}{system.version.replace('.', '')}/{architecture}/{KEYRING}"
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / KEYRING
        fetch(machine, address, package)
        machine.do_patiently("dpkg", "--install", str(package))


def fetch(machine: Machine, address: str, into: Path) -> None:
    for pause in (5, 15, 45, None):
        try:
            with urllib.request.urlopen(address, timeout=30) as answer:
                into.write_bytes(answer.read())
            return
        except OSError as error:
            if pause is None:
                raise ProvisionFailed(f"{address}: {error}", "has this machine a way to the internet?") from error
            print(f"{address}: {error}; trying again in {pause} s", flush=True)
            machine.sleep(pause)
