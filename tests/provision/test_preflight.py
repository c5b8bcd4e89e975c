"""Machines that are refused at once, with what to rent instead."""

import os
import time
from types import SimpleNamespace

import pytest
from provision.machine import ProvisionFailed
from provision.preflight import Preflight
from provision.settings import read_settings

from blank_machine import BlankMachine


def preflight(blank: BlankMachine) -> list[str]:
    return Preflight(blank.machine, blank.read_settings()).missing()


@pytest.mark.parametrize("system", [("ubuntu", "24.04"), ("ubuntu", "26.04"), ("debian", "12"), ("debian", "13")])
def test_four_systems_are_known(blank: BlankMachine, system: tuple[str, str]):
    blank.runs(*system)
    assert preflight(blank) == []


def test_ubuntu_22_04_is_refused_by_name_with_the_reason(blank: BlankMachine):
    blank.runs("ubuntu", "22.04")
    with pytest.raises(ProvisionFailed, match=r"22\.04.*Python is 3\.10") as failed:
        preflight(blank)
    assert "24.04" in failed.value.hint


@pytest.mark.parametrize("system", [("debian", "11"), ("fedora", "43"), ("", "")])
def test_other_systems_are_refused_naming_those_that_are_known(blank: BlankMachine, system: tuple[str, str]):
    blank.runs(*system)
    with pytest.raises(ProvisionFailed, match=r"ubuntu 24\.04, ubuntu 26\.04, debian 12, debian 13 are"):
        preflight(blank)


def test_a_disk_that_is_too_small_is_told_with_both_numbers(blank: BlankMachine, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=2e9))
    with pytest.raises(ProvisionFailed, match=r"2\.0 GB free; the release needs 4 GB"):
        preflight(blank)
    blank.has_gpus()
    with pytest.raises(ProvisionFailed, match="needs 15 GB"):
        preflight(blank)
    blank.settings(worker_site="/site")
    assert preflight(blank) == []


def test_a_gpu_that_was_paid_for_and_is_not_there_is_a_failure(blank: BlankMachine):
    blank.settings(gpu="required")
    with pytest.raises(ProvisionFailed, match="no NVIDIA GPU is on the PCI bus"):
        preflight(blank)


def test_a_clock_before_the_image_was_made_is_wrong(blank: BlankMachine):
    blank.put("var/lib/dpkg/status", "")
    assert preflight(blank) == []
    later = time.time() + 10 * 86400
    os.utime(blank.root / "var/lib/dpkg/status", (later, later))
    assert "the clock is wrong" in preflight(blank)[0]


def test_a_network_is_waited_for_where_one_is_needed(blank: BlankMachine):
    blank.put("proc/net/route", "Iface Destination Gateway\n")
    assert preflight(blank) == ["no default route to a network"]
    with pytest.raises(ProvisionFailed, match="no default route"):
        blank.provision()
    assert sum(blank.slept) == 120


def test_a_route_over_ipv6_alone_will_do(blank: BlankMachine):
    blank.put("proc/net/route", "")
    reject = f"{'0' * 32} 00 {'0' * 32} 00 {'0' * 32} ffffffff 00000001 00000000 00200200 lo"
    blank.put("proc/net/ipv6_route", reject + "\n")
    assert preflight(blank) == ["no default route to a network"]
    blank.put("proc/net/ipv6_route", f"{reject}\n{reject.replace('lo', 'eth0')}\n")
    assert preflight(blank) == []


def test_no_network_is_needed_where_the_wheels_are_here(blank: BlankMachine):
    blank.put("proc/net/route", "")
    blank.settings(wheelhouse="/wheels")
    assert preflight(blank) == []


def test_a_driver_needs_the_network_though_the_wheels_are_here(blank: BlankMachine):
    blank.put("proc/net/route", "")
    blank.settings(wheelhouse="/wheels")
    blank.has_gpus()
    assert preflight(blank) == ["no default route to a network"]
    blank.has_driver("580.105.08")
    assert preflight(blank) == []


# The settings.


def test_all_problems_of_the_settings_are_told_at_once(blank: BlankMachine):
    blank.put("etc/finetuned/provision.json", '{"gpus": 8, "gpu": "maybe", "driver_branch": "580"}')
    with pytest.raises(ProvisionFailed) as failed:
        read_settings(blank.machine)
    for problem in ("gpus is not a known field", "gpu is 'maybe'; expected auto, required, none", "version is missing"):
        assert problem in str(failed.value)
    assert "driver_branch is '580'" in str(failed.value)


@pytest.mark.parametrize(("text", "word"), [("", "is not there"), ("{", "not valid JSON"), ("[]", "no object")])
def test_settings_that_cannot_be_read_are_told(blank: BlankMachine, text: str, word: str):
    blank.put("etc/finetuned/provision.json", text)
    with pytest.raises(ProvisionFailed, match=word):
        read_settings(blank.machine)
