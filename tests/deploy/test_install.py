"""deploy/install against a server in a folder: every way it can go, and what is left standing after each."""

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from servers import ROOT, Server
from until import until

NOBODY = 65534


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.remove()


@pytest.fixture(scope="module")
def template() -> Iterator[Server]:
    made = Server()
    ended = made.install(made.bundle("0.1.0"))
    assert ended.status == 0, ended
    yield made
    made.remove()


@pytest.fixture
def installed(template: Server) -> Iterator[Server]:
    """A server on which 0.1.0 runs."""
    made = template.copy()
    yield made
    made.remove()


def a_launch(server: Server, phase: str, number: int, release: str, stage: str = "train") -> Path:
    folder = server.root / "var/spool/finetuned" / phase / "20261130-120000-tone-00000001/launches"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{number:04}.json"
    python = f"{server.root}/opt/finetuned/releases/{release}/worker/bin/python"
    path.write_text(json.dumps({"format": 1, "number": number, "stage": stage, "release": python}))
    return path


# A blank server.


def test_a_blank_server_runs_the_release_when_the_installer_is_done(server: Server):
    ended = server.install(server.bundle("0.1.0"))
    assert ended.status == 0, ended
    assert server.release().startswith("0.1.0-")
    assert (server.root / "opt/finetuned/current/release.json").is_file()
    assert "systemctl restart finetuned.service" in server.asked()
    assert "systemctl enable --quiet finetuned.service" in server.asked()
    assert any(line.startswith("finetunectl doctor") for line in server.asked())


def test_links_are_relative_so_that_another_root_does_not_break_them(installed: Server):
    assert os.readlink(installed.root / "opt/finetuned/current") == f"releases/{installed.release()}"
    assert os.readlink(installed.root / "usr/local/bin/finetunectl") == "/opt/finetuned/current/daemon/bin/finetunectl"


def test_units_users_rules_and_folders_are_in_their_places(installed: Server):
    held = installed.snapshot()
    assert {
        "usr/local/lib/systemd/system/finetuned.service",
        "usr/local/lib/systemd/system/finetuned-train@.service",
        "usr/local/lib/systemd/system/finetuned.slice",
        "usr/local/lib/sysusers.d/finetuned.conf",
        "usr/local/lib/tmpfiles.d/finetuned.conf",
        "etc/polkit-1/rules.d/50-finetuned.rules",
        "srv/finetuned/models",
        "srv/finetuned/data",
        "var/spool/finetuned",
    } <= set(held)


def test_users_come_before_folders_and_units_are_read_before_the_daemon_starts(server: Server):
    server.install(server.bundle())
    order = [
        f"systemd-sysusers {server.root}/usr/local/lib/sysusers.d/finetuned.conf",
        f"systemd-tmpfiles --create {server.root}/usr/local/lib/tmpfiles.d/finetuned.conf",
        "systemctl daemon-reload",
        "systemctl restart finetuned.service",
    ]
    assert [line for line in server.asked() if line in order] == order


_NAMED_BY_THE_RULE = {
    *(f"finetuned-{stage}@.service" for stage in ("prepare", "rehearse", "train", "deliver")),
    "finetuned-stop-machine.service",
}


def test_the_rule_comes_once_systemd_has_read_every_unit_that_it_names(server: Server):
    """Newer systemd lets the daemon's user make a transient unit of a name that the rule allows and no file has."""
    server.install(server.bundle())
    first = server.read()[0]
    assert set(first) >= _NAMED_BY_THE_RULE
    assert "50-finetuned.rules" not in first
    assert (server.root / "etc/polkit-1/rules.d/50-finetuned.rules").is_file()


def test_the_rule_goes_before_the_first_unit_does(installed: Server):
    rule = installed.root / "etc/polkit-1/rules.d/50-finetuned.rules"
    units = installed.root / "usr/local/lib/systemd/system"
    blocked = [units / name for name in _NAMED_BY_THE_RULE]
    for path in blocked:
        path.unlink()
        path.mkdir()  # It cannot be removed as a file, and ends the uninstall there.
    listed = installed.root / "opt/finetuned/installed.json"
    said = json.loads(listed.read_text())
    listed.write_text(json.dumps(said | {"files": sorted(said["files"], reverse=True)}))
    assert installed.install(installed.bundle(), "--uninstall").status != 0
    assert not rule.exists()


def test_a_unit_that_goes_with_a_rollback_is_forgotten_by_systemd(installed: Server):
    bundle = installed.bundle("0.2.0")
    (bundle / "units/finetuned-new.service").write_text("[Service]\nExecStart=/bin/true\n")
    installed.install(bundle)
    installed.install(bundle, "--rollback")
    assert "finetuned-new.service" in installed.read()[-2]
    assert "finetuned-new.service" not in installed.read()[-1]


def test_the_release_keeps_the_folders_it_came_with_and_can_install_itself(installed: Server):
    release = installed.root / "opt/finetuned" / "current"
    assert {"units", "deploy", "cloud-init", "daemon", "worker"} <= {path.name for path in release.iterdir()}
    again = installed.install(release.resolve())
    assert again.status == 0, again
    assert "nothing had to be done" in again.said


