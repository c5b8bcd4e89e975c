"""Is this a machine that we know how to provision? Nothing here can be repaired; it can only be waited for."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from typing import Any

from .driver import loaded_version
from .hardware import find_gpus
from .machine import Machine, ProvisionFailed, System
from .settings import Settings

KNOWN = (("ubuntu", "24.04"), ("ubuntu", "26.04"), ("debian", "12"), ("debian", "13"))
NETWORK_WAIT_SECONDS = 120


@dataclass(frozen=True)
class Preflight:
    machine: Machine
    settings: Settings
    name: str = "preflight"

    def missing(self) -> list[str]:
        system = self.machine.system
        refuse_unknown(system)
        problems = []
        if self.settings.gpu == "required" and not find_gpus(self.machine) and not self.machine.baking:
            raise ProvisionFailed(
                "no NVIDIA GPU is on the PCI bus, and the settings say that there must be one",
                "wrong flavour or machine type? rent another one, or render with --gpu auto",
            )
        need, free = self.needed_bytes(), shutil.disk_usage(self.machine.root).free
        if free < need and not self.already_installed():
            raise ProvisionFailed(
                f"/ has {free / 1e9:.1f} GB free; the release needs {need / 1e9:.0f} GB", "rent a larger boot disk"
            )
        if time.time() < self.image_made() - 86400:
            made = time.strftime("%F", time.gmtime(self.image_made()))
            problems.append(f"the clock is wrong: it is before {made}, when this image was made")
        if self.needs_network() and not self.has_route():
            problems.append("no default route to a network")
        return problems

    def act(self) -> None:
        for _ in range(NETWORK_WAIT_SECONDS // 5):
            if not self.missing():
                return
            self.machine.sleep(5)

    def versions(self) -> dict[str, Any]:
        return {"system": str(self.machine.system), "kernel": self.machine.kernel}

    def needed_bytes(self) -> float:
        """Measured: the worker's environment with CUDA is 6 to 8 GB, its CPU build 1.5 GB, the daemon's 0.1 GB."""
        if self.settings.worker_site:
            return 0.3e9
        return 15e9 if find_gpus(self.machine) or self.settings.gpu == "required" else 4e9

    def already_installed(self) -> bool:
        return self.machine.path("/opt/finetuned/current").is_symlink()

    def needs_network(self) -> bool:
        needs_driver = self.settings.gpu != "none" and find_gpus(self.machine) and not loaded_version(self.machine)
        return bool(needs_driver) or not (self.settings.wheelhouse or self.already_installed())

    def image_made(self) -> float:
        """When packages were last changed, in seconds: no boot comes before that."""
        status = self.machine.path("/var/lib/dpkg/status")
        return status.stat().st_mtime if status.exists() else 0

    def has_route(self) -> bool:
        """IPv4: destination 0 with a gateway flag; IPv6: ::/0 that is not the kernel's reject entry on lo."""
        v4 = [line.split() for line in self.machine.read("/proc/net/route").splitlines()[1:]]
        v6 = [line.split() for line in self.machine.read("/proc/net/ipv6_route").splitlines()]
        return any(fields[1:2] == ["00000000"] for fields in v4) or any(
            fields[:2] == ["0" * 32, "00"] and fields[-1] != "lo" for fields in v6
        )


def refuse_unknown(system: System) -> None:
    if (system.name, system.version) in KNOWN:
        return
    names = ", ".join(f"{name} {version}" for name, version in KNOWN)
    if (system.name, system.version) == ("ubuntu", "22.04"):
        raise ProvisionFailed(
            "Ubuntu 22.04 is not supported: its Python is 3.10, and torch and finetuned need 3.11",
            "choose an image of Ubuntu 24.04; or install by hand: deploy/install --python /path/to/python3.12",
        )
    raise ProvisionFailed(f"{str(system) or 'this system'} is not supported; {names} are", "choose another image")
