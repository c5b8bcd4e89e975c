"""Keeps driver and kernel as they are: an upgrade of one without the other is found out by the next job."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from .driver import driver_packages
from .hardware import find_gpus
from .machine import Machine
from .settings import Settings

BLACKLIST = "/etc/apt/apt.conf.d/52finetuned"
BLACKLIST_TEXT = """// Driver libraries, modules and kernel change together or not at all (finetuned-provision).
Unattended-Upgrade::Package-Blacklist { "nvidia-"; "libnvidia-"; "libcuda"; "linux-"; "cuda-"; };
"""
NEEDRESTART = "/etc/needrestart/conf.d/52-finetuned.conf"
NEEDRESTART_TEXT = """# A library upgrade must not restart a run (finetuned-provision).
$nrconf{override_rc}{qr(^finetuned)} = 0;
"""
KERNEL_METAPACKAGE = re.compile(
    r"linux-(image-|headers-|modules-nvidia-.+-)?(rt-|cloud-)?"
    r"(generic|virtual|aws|azure|gcp|oracle|ibm|nvidia|kvm|lowlatency|amd64|arm64)(-(64k|lts|hwe|edge|fips|\d\d\.\d\d))*"
)


@dataclass(frozen=True)
class Holds:
    machine: Machine
    settings: Settings
    name: str = "holds"

    def missing(self) -> list[str]:
        if not self.concerns():
            return []
        problems = []
        loose = self.loose()
        if loose:
            problems.append(f"packages to hold: {' '.join(loose)}")
        problems += [f"{place} to write" for place, text in self.files() if self.machine.read(place) != text]
        return problems

    def act(self) -> None:
        loose = self.loose()
        if loose:
            self.machine.do("apt-mark", "hold", *loose)
        for place, text in self.files():
            self.machine.write(place, text)

    def versions(self) -> dict[str, Any]:
        return {"held": self.machine.answer("apt-mark", "showhold").split()}

    def concerns(self) -> bool:
        """A machine without a GPU goes on taking its kernel upgrades."""
        return self.settings.gpu != "none" and bool(find_gpus(self.machine) or self.machine.baking)

    def loose(self) -> list[str]:
        said = self.machine.answer("dpkg-query", "-W", "-f=${db:Status-Abbrev} ${Package}\n", "linux-*")
        kernels = [fields[1] for fields in map(str.split, said.splitlines()) if fields[0][1:] == "i"]
        wanted = {*driver_packages(self.machine), *filter(KERNEL_METAPACKAGE.fullmatch, kernels)}
        return sorted(wanted - set(self.machine.answer("apt-mark", "showhold").split()))

    def files(self) -> list[tuple[str, str]]:
        has_needrestart = self.machine.path("/etc/needrestart").is_dir()
        return [(BLACKLIST, BLACKLIST_TEXT), *([(NEEDRESTART, NEEDRESTART_TEXT)] if has_needrestart else [])]