def test_a_release_whose_python_went_with_a_distribution_upgrade_is_built_anew(installed: Server):
    first = installed.release()
    installed.says(python=[3, 13], cannot_import=["finetuned"])
    ended = installed.install(installed.root / "opt/finetuned/current")
    assert ended.status == 0, ended
    assert installed.release() != first


def test_missing_packages_are_installed_with_patience_for_the_lock(server: Server):
    server.says(packages={}, headers=False, venv=False)
    ended = server.install(server.bundle())
    assert ended.status == 0, ended
    installs = [line for line in server.asked("apt-get") if " install " in line]
    assert len(installs) == 1
    assert {"dbus", "polkitd", "python3.11-venv", "libsystemd-dev", "python3.11-dev"} <= set(installs[0].split())
    assert "DPkg::Lock::Timeout=300" in installs[0]
    assert "Acquire::Retries=3" in installs[0]


def test_nothing_is_compiled_where_the_wheelhouse_has_systemd_python(server: Server):
    server.says(packages={"dbus": "1", "polkitd": "122"}, headers=False)
    wheelhouse = server.folder / "wheels"
    wheelhouse.mkdir()
    (wheelhouse / "systemd_python-235-cp311-cp311-linux_x86_64.whl").touch()
    ended = server.install(server.bundle(), "--wheelhouse", str(wheelhouse))
    assert ended.status == 0, ended
    assert server.asked("apt-get") == []


def test_with_a_wheelhouse_no_index_is_asked(server: Server):
    wheelhouse = server.folder / "wheels"
    wheelhouse.mkdir()
    server.install(server.bundle(), "--wheelhouse", str(wheelhouse))
    fetching = [line for line in server.asked("python") if " pip " in line]
    assert len(fetching) == 4
    assert all(f"--no-index --find-links {wheelhouse}" in line for line in fetching)


@pytest.mark.parametrize("words", [(), ("--check",)])
def test_a_checkout_with_a_wheelhouse_that_lacks_setuptools_says_what_to_put_there(
    server: Server, words: tuple[str, ...]
):
    wheelhouse = server.folder / "wheels"
    wheelhouse.mkdir()
    (wheelhouse / "setuptools-68.2.2-py3-none-any.whl").touch()
    ended = server.install(ROOT, "--wheelhouse", str(wheelhouse), *words)
    assert ended.status == 1
    assert f"{wheelhouse} holds no wheel of setuptools 77 or newer" in ended.said
    assert f"pip download -d {wheelhouse} 'setuptools>=77'" in ended.said
    assert server.asked("apt-get") == []
    (wheelhouse / "setuptools-77.0.3-py3-none-any.whl").touch()
    assert re.search(r"missing +release +build", server.install(ROOT, "--wheelhouse", str(wheelhouse), "--check").said)


def test_packages_that_cannot_be_had_are_named_and_nothing_is_installed(server: Server):
    server.says(packages={"dbus": "1"}, apt_fails=True)
    ended = server.install(server.bundle())
    assert ended.status == 1
    assert "could not be had: polkitd libsystemd-dev" in ended.said
    assert server.release() is None


def test_everything_that_pip_installs_is_pinned(server: Server):
    server.install(server.bundle())
    installs = [line for line in server.asked("python") if " pip " in line and " install " in line]
    assert installs
    assert all("--constraint " in line for line in installs)


# The GPU.


def torch_install(server: Server) -> str:
    return next(line for line in server.asked("python") if "torch==" in line)


def test_a_server_with_an_nvidia_card_gets_torch_for_it(server: Server):
    server.says(gpu=True)
    ended = server.install(server.bundle())
    assert "torch for NVIDIA GPUs" in ended.said
    assert "index" not in torch_install(server)


def test_a_card_without_a_driver_is_seen_on_the_bus(server: Server):
    device = server.root / "sys/bus/pci/devices/0000:17:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030200\n")
    assert "torch for NVIDIA GPUs" in server.install(server.bundle(), "--check").said


def test_cpu_is_taken_at_its_word_beside_a_card(server: Server):
    server.says(gpu=True)
    assert "torch for the CPU" in server.install(server.bundle(), "--cpu", "--check").said


def test_a_worker_site_stands_in_for_the_training_packages(server: Server):
    site = server.folder / "site"
    site.mkdir()
    ended = server.install(server.bundle(), "--worker-site", str(site))
    assert ended.status == 0, ended
    links = list((server.root / "opt/finetuned/current/worker/lib").rglob("*.pth"))
    assert [link.read_text() for link in links] == [f"{site}\n"]
    assert not any("[train" in line for line in server.asked("python"))


@pytest.mark.parametrize("lacking", ["torch", "transformers", "peft"])
def test_a_worker_that_cannot_import_its_packages_is_no_release(server: Server, lacking: str):
    server.says(cannot_import=[lacking])
    ended = server.install(server.bundle())
    assert ended.status == 1
    assert f"No module named '{lacking}'" in ended.said
    assert server.release() is None


# Once more.


def test_a_second_run_changes_nothing_and_says_so(server: Server):
    bundle = server.bundle()
    server.install(bundle, "--user", "lena")
    before = server.snapshot()
    server.forget()
    ended = server.install(bundle, "--user", "lena")
    assert ended.status == 0, ended
    assert "nothing had to be done" in ended.said
    assert server.snapshot() == before
    assert not any(" pip " in line or "restart" in line or "reload" in line for line in server.asked())


