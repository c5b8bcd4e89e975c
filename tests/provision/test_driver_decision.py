"""The driver: what is seen decides what is done. One line of the list in driver.py, one test."""

import pytest
from provision.driver import (
    NO_ANSWER,
    DriverState,
    Fine,
    InstallFromNvidia,
    InstallPrebuilt,
    Load,
    Probe,
    Reboot,
    Refuse,
    decide,
    next_kernel,
    observe,
    secure_boot,
)

from blank_machine import BlankMachine

WORKS = Probe(nvml=0, driver="580.105.08", cuda=0, cuda_devices=1)


def a_state(**facts) -> DriverState:
    """A blank Ubuntu with one GPU and nothing of a driver."""
    return DriverState(**{"gpus": 1, "kernel": "6.8.0-1021-aws", "prebuilt": True, **facts})


def with_driver(version: str = "580.105.08", probe: Probe = WORKS, **facts) -> DriverState:
    return a_state(loaded=version, on_disk=version, uvm_loaded=True, packages=("nvidia-utils",), probe=probe, **facts)


def test_without_a_gpu_nothing_is_done():
    assert decide(a_state(gpus=0)) == Fine("no NVIDIA GPU on the bus: CPU only")


def test_gpus_are_let_be_when_the_owner_says_so():
    assert isinstance(decide(a_state(wanted=False)), Fine)


def test_a_driver_that_makes_a_context_is_never_touched():
    assert isinstance(decide(with_driver()), Fine)
    assert isinstance(decide(with_driver("620.10.01", from_nvidia=True), branch=580, too_old="upgrade"), Fine)


def test_a_driver_on_disk_is_loaded():
    assert decide(a_state(on_disk="580.105.08")) == Load()


def test_a_driver_on_disk_waits_for_a_boot_while_nouveau_holds_the_gpu():
    assert isinstance(decide(a_state(on_disk="580.105.08", nouveau=True)), Reboot)


def test_a_driver_whose_uvm_module_is_not_loaded_is_loaded_again():
    state = a_state(loaded="580.105.08", on_disk="580.105.08", probe=Probe(nvml=0, cuda=999), uvm_loaded=False)
    assert decide(state) == Load()


def test_libraries_newer_than_the_module_are_cured_by_a_reboot_never_by_an_installation():
    action = decide(with_driver(probe=Probe(nvml=18)))
    assert isinstance(action, Reboot)
    assert "NVML 18" in action.why


def test_a_mismatch_is_asked_for_before_the_age():
    assert isinstance(decide(with_driver("535.230.02", probe=Probe(nvml=18))), Reboot)


def test_a_newer_module_on_disk_than_in_the_kernel_is_cured_by_a_reboot():
    assert isinstance(decide(a_state(loaded="535.1.1", on_disk="580.105.08", probe=Probe(nvml=0, cuda=0))), Reboot)


@pytest.mark.parametrize("version", ["535.230.02", "550.163.01", "570.86.15"])
def test_a_driver_below_the_floor_is_refused_with_its_number_and_a_way_out(version: str):
    action = decide(with_driver(version))
    assert isinstance(action, Refuse)
    assert version in action.why
    assert "580" in action.why
    assert "--upgrade-driver" in action.hint


def test_a_driver_below_the_floor_is_refused_before_it_is_loaded():
    assert isinstance(decide(a_state(on_disk="550.163.01")), Refuse)


def test_a_driver_below_the_floor_is_upgraded_where_the_owner_asked_for_it():
    assert decide(with_driver("550.163.01"), too_old="upgrade") == InstallPrebuilt(580)


def test_a_driver_that_no_package_holds_is_not_upgraded_over():
    state = a_state(loaded="550.163.01", on_disk="550.163.01", probe=WORKS)
    assert isinstance(decide(state, too_old="upgrade"), Refuse)


def test_ubuntu_gets_its_signed_prebuilt_modules():
    assert decide(a_state()) == InstallPrebuilt(580)
    assert decide(a_state(), branch=595) == InstallPrebuilt(595)


def test_secure_boot_is_no_obstacle_to_signed_modules():
    assert decide(a_state(secure_boot=True)) == InstallPrebuilt(580)


def test_secure_boot_without_signed_modules_is_refused_by_name():
    for state in (a_state(prebuilt=False, secure_boot=True), a_state(distribution="debian", secure_boot=True)):
        action = decide(state)
        assert isinstance(action, Refuse)
        assert "Secure Boot" in action.why


def test_ubuntu_without_modules_for_its_kernel_takes_nvidias():
    assert decide(a_state(prebuilt=False)) == InstallFromNvidia(580)


def test_debian_takes_nvidias_whatever_its_archive_has():
    assert decide(a_state(distribution="debian", prebuilt=True)) == InstallFromNvidia(580)


def test_a_machine_with_nvidias_repository_stays_with_it():
    assert decide(a_state(from_nvidia=True)) == InstallFromNvidia(580)


def test_the_driver_is_installed_for_the_kernel_that_boots_next():
    action = decide(a_state(next_kernel="6.8.0-1025-aws"))
    assert isinstance(action, Reboot)
    assert "6.8.0-1025-aws" in action.why


