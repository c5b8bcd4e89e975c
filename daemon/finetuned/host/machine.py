"""What this machine has: GPUs as NVML sees them (never through torch), memory, free disk, its boot's identity."""

import os
from functools import cache
from pathlib import Path

import pynvml

from finetuned.core.plan import Device, Machine


@cache
def boot_id() -> str:
    """The kernel's random id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def look_at(spool: Path, cpu_slots: int = 1) -> Machine:
    """This machine, with `cpu_slots` CPU devices where there is no NVIDIA GPU."""
    gpus, driver = _nvidia_devices()
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    disk = os.statvfs(spool)
    return Machine(
        devices=gpus or tuple(_cpu_device(slot, memory_bytes // cpu_slots) for slot in range(cpu_slots)),
        memory_bytes=memory_bytes,
        free_disk_bytes=disk.f_bavail * disk.f_frsize,
        driver_version=driver,
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


def _nvidia_devices() -> tuple[tuple[Device, ...], str | None]:
    """GPUs and driver version; none where there is no driver. bf16 needs compute capability 8.0 (Ampere)."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return (), None
    try:
        devices = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            major, _minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
            devices.append(
                Device(
                    id=f"cuda:{index}",
                    name=pynvml.nvmlDeviceGetName(handle),
                    memory_bytes=pynvml.nvmlDeviceGetMemoryInfo(handle).total,
                    has_bf16=major >= 8,
                )
            )
        return tuple(devices), pynvml.nvmlSystemGetDriverVersion()
    finally:
        pynvml.nvmlShutdown()