def test_a_rebuilt_wheel_of_the_same_version_is_another_release(installed: Server):
    first = installed.release()
    assert installed.install(installed.bundle("0.1.0", code="# mended")).status == 0
    assert installed.release() != first
    assert installed.release("previous") == first


def test_other_units_in_a_bundle_of_the_same_version_are_another_release(installed: Server):
    first, bundle = installed.release(), installed.bundle("0.1.0")
    (bundle / "units/finetuned.slice").write_text("[Slice]\nMemoryHigh=50%\n")
    assert installed.install(bundle).status == 0
    assert installed.release() != first
    assert "MemoryHigh" in (installed.root / "usr/local/lib/systemd/system/finetuned.slice").read_text()


def test_a_daemon_that_is_down_is_started_by_a_second_run(installed: Server):
    installed.says(active="failed")
    ended = installed.install(installed.root / "opt/finetuned/current")
    assert ended.status == 0, ended
    assert "start finetuned.service, which is failed" in ended.said


def test_an_edited_unit_is_put_right(installed: Server):
    unit = installed.root / "usr/local/lib/systemd/system/finetuned.service"
    ours = unit.read_text()
    unit.write_text("[Service]\n")
    assert installed.install(installed.root / "opt/finetuned/current").status == 0
    assert unit.read_text() == ours


# --check.


def test_check_says_what_is_missing_exits_1_and_changes_nothing(server: Server):
    bundle = server.bundle()
    before = server.snapshot()
    ended = server.install(bundle, "--check")
    assert ended.status == 1
    assert re.search(r"missing +release +build .*0\.1\.0-", ended.said)
    assert server.snapshot() == before
    assert not (server.root / "opt").exists()


def test_check_exits_0_where_all_is_in_place(installed: Server):
    before = installed.snapshot()
    ended = installed.install(installed.root / "opt/finetuned/current", "--check")
    assert ended.status == 0, ended
    assert "all is in place" in ended.said
    assert installed.snapshot() == before


# Upgrade, and its way back.


def test_an_upgrade_keeps_the_release_before_it(installed: Server):
    first = installed.release()
    ended = installed.install(installed.bundle("0.2.0"), "--upgrade")
    assert ended.status == 0, ended
    assert installed.release().startswith("0.2.0-")
    assert installed.release("previous") == first


def test_an_upgrade_needs_an_installation(server: Server):
    ended = server.install(server.bundle(), "--upgrade")
    assert ended.status == 1
    assert "is not installed here" in ended.said
    assert not (server.root / "opt").exists()


def test_an_upgrade_to_the_same_release_writes_the_units_and_restarts_the_daemon(installed: Server):
    installed.forget()
    ended = installed.install(installed.root / "opt/finetuned/current", "--upgrade")
    assert ended.status == 0, ended
    assert {"systemctl daemon-reload", "systemctl restart finetuned.service"} <= set(installed.asked())


@pytest.mark.parametrize("fault", ["does_not_start", "unwell"])
def test_an_upgrade_that_is_not_well_ends_with_the_old_release_running(installed: Server, fault: str):
    first, unit = installed.release(), installed.root / "usr/local/lib/systemd/system/finetuned.slice"
    units = unit.read_text()
    bundle = installed.bundle("0.2.0")
    (bundle / "units/finetuned.slice").write_text("[Slice]\nMemoryHigh=50%\n")
    installed.says(**{fault: ["0.2.0"]})
    ended = installed.install(bundle, "--upgrade")
    assert ended.status == 1
    assert "is not well" in ended.said
    assert f"went back to {first}, which is well again" in ended.said
    assert installed.release() == first
    assert installed.release("previous") is None
    assert unit.read_text() == units
    assert installed.asked().count("systemctl restart finetuned.service") == 2


def test_what_the_doctor_complains_about_is_told(installed: Server):
    installed.says(unwell=["0.2.0"])
    assert "fail  torch   cannot be imported" in installed.install(installed.bundle("0.2.0")).said


def test_a_failed_upgrade_quotes_the_journal_of_the_release_that_failed(installed: Server):
    installed.forget()
    installed.says(does_not_start=["0.2.0"], journal=["finetuned: unknown setting", "finetuned: see finetuned.yaml"])
    ended = installed.install(installed.bundle("0.2.0"))
    assert "its journal:\n    finetuned: unknown setting\n    finetuned: see finetuned.yaml\n" in ended.said
    asked = [line for line in installed.asked() if line == "systemctl restart finetuned.service" or "--since" in line]
    assert [line.split()[0] for line in asked] == ["systemctl", "journalctl", "systemctl"]


def test_where_the_daemon_wrote_nothing_systemd_is_quoted(installed: Server):
    installed.says(does_not_start=["0.2.0"], journal_of_systemd=["finetuned.service: Failed to set up credentials"])
    ended = installed.install(installed.bundle("0.2.0"))
    assert "its journal:\n    finetuned.service: Failed to set up credentials\n" in ended.said


