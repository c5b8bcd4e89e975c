"""All stages one after the other on a machine of stubs: what is done, in which order, and what is left behind."""

import subprocess
import sys
from dataclasses import replace

import pytest
from provision.machine import ProvisionFailed

from blank_machine import CLOUD_INIT, BlankMachine

GATE = "etc/systemd/system/finetuned.service.d/10-provisioned.conf"
STAGES = ("preflight", "apt", "driver", "fabric", "holds", "scratch", "software", "verify")


def installations(blank: BlankMachine) -> list[str]:
    return [line for line in blank.asked("install") if "--check" not in line]


def with_a_gpu(blank: BlankMachine) -> BlankMachine:
    blank.has_gpus()
    blank.has_driver("580.105.08")
    return blank


def test_a_machine_without_a_gpu_is_provisioned_for_the_cpu_and_says_so(blank: BlankMachine, capsys):
    assert blank.provision() == 0
    assert blank.stamp("done")["mode"] == "cpu-only"
    assert "provisioned: release 1.2.3 on debian 12, kernel 6.1.0-41-cloud-amd64; CPU only" in capsys.readouterr().out
    assert installations(blank) == [f"install --cpu --user anna --root {blank.root}"]


def test_a_machine_with_a_gpu_says_which(blank: BlankMachine, capsys):
    assert with_a_gpu(blank).provision() == 0
    assert blank.stamp("done")["gpus"] == ["NVIDIA H100 80GB HBM3"]
    assert capsys.readouterr().out.endswith("; driver 580.105.08, NVIDIA H100 80GB HBM3\n")
    assert installations(blank) == [f"install --user anna --root {blank.root}"]


def test_each_stage_leaves_a_stamp_with_versions_and_seconds(blank: BlankMachine):
    with_a_gpu(blank).provision()
    for name in STAGES:
        stamp = blank.stamp(f"{name}.json")
        assert stamp["release"] == "1.2.3"
        assert stamp["seconds"] >= 0
        assert stamp["versions"]
    assert blank.stamp("driver.json")["versions"]["driver"] == "580.105.08"


def test_a_second_run_changes_nothing(blank: BlankMachine):
    with_a_gpu(blank).provision()
    before = blank.everything()
    blank.forget()
    assert blank.provision() == 0
    assert blank.changed() == []
    assert blank.everything() == before


def test_a_check_says_what_is_missing_and_changes_nothing(blank: BlankMachine, capsys):
    with_a_gpu(blank)
    before = blank.everything()
    assert blank.check() == 1
    said = capsys.readouterr().out
    assert "software   release 1.2.3 to install" in said
    assert "holds" in said
    assert blank.everything() == before
    assert blank.changed() == []


def test_a_check_of_a_whole_machine_says_so(blank: BlankMachine, capsys):
    blank.provision()
    capsys.readouterr()
    assert blank.check() == 0
    assert capsys.readouterr().out == "whole: release 1.2.3\n"


def test_a_check_names_a_stage_that_nothing_can_help(blank: BlankMachine, capsys):
    blank.has_gpus()
    blank.has_driver("550.163.01")
    assert blank.check() == 1
    assert "driver     driver 550.163.01 is too old" in capsys.readouterr().out


def test_the_daemon_is_gated_on_the_stamp_before_it_is_installed(blank: BlankMachine):
    blank.does("install --", files={"seen-at-install": "yes"})
    blank.provision()
    assert blank.read(GATE).endswith("ConditionPathExists=/var/lib/finetuned/provision/done\n")
    asked = blank.asked()
    assert asked.index("systemctl daemon-reload") < asked.index(installations(blank)[0])


def test_the_daemon_starts_only_after_all_stages(blank: BlankMachine):
    blank.provision()
    assert blank.changed()[-1] == "systemctl start finetuned.service"


def test_a_doctor_who_finds_something_takes_the_stamp_back_and_the_daemon_down(blank: BlankMachine):
    blank.put("usr/local/bin/finetunectl", "#!/bin/sh\necho fail spool; exit 1\n", executable=True)
    with pytest.raises(ProvisionFailed, match="fail spool"):
        blank.provision()
    assert blank.stamp("done") == {}
    assert blank.asked()[-1] == "systemctl stop finetuned.service"
    assert blank.stamp("failure.json")["stage"] == "start"


def test_a_stage_whose_work_does_not_help_fails_by_name(blank: BlankMachine):
    blank.says("dpkg-query .*python3-venv", "", 1)
    blank.archive({"python3-venv": "1"})
    with pytest.raises(ProvisionFailed, match="python3-venv"):
        blank.provision()
    failure = blank.stamp("failure.json")
    assert failure["stage"] == "apt"
    assert "after doing all it can" in failure["reason"]
    assert installations(blank) == []


def test_an_installer_that_failed_is_run_again_the_next_time(blank: BlankMachine):
    for half in ("daemon", "worker"):
        blank.put(f"opt/finetuned/releases/1.2.3-abc/{half}/bin/python", "")
    (blank.root / "opt/finetuned/current").symlink_to("releases/1.2.3-abc")
    blank.says("install (?!--check)", "no room on the disk", 1)
    with pytest.raises(ProvisionFailed, match="no room on the disk"):
        blank.provision()
    blank.says("install (?!--check)", "installed")
    assert blank.provision() == 0
    assert len(installations(blank)) == 2


def test_a_run_that_is_killed_is_not_explained_by_the_failure_of_an_earlier_one(blank: BlankMachine):
    blank.put("var/lib/finetuned/provision/failure.json", '{"stage": "driver", "reason": "long ago"}')
    blank.put("proc/net/route", "")
    with pytest.raises(KeyboardInterrupt):
        blank.provision(replace(blank.machine, sleep=killed))
    assert blank.stamp("failure.json") == {}