def test_packages_without_a_module_for_the_running_kernel_are_no_driver():
    assert decide(a_state(packages=("nvidia-headless-no-dkms-580-server-open",))) == InstallPrebuilt(580)


def test_a_module_without_its_libraries_gets_those_of_its_branch():
    state = a_state(loaded="595.91.07", on_disk="595.91.07", probe=Probe(nvml=12))
    assert decide(state, branch=580) == InstallPrebuilt(595)


def test_802_with_an_nvswitch_waits_for_the_fabric_manager():
    assert isinstance(decide(with_driver(nvswitches=4, probe=Probe(nvml=0, cuda=802))), Fine)


def test_802_without_an_nvswitch_is_the_providers_to_mend():
    action = decide(with_driver(probe=Probe(nvml=0, cuda=802)))
    assert isinstance(action, Refuse)
    assert "provider" in action.hint


@pytest.mark.parametrize(("probe", "word"), [
    (Probe(nvml=NO_ANSWER), "does not answer"),
    (Probe(nvml=15), "15"),
    (Probe(nvml=0, cuda=804), "804"),
])  # fmt: skip
def test_a_driver_that_is_there_and_fails_is_told_not_reinstalled(probe: Probe, word: str):
    action = decide(with_driver(probe=probe))
    assert isinstance(action, Refuse)
    assert word in action.why


def test_a_card_that_cuda_does_not_see_is_told():
    action = decide(with_driver(gpus=8, probe=Probe(nvml=0, cuda=0, cuda_devices=7)))
    assert isinstance(action, Refuse)
    assert "8 GPUs" in action.why


def test_an_image_gets_its_driver_without_a_gpu_in_sight():
    assert decide(a_state(gpus=0, baking=True)) == InstallPrebuilt(580)
    assert isinstance(decide(a_state(gpus=0, baking=True, on_disk="580.105.08")), Fine)


# What is seen.


def test_a_gpu_is_told_by_vendor_and_class_on_the_bus(blank: BlankMachine):
    blank.put("sys/bus/pci/devices/0000:99:00.0/vendor", "0x15b3\n")
    blank.put("sys/bus/pci/devices/0000:99:00.0/class", "0x030200\n")
    blank.put("sys/bus/pci/devices/0000:98:00.0/vendor", "0x10de\n")
    blank.put("sys/bus/pci/devices/0000:98:00.0/class", "0x040300\n")
    assert observe(blank.machine, blank.read_settings()).gpus == 0
    blank.has_gpus(2)
    blank.has_gpus(4, kind="0x068000")
    state = observe(blank.machine, blank.read_settings())
    assert (state.gpus, state.nvswitches) == (2, 4)


def test_the_driver_is_asked_by_a_real_context_and_not_by_nvidia_smi(blank: BlankMachine):
    blank.has_gpus(8)
    blank.has_driver("580.105.08", fabric="3")
    probe = observe(blank.machine, blank.read_settings()).probe
    assert (probe.nvml, probe.driver, probe.cuda, probe.cuda_devices) == (0, "580.105.08", 0, 8)
    assert probe.gpus == ("NVIDIA H100 80GB HBM3",) * 8
    assert probe.fabric == (3,) * 8
    assert blank.asked("nvidia-smi") == []


def test_a_context_that_cannot_be_made_is_seen_where_the_initialization_works(blank: BlankMachine):
    blank.has_gpus()
    blank.has_driver("580.105.08")
    blank.put("answers", blank.read("answers") + "context 2\n")
    assert observe(blank.machine, blank.read_settings()).probe.cuda == 2


def test_a_machine_without_libraries_is_told_from_one_whose_driver_fails(blank: BlankMachine):
    blank.has_gpus()
    assert observe(blank.machine, blank.read_settings()).probe == Probe(nvml=12, cuda=-1)


@pytest.mark.parametrize(("firmware", "on"), [(b"\6\0\0\0\1", True), (b"\6\0\0\0\0", False)])
def test_secure_boot_is_read_from_the_firmware(blank: BlankMachine, firmware: bytes, on: bool):
    assert secure_boot(blank.machine) is False
    path = blank.root / "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
    path.parent.mkdir(parents=True)
    path.write_bytes(firmware)
    assert secure_boot(blank.machine) is on


def test_the_kernel_of_the_next_boot_is_read_from_the_link_to_the_newest(blank: BlankMachine):
    assert next_kernel(blank.machine, "6.1.0-40-cloud-amd64") is None
    (blank.root / "vmlinuz").symlink_to("boot/vmlinuz-6.1.0-41-cloud-amd64")
    assert next_kernel(blank.machine, "6.1.0-40-cloud-amd64") == "6.1.0-41-cloud-amd64"
    assert next_kernel(blank.machine, "6.1.0-41-cloud-amd64") is None


def test_a_reboot_that_the_package_system_asks_for_is_heeded_where_a_kernel_is_the_reason(blank: BlankMachine):
    blank.put("run/reboot-required.pkgs", "libc6\n")
    assert next_kernel(blank.machine, "6.8.0-1021-aws") is None
    blank.put("run/reboot-required.pkgs", "libc6\nlinux-image-6.8.0-1025-aws\n")
    assert next_kernel(blank.machine, "6.8.0-1021-aws") == "linux-image-6.8.0-1025-aws"