@pytest.mark.slow
def test_a_failed_upgrade_leaves_the_older_way_back_as_it_was(installed: Server):
    first = installed.release()
    ended = installed.install(installed.bundle("0.2.0"))
    assert ended.status == 0, ended
    installed.says(unwell=["0.3.0"])
    assert installed.install(installed.bundle("0.3.0")).status == 1
    assert installed.release().startswith("0.2.0-")
    assert installed.release("previous") == first


def test_a_first_install_that_is_not_well_says_so_and_can_be_mended(server: Server):
    bundle = server.bundle("0.1.0")
    server.says(unwell=["0.1.0"])
    ended = server.install(bundle)
    assert ended.status == 1
    assert "no earlier release to go back to" in ended.said
    server.says(unwell=[])
    server.forget()
    assert server.install(bundle).status == 0
    assert "systemctl restart finetuned.service" in server.asked()
    assert not any(" pip " in line for line in server.asked())


@pytest.mark.slow
def test_no_stage_is_ever_stopped_or_restarted(installed: Server):
    installed.says(stages=["finetuned-train@20261130-120000-tone-00000001.service"])
    installed.install(installed.bundle("0.2.0"), "--upgrade")
    installed.says(unwell=["0.3.0"])
    installed.install(installed.bundle("0.3.0"), "--upgrade")
    installed.install(installed.root / "opt/finetuned/current", "--rollback")
    verbs = ("stop", "restart", "kill", "isolate", "try-restart")
    touched = [line for line in installed.asked("systemctl") if line.split()[1] in verbs]
    assert set(touched) <= {
        "systemctl restart finetuned.service",
        "systemctl restart systemd-journald.service",
    }


def test_a_machine_that_is_being_provisioned_is_not_taken_for_unwell(server: Server):
    server.says(held_back=True)
    ended = server.install(server.bundle())
    assert ended.status == 0, ended
    assert "a condition of the unit holds it back" in ended.said
    assert "finetuned.service" in json.loads((server.root / "state.json").read_text())["enabled"]


# Rollback.


def test_rollback_returns_to_the_release_before_with_its_units(installed: Server):
    first = installed.release()
    bundle = installed.bundle("0.2.0")
    (bundle / "units/finetuned.slice").write_text("[Slice]\nMemoryHigh=50%\n")
    (bundle / "units/finetuned-new.service").write_text("[Service]\nExecStart=/bin/true\n")
    installed.install(bundle)
    units = installed.root / "usr/local/lib/systemd/system"
    assert (units / "finetuned-new.service").exists()
    ended = installed.install(bundle, "--rollback")
    assert ended.status == 0, ended
    assert installed.release() == first
    assert installed.release("previous").startswith("0.2.0-")
    assert "MemoryHigh" not in (units / "finetuned.slice").read_text()
    assert not (units / "finetuned-new.service").exists()


def test_rollback_to_a_release_that_is_not_well_comes_back(installed: Server):
    installed.install(installed.bundle("0.2.0"))
    installed.says(unwell=["0.1.0"])
    ended = installed.install(installed.root / "opt/finetuned/current", "--rollback")
    assert ended.status == 1
    assert installed.release().startswith("0.2.0-")


def test_rollback_without_an_earlier_release_says_so(installed: Server):
    ended = installed.install(installed.root / "opt/finetuned/current", "--rollback")
    assert ended.status == 1
    assert "no earlier release" in ended.said


# Releases of the past.


def test_a_release_that_nothing_needs_goes_with_the_second_upgrade(installed: Server):
    first = installed.release()
    installed.install(installed.bundle("0.2.0"))
    assert first in installed.releases()
    ended = installed.install(installed.bundle("0.3.0"))
    assert first not in installed.releases()
    assert f"remove {first}" in ended.said


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["queued", "active", "outbox"])
def test_a_release_that_a_live_job_was_started_with_stays(installed: Server, phase: str):
    first = installed.release()
    a_launch(installed, phase, 1, first)
    installed.install(installed.bundle("0.2.0"))
    installed.install(installed.bundle("0.3.0"))
    assert first in installed.releases()


@pytest.mark.slow
def test_a_release_of_a_job_s_older_launches_goes(installed: Server):
    first = installed.release()
    a_launch(installed, "active", 1, first)
    a_launch(installed, "active", 2, "0.3.0-later")
    installed.install(installed.bundle("0.2.0"))
    installed.install(installed.bundle("0.3.0"))
    assert first not in installed.releases()


@pytest.mark.slow
def test_launches_of_different_stages_each_keep_their_release(installed: Server):
    first = installed.release()
    a_launch(installed, "active", 1, first, stage="train")
    a_launch(installed, "active", 2, "0.3.0-later", stage="deliver")
    installed.install(installed.bundle("0.2.0"))
    installed.install(installed.bundle("0.3.0"))
    assert first in installed.releases()


@pytest.mark.slow
def test_a_filed_job_keeps_no_release(installed: Server):
    first = installed.release()
    a_launch(installed, "done", 1, first)
    installed.install(installed.bundle("0.2.0"))
    installed.install(installed.bundle("0.3.0"))
    assert first not in installed.releases()


@pytest.mark.slow
def test_no_release_goes_while_a_launch_cannot_be_read(installed: Server):
    first = installed.release()
    a_launch(installed, "active", 1, first).write_text("{")
    installed.install(installed.bundle("0.2.0"))
    ended = installed.install(installed.bundle("0.3.0"))
    assert ended.status == 0, ended
    assert first in installed.releases()
    assert "cannot be read" in ended.said


