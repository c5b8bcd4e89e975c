"""apt as it must be called on a machine where others call it too: patiently, and never past a lock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .disks import scratch_candidates
from .machine import Machine
from .settings import Settings

OPTIONS = (
    "-y",
    "-o", "DPkg::Lock::Timeout=600",
    "-o", "Acquire::Retries=3",
    "-o", "Dpkg::Options::=--force-confold",
    "--no-install-recommends",
)  # fmt: skip
TIMERS = ("apt-daily.timer", "apt-daily-upgrade.timer")


def update(machine: Machine) -> None:
    machine.do_patiently("apt-get", *OPTIONS, "update")


def install(machine: Machine, *packages: str) -> None:
    machine.do_patiently("apt-get", *OPTIONS, "install", *packages)


def is_installed(machine: Machine, package: str) -> bool:
    return machine.answer("dpkg-query", "-W", "-f=${db:Status-Status}", package) == "installed"


def quiet_timers(machine: Machine) -> list[str]:
    """Stops apt's own timers, for they take the lock and change libraries under us; returns those that ran."""
    running = [timer for timer in TIMERS if machine.answer("systemctl", "is-active", timer) == "active"]
    if running:
        machine.do("systemctl", "stop", *running)
    return running


def restart_timers(machine: Machine, timers: Sequence[str]) -> None:
    if timers:
        machine.do("systemctl", "start", *timers)


@dataclass(frozen=True)
class Apt:
    """A package system in working order, and what the provisioning itself needs of it."""

    machine: Machine
    settings: Settings
    name: str = "apt"

    def missing(self) -> list[str]:
        problems = []
        if self.machine.answer("dpkg", "--audit"):
            problems.append("dpkg was interrupted")
        absent = [package for package in self.needed() if not is_installed(self.machine, package)]
        if absent:
            problems.append(f"packages to install: {' '.join(absent)}")
        return problems

    def act(self) -> None:
        if self.machine.answer("dpkg", "--audit"):
            self.machine.do_patiently("dpkg", "--configure", "-a", "--force-confold")
        absent = [package for package in self.needed() if not is_installed(self.machine, package)]
        if absent:
            update(self.machine)
            install(self.machine, *absent)

    def versions(self) -> dict[str, Any]:
        return {"apt": self.machine.answer("dpkg-query", "-W", "-f=${Version}", "apt")}

    def needed(self) -> list[str]:
        """What deploy/install needs beside these it brings itself."""
        needed = ["ca-certificates", "e2fsprogs"]
        if not self.settings.python:
            needed.append("python3-venv")
        if not self.machine.baking and len(scratch_candidates(self.machine, self.settings.scratch_disks)) > 1:
            needed.append("mdadm")
        return needed
