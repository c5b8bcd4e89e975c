"""NVSwitch machines: the fabric manager, of exactly the driver's version, and a fabric that has come up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import apt
from .driver import ask_driver, branch_of, has_nvidia_repository, loaded_version
from .hardware import find_gpus, find_nvswitches
from .machine import Machine, ProvisionFailed
from .probe import FABRIC_COMPLETED
from .settings import Settings

SERVICE = "nvidia-fabricmanager.service"
WAIT_SECONDS = 180


@dataclass(frozen=True)
class Fabric:
    machine: Machine
    settings: Settings
    name: str = "fabric"

    def missing(self) -> list[str]:
        driver = loaded_version(self.machine)
        if not self.concerns() or driver is None:
            return []
        installed = installed_versions(self.machine)
        if driver not in installed:
            have = f"; installed: {', '.join(installed)}" if installed else ""
            return [f"fabric manager {driver}, exactly the driver's version{have}"]
        if self.machine.answer("systemctl", "is-enabled", SERVICE) != "enabled":
            return [f"{SERVICE} is not enabled"]
        if self.machine.answer("systemctl", "is-active", SERVICE) != "active":
            return [f"{SERVICE} is not active"]
        return self.trouble()

    def trouble(self) -> list[str]:
        probe = ask_driver(self.machine)
        unready = [state for state in probe.fabric if state != FABRIC_COMPLETED]
        problems = [f"the fabric of {len(unready)} of {len(probe.fabric)} GPUs is not complete"] if unready else []
        return problems + ([f"no CUDA context: error {probe.cuda}"] if probe.cuda else [])

    def act(self) -> None:
        driver = loaded_version(self.machine)
        assert driver
        if driver not in installed_versions(self.machine):
            apt.update(self.machine)
            apt.install(self.machine, self.package_for(driver), "--allow-downgrades", "--allow-change-held-packages")
        self.machine.do("systemctl", "enable", SERVICE)
        self.machine.do("systemctl", "restart", SERVICE)
        for _ in range(WAIT_SECONDS // 5):
            if not self.trouble():
                return
            self.machine.sleep(5)

    def versions(self) -> dict[str, Any]:
        return {"fabricmanager": installed_versions(self.machine)}

    def concerns(self) -> bool:
        return self.settings.gpu != "none" and bool(find_gpus(self.machine) and find_nvswitches(self.machine))

    def package_for(self, driver: str) -> str:
        """NAME=VERSION as apt takes it. Raises ProvisionFailed naming what the archive has instead."""
        from_nvidia = has_nvidia_repository(self.machine)
        names = ["nvidia-fabricmanager", f"nvidia-fabricmanager-{branch_of(driver)}"]
        offered = []
        for name in names if from_nvidia else reversed(names):
            for line in self.machine.ask("apt-cache", "madison", name).output.splitlines():
                fields = [field.strip() for field in line.split("|")]
                if len(fields) == 3 and upstream(fields[1]) == driver:
                    return f"{name}={fields[1]}"
                offered += fields[1:2]
        raise ProvisionFailed(
            f"no fabric manager of the driver's version {driver} (offered: {', '.join(offered) or 'none'})",
            "another version refuses to start; choose an image that brings both, or another driver branch",
        )


def upstream(version: str | None) -> str:
    """580.105.08 of 1:580.105.08-0ubuntu0.24.04.1."""
    return (version or "").split(":")[-1].split("-")[0]


def installed_versions(machine: Machine) -> list[str]:
    said = machine.ask("dpkg-query", "-W", "-f=${db:Status-Abbrev} ${Version}\n", "nvidia-fabricmanager*").output
    lines = (line.split() for line in said.splitlines())
    return sorted({upstream(fields[1]) for fields in lines if len(fields) == 2 and fields[0][1:] == "i"})
