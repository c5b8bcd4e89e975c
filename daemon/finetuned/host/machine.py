"""What this machine has: GPUs as NVML sees them (never through torch), memory, free disk, its boot's identity."""

import os
from functools import cache
from pathlib import Path
from typing import Any

import pynvml

from finetuned.core.plan import Device, Machine

_PCI_DEVICES = Path("/sys/bus/pci/devices")


@cache
def boot_id() -> str:
    """The kernel's random id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def look_at(spool: Path, cpu_slots: int = 1, nvml: Any = pynvml, pci: Path = _PCI_DEVICES) -> Machine:
    """This machine, with `cpu_slots` CPU devices where there is no NVIDIA card; a card that fails is `trouble`."""
    gpus, driver, trouble = _nvidia_devices(nvml, pci)
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    disk = os.statvfs(spool)
    cpus = tuple(_cpu_device(slot, memory_bytes // cpu_slots) for slot in range(cpu_slots))
    return Machine(
        devices=gpus if gpus or trouble else cpus,
        memory_bytes=memory_bytes,
        free_disk_bytes=disk.f_bavail * disk.f_frsize,
        driver_version=driver,
        trouble=trouble,
    )


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


def _nvidia_devices(nvml: Any, pci: Path) -> tuple[tuple[Device, ...], str | None, str]:
    """GPUs that answer, the driver's version, and what is wrong with those that do not."""
    try:
        nvml.nvmlInit()
    except pynvml.NVMLError as error:
        cards = _nvidia_cards(pci)
        return (), None, f"NVIDIA card {cards[0]} is there and its driver does not answer ({error})" if cards else ""
    try:
        devices, troubles = [], []
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                devices.append(_nvidia_device(nvml, index))
            except pynvml.NVMLError as error:
                troubles.append(f"GPU {index} does not answer ({error})")
        return tuple(devices), nvml.nvmlSystemGetDriverVersion(), "; ".join(troubles)
    except pynvml.NVMLError as error:
        return (), None, f"the NVIDIA driver does not answer ({error})"
    finally:
        nvml.nvmlShutdown()


def _nvidia_device(nvml: Any, index: int) -> Device:
    """bf16 needs compute capability 8.0 (Ampere)."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    major, _minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Device(
        id=f"cuda:{index}",
        name=nvml.nvmlDeviceGetName(handle),
        memory_bytes=nvml.nvmlDeviceGetMemoryInfo(handle).total,
        has_bf16=major >= 8,
    )


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
