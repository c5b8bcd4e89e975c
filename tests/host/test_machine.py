"""What this machine has, as NVML tells it; a card that fails is trouble, never a silent night on the CPU."""

from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from finetuned.host.machine import look_at


class FakeNvml:
    """Two GPUs of an older and a newer kind; `lost` do not answer, `driver` is what nvmlInit raises."""

    def __init__(self, lost: tuple[int, ...] = (), driver: int | None = None):
        self._lost, self._driver = lost, driver

    def nvmlInit(self):
        if self._driver is not None:
            raise pynvml.NVMLError(self._driver)

    def nvmlShutdown(self):
        pass

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        if index in self._lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return index

    def nvmlDeviceGetCudaComputeCapability(self, handle):
        return (7, 0) if handle == 0 else (9, 0)

    def nvmlDeviceGetName(self, handle):
        return f"GPU {handle}"

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(total=80 * 10**9)

    def nvmlSystemGetDriverVersion(self):
        return "580.1"


@pytest.fixture
def a_card(tmp_path: Path) -> Path:
    """A PCI bus with a network card and an NVIDIA 3D controller."""
    for name, vendor, kind in (("0000:00:01.0", "0x8086", "0x020000"), ("0000:17:00.0", "0x10de", "0x030200")):
        device = tmp_path / "pci" / name
        device.mkdir(parents=True)
        (device / "vendor").write_text(vendor + "\n")
        (device / "class").write_text(kind + "\n")
    return tmp_path / "pci"


def test_each_gpu_is_a_device_with_its_memory_and_bf16_from_ampere_on(tmp_path):
    machine = look_at(tmp_path, nvml=FakeNvml())
    assert [(device.id, device.has_bf16) for device in machine.devices] == [("cuda:0", False), ("cuda:1", True)]
    assert machine.devices[0].memory_bytes == 80 * 10**9
    assert (machine.driver_version, machine.trouble) == ("580.1", "")


def test_a_gpu_that_fell_off_the_bus_is_trouble_and_the_other_one_works_on(tmp_path):
    machine = look_at(tmp_path, nvml=FakeNvml(lost=(0,)))
    assert [device.id for device in machine.devices] == ["cuda:1"]
    assert "GPU 0 does not answer" in machine.trouble


def test_a_card_whose_driver_is_not_loaded_leaves_no_device_rather_than_the_cpu(tmp_path, a_card):
    machine = look_at(tmp_path, nvml=FakeNvml(driver=pynvml.NVML_ERROR_DRIVER_NOT_LOADED), pci=a_card)
    assert machine.devices == ()
    assert "0000:17:00.0" in machine.trouble
    assert "driver" in machine.trouble.lower()


def test_without_a_card_the_cpu_is_used_in_as_many_slots_as_the_settings_say(tmp_path):
    machine = look_at(tmp_path, 2, nvml=FakeNvml(driver=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND), pci=tmp_path)
    assert [device.id for device in machine.devices] == ["cpu:0", "cpu:1"]
    assert machine.trouble == ""
    assert not machine.has_gpu