@pytest.mark.slow
def test_a_release_that_a_process_still_runs_stays(installed: Server):
    first = installed.release()
    process = installed.root / "proc/4711"
    process.mkdir()
    python = f"{installed.root}/opt/finetuned/releases/{first}/daemon/bin/python"
    (process / "cmdline").write_bytes(f"{python}\0-m\0finetuned.ctl\0".encode())
    installed.install(installed.bundle("0.2.0"))
    installed.install(installed.bundle("0.3.0"))
    assert first in installed.releases()


# Crashes and failures in the middle.


def test_a_kill_in_the_middle_of_a_build_leaves_nothing_that_looks_whole(server: Server):
    bundle = server.bundle("0.1.0")
    server.says(pip_hangs="worker")
    process = server.start(bundle)
    until(lambda: any("worker/bin/python" in line for line in server.asked("python") if " pip " in line))
    process.kill()
    process.communicate()
    (name,) = server.releases()
    assert (server.root / "opt/finetuned/releases" / name / "daemon").is_dir()
    assert not (server.root / "opt/finetuned/releases" / name / "release.json").exists()
    assert server.release() is None


def test_whoever_interrupts_it_is_told_how_to_go_on_and_sees_no_traceback(server: Server):
    server.says(pip_hangs="worker")
    process = server.start(server.bundle("0.1.0"))
    until(lambda: any("worker/bin/python" in line for line in server.asked("python") if " pip " in line))
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert said.splitlines()[-1] == "install: interrupted; run it again, and it does what is missing"
    assert "Traceback" not in said


def test_a_run_after_a_kill_waits_for_what_was_left_behind_and_repairs(server: Server):
    bundle = server.bundle("0.1.0")
    server.says(pip_hangs="worker")
    first = server.start(bundle)
    until(lambda: any("worker/bin/python" in line for line in server.asked("python") if " pip " in line))
    left_behind = int(Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()[0])
    first.kill()
    first.wait()
    (server.root / "opt/finetuned/releases" / server.releases()[0] / "leftover").touch()
    server.says(pip_hangs="")
    second = server.start(bundle)
    assert "waiting" in second.stdout.readline()
    os.kill(left_behind, 9)
    said, _ = second.communicate(timeout=60)
    assert second.returncode == 0, said
    assert not (server.root / "opt/finetuned/current/leftover").exists()


def test_a_crash_between_swap_and_proof_is_made_good_by_the_next_run(installed: Server):
    first = installed.release()
    installed.install(installed.bundle("0.2.0"))
    (installed.root / "opt/finetuned/.restart-due").write_text(f"{installed.release()}\n")
    installed.says(unwell=["0.2.0"])
    ended = installed.install(installed.root / "opt/finetuned/current")
    assert ended.status == 1
    assert installed.release() == first


def test_a_full_disk_during_the_build_leaves_the_old_release_running(installed: Server):
    first = installed.release()
    installed.says(pip_fails=["worker"])
    ended = installed.install(installed.bundle("0.2.0"), "--upgrade")
    assert ended.status == 1
    assert "No space left on device" in ended.said
    assert installed.release() == first
    assert not any("restart" in line for line in installed.asked()[-3:])


def test_too_little_room_is_told_with_numbers_before_anything_is_built(server: Server):
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small disk")
    disk = server.root / "opt"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=50m", "tmpfs", disk], check=True)
    try:
        ended = server.install(server.bundle())
        assert ended.status == 1
        assert re.search(r"needs about 4\.0 GB in .*/opt/finetuned/releases; 0\.1 GB are free there", ended.said)
        assert not any(" pip " in line for line in server.asked())
    finally:
        subprocess.run(["umount", disk], check=True)


# Machines and people it is not for.


def test_who_is_not_root_is_told_to_use_sudo():
    if os.geteuid() != 0:
        ended = subprocess.run([ROOT / "deploy/install"], capture_output=True, text=True)
    else:
        copy = Server()
        try:
            command = [sys.executable, copy.bundle() / "deploy/install"]
            command[0] = shutil.which("python3", path="/usr/bin") or sys.executable
            ended = subprocess.run(command, capture_output=True, text=True, user=NOBODY)
        finally:
            copy.remove()
    assert ended.returncode == 1
    assert "sudo deploy/install" in ended.stderr


@pytest.mark.parametrize("words", [["--upgarde"], ["--upgrade", "--rollback"], ["--purge"], ["--wheelhouse", "/none"]])
def test_a_wrong_command_line_exits_2_and_says_why(server: Server, words: list[str]):
    ended = server.install(server.bundle(), *words)
    assert ended.status == 2
    assert "error:" in ended.said


def test_without_systemd_it_refuses_and_says_how_else(server: Server):
    (server.root / "run/systemd/system").rmdir()
    ended = server.install(server.bundle())
    assert ended.status == 1
    assert "systemd does not run this machine" in ended.said
    assert "finetuned run" in ended.said


def test_a_systemd_that_is_too_old_is_named(server: Server):
    server.says(systemd=247)
    ended = server.install(server.bundle())
    assert ended.status == 1
    assert "systemd 247" in ended.said
    assert "249" in ended.said


