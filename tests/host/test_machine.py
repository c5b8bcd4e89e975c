"""What this machine has, as NVML tells it; a card that fails is trouble, never a silent night on the CPU."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from finetuned.host import machine
from finetuned.host.nvml import Answer, Driver, Gpu, answer
from until import until


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


def look_at(spool: Path, cpu_slots: int = 1, *, nvml: FakeNvml, **where):
    return machine.look_at(spool, cpu_slots, lambda: answer(nvml), **where)


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
    found = look_at(tmp_path, nvml=FakeNvml())
    assert [(device.id, device.has_bf16) for device in found.devices] == [("cuda:0", False), ("cuda:1", True)]
    assert found.devices[0].memory_bytes == 80 * 10**9
    assert (found.driver_version, found.trouble) == ("580.1", "")


def test_a_gpu_that_fell_off_the_bus_is_trouble_and_the_other_one_works_on(tmp_path):
    found = look_at(tmp_path, nvml=FakeNvml(lost=(0,)))
    assert [device.id for device in found.devices] == ["cuda:1"]
    assert "GPU 0 does not answer" in found.trouble


def test_a_card_whose_driver_is_not_loaded_leaves_no_device_rather_than_the_cpu(tmp_path, a_card):
    found = look_at(tmp_path, nvml=FakeNvml(driver=pynvml.NVML_ERROR_DRIVER_NOT_LOADED), pci=a_card)
    assert found.devices == ()
    assert "0000:17:00.0" in found.trouble
    assert "driver" in found.trouble.lower()


def test_without_a_card_the_cpu_is_used_in_as_many_slots_as_the_settings_say(tmp_path):
    found = look_at(tmp_path, 2, nvml=FakeNvml(driver=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND), pci=tmp_path)
    assert [device.id for device in found.devices] == ["cpu:0", "cpu:1"]
    assert found.trouble == ""
    assert not found.has_gpu


def a_driver(program: str, seconds: float = 30.0) -> Driver:
    return Driver([sys.executable, "-c", program], seconds)


FAKE_PYNVML = """
from types import SimpleNamespace
class NVMLError(Exception): pass
def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlSystemGetDriverVersion(): return "580.1"
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(index):
    if index == 0: raise NVMLError("GPU is lost")
    return index
def nvmlDeviceGetCudaComputeCapability(handle): return 9, 0
def nvmlDeviceGetMemoryInfo(handle): return SimpleNamespace(total=80)
def nvmlDeviceGetName(handle): return "H100"
"""


def test_the_driver_is_asked_in_another_process_and_its_answer_comes_back_whole(tmp_path, monkeypatch):
    (tmp_path / "pynvml.py").write_text(FAKE_PYNVML)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert Driver().ask() == Answer(
        gpus=(Gpu(index=1, name="H100", memory_bytes=80, has_bf16=True),),
        driver_version="580.1",
        troubles=("GPU 0 does not answer (GPU is lost)",),
    )


def test_a_driver_that_never_answers_is_trouble_soon_and_may_be_asked_again_once_the_asking_process_is_dead():
    driver = a_driver("import time; time.sleep(600)", seconds=0.3)
    assert driver.ask().troubles == ("the NVIDIA driver does not answer (no answer in 0.3 s)",)
    until(lambda: "still waits" not in driver.ask().troubles[0])


def test_a_process_that_the_kernel_holds_is_named_and_not_joined_by_others(monkeypatch):
    monkeypatch.setattr(subprocess.Popen, "kill", lambda self: None)
    driver = a_driver("import os, time; os.write(2, b'x'); time.sleep(600)", seconds=0.3)
    driver.ask()
    said = driver.ask().troubles[0]
    held = int(said.split("process ")[1].split()[0])
    try:
        assert "has asked it and still waits" in said
        assert driver.ask().troubles == (said,)
    finally:
        os.kill(held, signal.SIGKILL)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import sys; sys.exit('Segfault, as it were')", "Segfault, as it were"),
        ("print('Warning: nonsense')", "'Warning: nonsense\\n'"),
        ("print('{\"gpus\": 3}')", '{"gpus": 3}'),
    ],
)
def test_whatever_else_comes_of_asking_is_trouble_that_says_what(program, said):
    assert said in a_driver(program).ask().troubles[0]


def test_a_driver_in_trouble_never_means_a_night_on_the_cpu_even_where_no_card_is_seen(tmp_path):
    found = machine.look_at(tmp_path, ask=a_driver("raise SystemExit(9)").ask, pci=tmp_path)
    assert found.devices == ()
    assert "does not answer" in found.trouble
