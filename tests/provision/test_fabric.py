"""NVSwitch machines: the fabric manager of exactly the driver's version, running, and a fabric that is complete."""

import pytest
from provision.fabric import Fabric, upstream
from provision.machine import ProvisionFailed

from blank_machine import NVSWITCH, BlankMachine

DRIVER = "580.105.08"
EXACT = f"{DRIVER}-0ubuntu0.24.04.1"


def a_board_of_eight(blank: BlankMachine) -> BlankMachine:
    """Driver loaded, CUDA not ready; the fabric comes up once its manager is started."""
    blank.has_gpus(8)
    blank.has_gpus(4, kind=NVSWITCH)
    blank.has_driver(DRIVER, cuda=802, fabric="1")
    blank.archive({"nvidia-fabricmanager-580": EXACT})
    blank.does(
        "systemctl restart nvidia-fabricmanager",
        files=blank.driver_files(DRIVER, fabric="3"),
        answers=[["systemctl is-enabled", 0, "enabled"], ["systemctl is-active", 0, "active"]],
    )
    return blank


def fabric(blank: BlankMachine) -> Fabric:
    return Fabric(blank.machine, blank.read_settings())


def test_the_manager_of_exactly_the_drivers_version_is_installed_and_started(blank: BlankMachine):
    stage = fabric(a_board_of_eight(blank))
    assert stage.missing() == [f"fabric manager {DRIVER}, exactly the driver's version"]
    stage.act()
    assert any(f"nvidia-fabricmanager-580={EXACT}" in line for line in blank.asked("apt-get"))
    assert "systemctl enable nvidia-fabricmanager.service" in blank.asked()
    assert stage.missing() == []
    assert stage.versions() == {"fabricmanager": [DRIVER]}


def test_a_manager_of_another_patch_version_is_replaced(blank: BlankMachine):
    a_board_of_eight(blank).packages({"nvidia-fabricmanager-580": "580.95.05-0ubuntu0.24.04.1"})
    assert fabric(blank).missing() == [f"fabric manager {DRIVER}, exactly the driver's version; installed: 580.95.05"]
    fabric(blank).act()
    assert fabric(blank).missing() == []


def test_an_archive_without_that_version_is_told_with_what_it_has(blank: BlankMachine):
    a_board_of_eight(blank).archive({"nvidia-fabricmanager-580": "580.126.01-0ubuntu0.24.04.1"})
    with pytest.raises(ProvisionFailed, match=r"580\.105\.08 \(offered: 580\.126\.01"):
        fabric(blank).act()


def test_a_fabric_that_never_completes_is_waited_for_and_told(blank: BlankMachine):
    a_board_of_eight(blank).does(
        "systemctl restart nvidia-fabricmanager", files=blank.driver_files(DRIVER, cuda=802, fabric="2")
    )
    fabric(blank).act()
    assert sum(blank.slept) == 180
    assert fabric(blank).missing() == ["the fabric of 8 of 8 GPUs is not complete", "no CUDA context: error 802"]


def test_a_machine_without_a_switch_needs_none(blank: BlankMachine):
    blank.has_gpus(1)
    blank.has_driver(DRIVER)
    assert fabric(blank).missing() == []


def test_nvidias_repository_has_the_manager_under_a_name_without_branch(blank: BlankMachine):
    a_board_of_eight(blank).archive({"nvidia-fabricmanager": f"{DRIVER}-1"})
    blank.put("etc/apt/sources.list.d/cuda-debian12-x86_64.list", "deb ...")
    fabric(blank).act()
    assert any(f"nvidia-fabricmanager={DRIVER}-1" in line for line in blank.asked("apt-get"))


@pytest.mark.parametrize("version", [DRIVER, EXACT, f"1:{DRIVER}-1"])
def test_the_upstream_part_of_a_version_is_the_drivers(version: str):
    assert upstream(version) == DRIVER