def test_a_distribution_that_is_no_debian_is_refused_by_name(server: Server):
    server.run_by("fedora", "43", "Fedora Linux 43")
    ended = server.install(server.bundle())
    assert ended.status == 1
    assert "this is Fedora Linux 43" in ended.said


def test_an_unknown_relative_of_debian_is_installed_with_a_word(server: Server):
    server.run_by("linuxmint", "23", "Linux Mint 23", like="ubuntu debian")
    ended = server.install(server.bundle())
    assert ended.status == 0, ended
    assert "on which finetuned was never tried" in ended.said


def test_a_python_that_is_too_old_is_named_with_the_way_out(server: Server):
    server.says(python=[3, 10])
    ended = server.install(server.bundle(), env={"PATH": str(server.root / "bin")})
    assert ended.status == 1
    assert "python3.10, too old" in ended.said
    assert "--python PATH" in ended.said


def test_a_named_python_that_does_not_answer_is_refused(server: Server):
    ended = server.install(server.bundle(), "--python", "/bin/false")
    assert ended.status == 1
    assert "/bin/false is no Python that answers" in ended.said


def test_a_python_that_the_daemons_user_cannot_reach_is_refused(server: Server):
    hidden = server.folder / "hidden"
    hidden.mkdir(mode=0o700)
    shutil.copy(server.root / "bin/python3", hidden)
    ended = server.install(server.bundle(), "--python", str(hidden / "python3"))
    assert ended.status == 1
    assert "the user finetuned may not look" in ended.said


# People.


def test_who_called_sudo_joins_the_group_and_hears_about_the_next_login(server: Server):
    ended = server.install(server.bundle(), env={"SUDO_USER": "lena"})
    assert "usermod -aG finetuned lena" in server.asked()
    assert "lena has to log out and in again" in ended.said


def test_who_is_in_the_group_already_is_left_alone(server: Server):
    server.says(members=["lena"])
    ended = server.install(server.bundle(), "--user", "lena")
    assert server.asked("usermod") == []
    assert "lena may drop jobs" in ended.said


@pytest.mark.parametrize("words", [[], ["--check"]])
def test_users_who_do_not_exist_are_named_before_anything_is_done(server: Server, words: list[str]):
    server.says(packages={})
    ended = server.install(server.bundle(), "--user", "karl", "--user", "lena", "--user", "mia", *words)
    assert ended.status == 1
    assert "there is no user karl, mia on this machine" in ended.said
    assert server.asked("apt-get") == []
    assert not (server.root / "opt/finetuned/releases").exists()
    assert not re.search(r"^(doing|missing)", ended.said, re.MULTILINE)


# What depends on the machine.


@pytest.mark.parametrize(("systemd", "is_there"), [(252, False), (255, True)])
def test_newer_directives_go_only_to_a_systemd_that_knows_them(server: Server, systemd: int, is_there: bool):
    bundle = server.bundle()
    dropin = bundle / "units/dropins/v254/finetuned.service.d/50-new.conf"
    dropin.parent.mkdir(parents=True, exist_ok=True)
    dropin.write_text("[Service]\nRestartSteps=8\n")
    server.says(systemd=systemd)
    server.install(bundle)
    placed = server.root / "usr/local/lib/systemd/system/finetuned.service.d/50-new.conf"
    assert placed.exists() is is_there


def test_a_secret_reaches_its_units_once_it_is_there_and_no_longer_when_it_is_gone(installed: Server):
    current, units = installed.root / "opt/finetuned/current", installed.root / "usr/local/lib/systemd/system"
    assert not list(units.glob("*/credential-*"))
    secret = installed.root / "etc/finetuned/credentials/hub_token"
    secret.write_text("hf_secret")
    assert installed.install(current).status == 0
    assert {path.parent.name for path in units.glob("*/credential-hub_token.conf")} == {
        "finetuned-prepare@.service.d",
        "finetuned-deliver@.service.d",
    }
    secret.unlink()
    assert installed.install(current).status == 0
    assert not list(units.glob("*/credential-*"))


def warnings(said: str) -> list[str]:
    return [line.split(maxsplit=2)[2] for line in said.splitlines() if line.startswith("warning")]


@pytest.mark.parametrize("words", [(), ("--check",)])
def test_credentials_that_do_not_do_what_they_should_are_told_of_and_fail_nothing(
    installed: Server, words: tuple[str, ...]
):
    folder = installed.root / "etc/finetuned/credentials"
    for name, mode in (("openstack", 0o600), ("lambda", 0o400), ("scaleway", 0o640), ("hub-token", 0o600)):
        (folder / name).write_text("secret")
        (folder / name).chmod(mode)
    (folder / "object_store").mkdir()
    (folder / "tracker_token").symlink_to("elsewhere")
    ended = installed.install(installed.root / "opt/finetuned/current", *words)
    assert ended.status == 0, ended
    assert warnings(ended.said) == [
        f"{folder}/hub-token is used by nothing; known are hub_token, object_store, tracker_token; "
        "for hooks hyperstack, lambda, openstack, scaleway",
        f"{folder}/object_store is a folder: put a file with the secret in its place",
        f"{folder}/scaleway has mode 0640, so not root alone has it: chmod 600 {folder}/scaleway",
        f"{folder}/tracker_token is a link: put a file with the secret in its place",
    ]


