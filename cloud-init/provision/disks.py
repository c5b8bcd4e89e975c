"""Block devices: what they are, and whether anybody has something on them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .machine import Machine, ProvisionFailed

SCRATCH_MODELS = ("Amazon EC2 NVMe Instance Storage", "Microsoft NVMe Direct Disk")
"""Beginnings of what providers call disks that die with the machine. Volumes that outlive it have other names."""
SCRATCH_NAMES = ("/dev/disk/by-id/google-local-nvme-ssd-*", "/dev/disk/by-id/google-local-ssd-*")
NOTHING_FOUND = 2
"""blkid's status for a device without any signature."""


@dataclass(frozen=True)
class Disk:
    device: str
    """/dev/NAME, below no link."""
    mounted_at: str = ""
    partitions: tuple[str, ...] = ()
    holders: tuple[str, ...] = ()
    """md or LVM devices made of it."""
    type: str = ""
    """File system, RAID member or partition table; empty: blank."""
    label: str = ""

    @property
    def is_blank(self) -> bool:
        return not (self.mounted_at or self.partitions or self.holders or self.type)

    @property
    def what_is_on_it(self) -> str:
        if self.mounted_at:
            return f"mounted at {self.mounted_at}"
        if self.partitions:
            return f"partitions {', '.join(self.partitions)}"
        if self.holders:
            return f"part of {', '.join(self.holders)}"
        return f"{self.type}{f' labelled {self.label}' if self.label else ''}" if self.type else "nothing"


def look_at(machine: Machine, path: str) -> Disk:
    """Raises ProvisionFailed where there is no such device, or where it cannot be told what is on it."""
    place = machine.path(path)
    if not place.exists():
        raise ProvisionFailed(f"{path} is not there", "attach the disk, or name it as `ls -l /dev/disk/by-id` does")
    name = os.path.realpath(place).rsplit("/", 1)[-1]
    device = f"/dev/{name}"
    block = machine.path(f"/sys/class/block/{name}")
    said = machine.ask("blkid", "-p", "-o", "export", device)
    if said.status not in (0, NOTHING_FOUND):
        raise ProvisionFailed(
            f"{device}: blkid cannot tell what is on it ({said.status}): {said.output.strip()}",
            "if nothing on it is needed: wipefs --all DEVICE",
        )
    found = dict(line.split("=", 1) for line in said.output.splitlines() if "=" in line) if said.status == 0 else {}
    holders = block / "holders"
    return Disk(
        device=device,
        mounted_at=mount_point(machine, device),
        partitions=tuple(sorted(part.parent.name for part in block.glob("*/partition"))),
        holders=tuple(sorted(holder.name for holder in holders.iterdir())) if holders.is_dir() else (),
        type=found.get("TYPE")
        or (f"partition table {found['PTTYPE']}" if "PTTYPE" in found else "")
        or found.get("USAGE", ""),
        label=found.get("LABEL", ""),
    )


def mount_point(machine: Machine, device: str) -> str:
    for line in machine.read("/proc/mounts").splitlines():
        source, point = line.split(" ")[:2]
        if source == device or (
            source.startswith("/dev/") and os.path.realpath(machine.path(source)) == str(machine.path(device))
        ):
            return point
    return ""


def is_mounted(machine: Machine, point: str) -> bool:
    return any(line.split(" ")[1] == point for line in machine.read("/proc/mounts").splitlines())


def scratch_candidates(machine: Machine, globs: tuple[str, ...]) -> list[str]:
    """Devices that are known to hold nothing of worth: by model, by name, or by the owner's own word. Sorted."""
    return sorted(
        {*_by_model(machine), *(_device(machine, path) for path in _by_name(machine, (*SCRATCH_NAMES, *globs)))}
    )


def _by_model(machine: Machine) -> Iterator[str]:
    blocks = machine.path("/sys/class/block")
    for block in sorted(blocks.iterdir()) if blocks.is_dir() else ():
        model = machine.read(f"/sys/class/block/{block.name}/device/model").strip()
        if model.startswith(SCRATCH_MODELS) and not (block / "partition").exists():
            yield f"/dev/{block.name}"


def _by_name(machine: Machine, globs: tuple[str, ...]) -> Iterator[Path]:
    for pattern in globs:
        for path in machine.root.glob(pattern.lstrip("/")):
            if "-part" not in path.name:
                yield path


def _device(machine: Machine, path: Path) -> str:
    return f"/dev/{os.path.realpath(path).rsplit('/', 1)[-1]}"