def killed(seconds: float) -> None:
    raise KeyboardInterrupt


def test_a_release_that_somebody_upgraded_is_left_alone(blank: BlankMachine):
    blank.provision()
    blank.put("opt/finetuned/releases/2.0.0-def/daemon/bin/python", "")
    blank.put("opt/finetuned/releases/2.0.0-def/worker/bin/python", "")
    (blank.root / "opt/finetuned/current").unlink()
    (blank.root / "opt/finetuned/current").symlink_to("releases/2.0.0-def")
    blank.says("install --check", "another release is current", 1)
    blank.forget()
    assert blank.provision() == 0
    assert blank.changed() == []


def test_options_of_the_user_data_reach_the_installer(blank: BlankMachine):
    blank.settings(python="/opt/python", wheelhouse="/wheels", worker_site="/site", users=["bert", "carla"], gpu="none")
    blank.provision()
    assert installations(blank) == [
        "install --python /opt/python --wheelhouse /wheels --worker-site /site --cpu --user bert --user carla "
        f"--root {blank.root}"
    ]


# apt and its timers.


def test_the_timers_of_apt_are_stopped_meanwhile_and_started_again(blank: BlankMachine):
    blank.says("systemctl is-active apt-daily", "active")
    blank.provision()
    changed = blank.changed()
    assert changed[0] == "systemctl stop apt-daily.timer apt-daily-upgrade.timer"
    assert changed[-1] == "systemctl start apt-daily.timer apt-daily-upgrade.timer"


def test_the_timers_of_apt_start_again_after_a_failure(blank: BlankMachine):
    blank.says("systemctl is-active apt-daily", "active")
    blank.runs("ubuntu", "22.04")
    with pytest.raises(ProvisionFailed):
        blank.provision()
    assert blank.changed()[-1] == "systemctl start apt-daily.timer apt-daily-upgrade.timer"


def test_a_package_system_that_was_interrupted_is_finished_first(blank: BlankMachine):
    blank.says("dpkg --audit", "The following packages are only half configured")
    blank.does("dpkg --configure", answers=[["dpkg --audit", 0, ""]])
    blank.provision()
    assert blank.changed()[0] == "dpkg --configure -a --force-confold"


def test_nothing_is_ever_upgraded_that_was_not_asked_for(blank: BlankMachine):
    with_a_gpu(blank).provision()
    assert not any("upgrade" in line for line in blank.asked("apt-get"))


# Reboots.


def in_need_of_a_reboot(blank: BlankMachine) -> BlankMachine:
    blank.has_gpus()
    blank.has_driver("580.105.08", nvml=18)
    return blank


def test_a_reboot_is_counted_before_it_is_asked_for(blank: BlankMachine):
    assert in_need_of_a_reboot(blank).provision() == 0
    assert blank.changed() == ["systemctl reboot"]
    assert blank.read("var/lib/finetuned/provision/reboots") == "1\n"
    assert blank.stamp("done") == {}


def test_it_goes_on_after_a_reboot(blank: BlankMachine):
    in_need_of_a_reboot(blank).provision()
    blank.has_driver("580.105.08")
    blank.provision()
    assert blank.stamp("done")["reboots"] == 1


def test_a_machine_that_needs_a_reboot_for_ever_gets_two(blank: BlankMachine):
    in_need_of_a_reboot(blank)
    assert [blank.provision(), blank.provision()] == [0, 0]
    with pytest.raises(ProvisionFailed, match=r"rebooted 2 times already.*NVML 18"):
        blank.provision()
    assert blank.changed() == ["systemctl reboot"] * 2
    assert blank.stamp("failure.json")["stage"] == "driver"


# Images.


def test_an_image_gets_no_stamp_no_daemon_and_no_disk(blank: BlankMachine, capsys):
    blank.settings(spool_disk="/dev/not-there")
    machine = blank.baking()
    assert blank.provision(machine) == 0
    assert "systemctl start finetuned.service" not in blank.asked()
    assert list((blank.root / "var/lib/finetuned/provision").iterdir()) == []
    assert "cloud-init clean" in capsys.readouterr().out


def test_a_baked_machine_proves_for_itself_that_it_is_whole(blank: BlankMachine):
    blank.provision(blank.baking())
    blank.forget()
    blank.provision()
    assert blank.stamp("done")
    assert installations(blank) == []


def test_an_image_that_needs_a_reboot_says_so_by_its_status(blank: BlankMachine):
    in_need_of_a_reboot(blank)
    assert blank.provision(blank.baking()) == 3
    assert "systemctl reboot" not in blank.asked()


# The program.


def program(blank: BlankMachine, *options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, CLOUD_INIT / "finetuned-provision", "--root", blank.root, *options]
    return subprocess.run(command, capture_output=True, text=True, env=blank.machine.environment)


def test_the_program_says_why_and_what_to_do_and_exits_1(blank: BlankMachine):
    blank.runs("ubuntu", "22.04")
    ended = program(blank)
    assert ended.returncode == 1
    assert "FAILED: Ubuntu 22.04 is not supported: its Python is 3.10" in ended.stderr
    assert "hint: choose an image of Ubuntu 24.04" in ended.stderr


def test_the_program_checks_without_touching_anything(blank: BlankMachine):
    before = blank.everything()
    ended = program(blank, "--check")
    assert ended.returncode == 1
    assert "missing  software" in ended.stdout
    assert blank.everything() == before
