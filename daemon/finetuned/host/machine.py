"""What this machine has: GPUs as NVML sees them (never through torch), memory, free disk, its boot's identity."""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

from finetuned.core.plan import Device, Machine
from finetuned.host import nvml

_PCI_DEVICES = Path("/sys/bus/pci/devices")
_DRIVER = nvml.Driver()


@cache
def boot_id() -> str:
    """The kernel's random id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def ask_driver() -> nvml.Answer:
    """What NVML says, in bounded time; that there is no driver where there is none."""
    return _DRIVER.ask() if nvml.has_library() else nvml.Answer(absent="no driver is installed")


def look_at(
    spool: Path,
    cpu_slots: int = 1,
    ask: Callable[[], nvml.Answer] = ask_driver,
    pci: Path = _PCI_DEVICES,
) -> Machine:
    """This machine, with `cpu_slots` CPU devices where there is no NVIDIA card; a card that fails is `trouble`."""
    answer = ask()
    trouble = _trouble(answer, pci)
    gpus = tuple(
        Device(id=f"cuda:{gpu.index}", name=gpu.name, memory_bytes=gpu.memory_bytes, has_bf16=gpu.has_bf16)
        for gpu in answer.gpus
    )
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    disk = os.statvfs(spool)
    cpus = tuple(_cpu_device(slot, memory_bytes // cpu_slots) for slot in range(cpu_slots))
    return Machine(
        devices=gpus if gpus or trouble else cpus,
        memory_bytes=memory_bytes,
        free_disk_bytes=disk.f_bavail * disk.f_frsize,
        driver_version=answer.driver_version,
        trouble=trouble,
    )


def _trouble(answer: nvml.Answer, pci: Path) -> str:
    """What is wrong with the cards of this machine; empty where all answer, or there is none."""
    if not answer.absent:
        return "; ".join(answer.troubles)
    cards = _nvidia_cards(pci)
    return f"NVIDIA card {cards[0]} is there and its driver does not answer ({answer.absent})" if cards else ""


def _cpu_device(slot: int, memory_bytes: int) -> Device:
    return Device(id=f"cpu:{slot}", name="CPU", memory_bytes=memory_bytes, has_bf16=_cpu_has_bf16())


@cache
def _cpu_has_bf16() -> bool:
    """AVX512-BF16 or AMX: there bf16 products are twice as fast as fp32 ones, elsewhere they are emulated."""
    try:
        flags = Path("/proc/cpuinfo").read_text().split("flags", 1)[1].split("\n", 1)[0].split()
    except (OSError, IndexError):
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def _nvidia_cards(pci: Path) -> list[str]:
    """Addresses of NVIDIA display and 3D controllers on the bus, driver or not."""
    found = []
    for device in sorted(pci.glob("*")):
        try:
            vendor, kind = (device / "vendor").read_text().strip(), (device / "class").read_text().strip()
        except OSError:
            continue
        if vendor == "0x10de" and kind.startswith("0x03"):
            found.append(device.name)
    return found