def test_every_hook_that_reads_a_credential_has_its_name_among_the_known():
    hooks = [path for path in (ROOT / "deploy/hooks").iterdir() if path.suffix != ".md"]
    reading = {path.name for path in hooks if "etc/finetuned/credentials" in path.read_text()}
    listed = re.search(r"^OF_HOOKS = (.*)$", (ROOT / "deploy/installer/credentials.py").read_text(), re.MULTILINE)
    assert reading
    assert set(ast.literal_eval(listed[1])) == reading


def test_polkit_without_javascript_gets_the_launch_helper_instead_of_the_rule(server: Server):
    server.run_by("ubuntu", "22.04", "Ubuntu 22.04.5 LTS", like="debian")
    server.says(systemd=249, packages={"dbus": "1", "libsystemd-dev": "1", "polkitd": "0.105-33"})
    ended = server.install(server.bundle())
    assert ended.status == 0, ended
    assert (server.root / "usr/local/lib/systemd/system/finetuned-launch.socket").exists()
    assert not (server.root / "etc/polkit-1/rules.d/50-finetuned.rules").exists()
    assert "systemctl enable --quiet finetuned.service finetuned-launch.socket" in server.asked()


def test_elsewhere_there_is_no_launch_helper(installed: Server):
    assert not list((installed.root / "usr/local/lib/systemd/system").glob("finetuned-launch*"))


# Uninstall.


def test_uninstall_takes_what_was_installed_and_keeps_what_is_peoples(installed: Server):
    kept = ["etc/finetuned/finetuned.yaml", "var/spool/finetuned/done.txt", "srv/finetuned/models/m.safetensors"]
    for name in kept:
        (installed.root / name).write_text("mine")
    ended = installed.install(installed.bundle(), "--uninstall")
    assert ended.status == 0, ended
    assert "systemctl disable --quiet --now finetuned.service" in installed.asked()
    assert any(line.endswith("finetuned-stop-machine.service") for line in installed.asked("systemctl"))
    held = [name for name, what in installed.snapshot().items() if what != "a folder" and not name.startswith("bin/")]
    assert sorted(held) == sorted(["etc/os-release", *kept])
    assert not (installed.root / "opt/finetuned").exists()
    assert "var/spool/finetuned: 1 files" in ended.said
    assert "srv/finetuned: 1 files" in ended.said


def test_purge_takes_settings_and_secrets_but_neither_spool_nor_models(installed: Server):
    for name in ("etc/finetuned/credentials/hub_token", "var/spool/finetuned/a", "srv/finetuned/models/m"):
        (installed.root / name).write_text("mine")
    ended = installed.install(installed.bundle(), "--uninstall", "--purge")
    assert ended.status == 0, ended
    assert not (installed.root / "etc/finetuned").exists()
    assert not (installed.root / "var/lib/finetuned").exists()
    assert (installed.root / "var/spool/finetuned/a").exists()
    assert (installed.root / "srv/finetuned/models/m").exists()


def test_uninstall_refuses_while_a_job_runs_and_changes_nothing(installed: Server):
    installed.says(stages=["finetuned-train@20261130-120000-tone-00000001.service"])
    before = installed.snapshot()
    ended = installed.install(installed.bundle(), "--uninstall")
    assert ended.status == 1
    assert "finetuned-train@20261130-120000-tone-00000001.service" in ended.said
    assert installed.snapshot() == before


def test_uninstall_by_force_stops_the_daemon_before_the_job(installed: Server):
    installed.says(stages=["finetuned-train@20261130-120000-tone-00000001.service"])
    assert installed.install(installed.bundle(), "--uninstall", "--force").status == 0
    asked = installed.asked("systemctl")
    stop = asked.index("systemctl stop finetuned-train@20261130-120000-tone-00000001.service")
    assert asked.index("systemctl disable --quiet --now finetuned.service") < stop


def test_what_others_put_beside_our_units_survives(installed: Server):
    theirs = installed.root / "usr/local/lib/systemd/system/finetuned.service.d/10-provisioned.conf"
    theirs.parent.mkdir(exist_ok=True)
    theirs.write_text("[Unit]\n")
    installed.install(installed.bundle("0.2.0"))
    assert theirs.exists()
    installed.install(installed.bundle(), "--uninstall")
    assert theirs.exists()


_GATE = "etc/systemd/system/finetuned.service.d/10-provisioned.conf"
"""Of a provisioned server: no daemon without the stamp that lies in the state folder."""


def test_purge_takes_the_gate_of_a_provisioned_server_with_the_stamp_that_opens_it(installed: Server):
    assert f'GATE = "/{_GATE}"' in (ROOT / "cloud-init/provision/software.py").read_text()
    gate = installed.root / _GATE
    gate.parent.mkdir(parents=True)
    gate.write_text("[Unit]\n")
    ended = installed.install(installed.bundle(), "--uninstall", "--purge")
    assert ended.status == 0, ended
    assert not gate.parent.exists()
    assert f"{gate} removed" in ended.said
    assert installed.asked("systemctl")[-1] == "systemctl daemon-reload"


