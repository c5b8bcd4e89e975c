"""What NVIDIA hardware is on the PCI bus. No driver is needed to know."""

from __future__ import annotations

from .machine import Machine

NVIDIA = "0x10de"
GPU_CLASSES = ("0x0302", "0x0300")
"""3D controller, as data-centre cards are; and VGA controller, as workstation cards are."""
NVSWITCH_CLASS = "0x0680"


def find_gpus(machine: Machine) -> list[str]:
    """PCI addresses, sorted."""
    return _nvidia_devices(machine, GPU_CLASSES)


def find_nvswitches(machine: Machine) -> list[str]:
    return _nvidia_devices(machine, (NVSWITCH_CLASS,))


def _nvidia_devices(machine: Machine, classes: tuple[str, ...]) -> list[str]:
    bus = machine.path("/sys/bus/pci/devices")
    return sorted(
        device.name
        for device in (bus.iterdir() if bus.is_dir() else ())
        if machine.read(f"/sys/bus/pci/devices/{device.name}/vendor").strip() == NVIDIA
        and machine.read(f"/sys/bus/pci/devices/{device.name}/class").strip().startswith(classes)
    )
