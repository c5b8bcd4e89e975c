"""Disks: fast local ones for the caches, empty again after each stop of the machine; and a lasting one for the spool.

Nothing is ever written to a device that holds anything we did not put there.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from .disks import Disk, is_mounted, look_at, scratch_candidates
from .machine import Machine, ProvisionFailed
from .settings import Settings

CACHE = "/var/cache/finetuned"
"""Home and caches of the stages: what can be made again."""
SPOOL = "/var/spool/finetuned"
SCRATCH_LABEL, SPOOL_LABEL = "finetuned-cache", "finetuned-spool"
"""ext4 allows 16 bytes."""
RAID_NAME = "finetuned-cache"
RAID = f"/dev/md/{RAID_NAME}"


@dataclass(frozen=True)
class Scratch:
    machine: Machine
    settings: Settings
    name: str = "scratch"

    def missing(self) -> list[str]:
        if self.machine.baking:
            return []
        problems = []
        if self.settings.spool_disk and not is_mounted(self.machine, SPOOL):
            problems.append(f"{self.settings.spool_disk} to mount at {SPOOL}")
        if not is_mounted(self.machine, CACHE):
            usable = [disk.device for disk in self.usable_disks()]
            if usable:
                problems.append(f"{' '.join(usable)} to mount at {CACHE}")
        return problems

    def act(self) -> None:
        if self.settings.spool_disk and not is_mounted(self.machine, SPOOL):
            self.mount_spool(self.settings.spool_disk)
        if not is_mounted(self.machine, CACHE):
            self.mount_cache()

    def versions(self) -> dict[str, Any]:
        return {"mounted": [point for point in (CACHE, SPOOL) if is_mounted(self.machine, point)]}

    def mount_spool(self, path: str) -> None:
        disk = look_at(self.machine, path)
        if disk.mounted_at:
            raise ProvisionFailed(f"{path} is mounted at {disk.mounted_at}; it should be at {SPOOL}", "umount it")
        if disk.label != SPOOL_LABEL:
            if not disk.is_blank:
                raise ProvisionFailed(
                    f"{path} holds something that is not ours: {disk.what_is_on_it}",
                    f"if it is a spool: e2label {path} {SPOOL_LABEL}; if nothing on it is needed: wipefs --all {path}",
                )
            self.machine.do("mkfs.ext4", "-q", "-m", "0", "-L", SPOOL_LABEL, disk.device)
        self.mount(disk.device, SPOOL)

    def mount_cache(self) -> None:
        disks = self.usable_disks()
        members = [disk for disk in disks if disk.type == "linux_raid_member"]
        if members:
            if not self.machine.path(RAID).exists():
                self.machine.do("mdadm", "--assemble", RAID, *(disk.device for disk in members))
            self.mount(RAID, CACHE)
        elif any(disk.label == SCRATCH_LABEL for disk in disks):
            self.mount(next(disk.device for disk in disks if disk.label == SCRATCH_LABEL), CACHE)
        elif disks:
            device = self.joined([disk.device for disk in disks])
            # No discard: on terabytes of NVMe it takes minutes, and the disk is new.
            self.machine.do("mkfs.ext4", "-q", "-m", "0", "-E", "nodiscard", "-L", SCRATCH_LABEL, device)
            self.mount(device, CACHE)
        self.give_to_service()

    def joined(self, devices: list[str]) -> str:
        if len(devices) == 1:
            return devices[0]
        self.machine.do(
            *("mdadm", "--create", RAID, "--run", "--level=0", "--homehost=any", f"--name={RAID_NAME}"),
            *(f"--raid-devices={len(devices)}", *devices),
        )
        return RAID

    def mount(self, device: str, point: str) -> None:
        self.machine.path(point).mkdir(parents=True, exist_ok=True)
        self.machine.do("mount", "-o", "noatime", device, point)

    def usable_disks(self) -> list[Disk]:
        """Blank ones, and ours from an earlier boot; each of the others is told."""
        usable = []
        for device in scratch_candidates(self.machine, self.settings.scratch_disks):
            try:
                disk = look_at(self.machine, device)
            except ProvisionFailed as failed:
                print(f"scratch: {failed}; left alone", flush=True)
                continue
            ours = disk.label.rsplit(":", 1)[-1] in (SCRATCH_LABEL, RAID_NAME) and not disk.mounted_at
            if disk.is_blank or ours:
                usable.append(disk)
            else:
                print(f"scratch: {device} is left alone, it holds something: {disk.what_is_on_it}", flush=True)
        return usable

    def give_to_service(self) -> None:
        """A new file system belongs to root; the caches are the service user's. Before the installer there is none."""
        for line in self.machine.read("/etc/passwd").splitlines():
            fields = line.split(":")
            if fields[0] == "finetuned" and is_mounted(self.machine, CACHE):
                os.chown(self.machine.path(CACHE), int(fields[2]), int(fields[3]))
                self.machine.path(CACHE).chmod(0o750)