def test_without_purge_the_gate_stays_with_its_stamp_and_an_admins_override_stays_always(installed: Server):
    gate, stamp = installed.root / _GATE, installed.root / "var/lib/finetuned/provision/done"
    override = gate.with_name("override.conf")
    for path in (gate, stamp, override):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("[Unit]\n")
    bundle = installed.bundle()
    installed.install(bundle, "--uninstall")
    assert gate.exists()
    assert stamp.exists()
    installed.install(bundle)
    installed.install(bundle, "--uninstall", "--purge")
    assert not gate.exists()
    assert override.exists()


def test_uninstall_where_nothing_is_installed_says_so(server: Server):
    ended = server.install(server.bundle(), "--uninstall")
    assert ended.status == 1
    assert "is not installed here" in ended.said


# The Debian package's half, and the worker beside it.


@pytest.fixture
def packaged(server: Server) -> Path:
    """What dpkg has put on the server, in the release that it brought."""
    release = server.root / "opt/finetuned/releases/0.1.0-abcdef01-deb"
    shutil.copytree(server.bundle("0.1.0"), release)
    (release / "release.json").write_text(json.dumps({"format": 1, "version": "0.1.0", "worker": "packaged"}))
    (release / "systemd_python-235-cp311-cp311-linux_x86_64.whl").touch()
    (release / "daemon/bin").mkdir(parents=True)
    shutil.copy(server.root / "bin/python3", release / "daemon/bin/finetunectl")
    for name in ("sysusers", "tmpfiles"):
        place = server.root / f"usr/lib/{name}.d/finetuned.conf"
        place.parent.mkdir(parents=True)
        shutil.copy(release / f"units/finetuned.{name}", place)
    command = server.root / "usr/bin/finetunectl"
    command.parent.mkdir()
    command.symlink_to("/opt/finetuned/current/daemon/bin/finetunectl")
    (server.root / "opt/finetuned/current").symlink_to(f"releases/{release.name}")
    return release


def test_the_packages_installer_adds_the_worker_and_starts_the_daemon(server: Server, packaged: Path):
    ended = server.install(packaged)
    assert ended.status == 0, ended
    assert (packaged / "worker/bin/python").is_file()
    assert (packaged / "worker.json").is_file()
    assert "systemctl restart finetuned.service" in server.asked()
    assert server.asked("apt-get") == []
    assert "nothing had to be done" in server.install(packaged).said


def test_the_packages_installer_leaves_to_dpkg_what_is_dpkgs(server: Server, packaged: Path):
    before = server.snapshot()
    server.install(packaged)
    after = server.snapshot()
    assert {name for name in before if before[name] != after.get(name)} == set()
    assert not list((server.root / "usr/local").rglob("*.service"))


def test_secrets_reach_the_packages_units(server: Server, packaged: Path):
    (server.root / "etc/finetuned/credentials").mkdir(parents=True)
    (server.root / "etc/finetuned/credentials/hub_token").write_text("hf_secret")
    assert server.install(packaged).status == 0
    dropins = server.root / "usr/local/lib/systemd/system"
    assert (dropins / "finetuned-prepare@.service.d/credential-hub_token.conf").is_file()


def test_a_bundle_is_not_installed_over_the_package(server: Server, packaged: Path):
    for words in ((), ("--upgrade",), ("--rollback",), ("--uninstall",)):
        ended = server.install(server.bundle("0.2.0"), *words)
        assert ended.status == 1
        assert "the Debian package finetuned-daemon, which apt upgrades and removes" in ended.said
    assert server.release() == packaged.name


# The program itself.


def test_the_installer_is_python_3_9_and_needs_the_standard_library_alone():
    programs = [ROOT / "deploy/install", *sorted((ROOT / "deploy/installer").glob("*.py"))]
    for path in programs:
        tree = ast.parse(path.read_text(), str(path), feature_version=(3, 9))
        names = {
            (alias.name if isinstance(node, ast.Import) else node.module or "").partition(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        assert names <= {*sys.stdlib_module_names, "installer"}, path


@pytest.mark.slow
def test_a_real_release_from_the_real_sources_runs_without_torch(server: Server):
    """Real environments and a real wheel; the worker's big packages come from the environment of the tests."""
    for name in ("python3", "gcc", "pkg-config"):
        (server.root / "bin" / name).unlink()
    server.says(held_back=True)
    site = next(Path(path) for path in sys.path if (Path(path) / "torch").is_dir())
    python = os.path.realpath(sys.executable) if os.geteuid() else "/usr/bin/python3"
    environment = {**os.environ, "PATH": f"{server.root / 'bin'}:/usr/bin:/bin"}
    ended = server.install(ROOT, "--python", python, "--worker-site", str(site), env=environment)
    assert ended.status == 0, ended
    current = server.root / "opt/finetuned/current"
    version = subprocess.run([current / "daemon/bin/finetuned", "--version"], capture_output=True, text=True)
    assert version.stdout.startswith("finetuned ")
    code = "import importlib.util, finetuned.service.main; print(importlib.util.find_spec('torch'))"
    said = subprocess.run([current / "daemon/bin/python", "-I", "-c", code], capture_output=True, text=True)
    assert said.stdout == "None\n", said.stderr
    verbs = subprocess.run([current / "daemon/bin/finetunectl", "--help"], capture_output=True, text=True)
    assert "submit" in verbs.stdout
