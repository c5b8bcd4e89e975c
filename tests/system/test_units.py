"""systemd accepts every unit, on each version that we promise, and boots with them; a stage's unit behaves as a stage.

What a unit may do is in test_unit_rights.py. How systemd runs them is tested in a booted guest: test_guest.py.
"""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from unit_files import (
    NAMES,
    ON_THE_GPU,
    ON_THE_NETWORK,
    STAGES,
    UNITS,
    Setting,
    require_program,
    settings_of,
    stage_unit,
    values,
    words,
)

SYSTEMD_UNITS = Path("/usr/lib/systemd/system")
OURS = "/usr/local/lib/systemd/system/"

NEWER_THAN_249 = {
    250: "ConditionCPUPressure ConditionIOPressure ConditionMemoryPressure ExecSearchPath ExitType"
    " LoadCredentialEncrypted RestrictFileSystems RestrictNetworkInterfaces RuntimeRandomizedExtraSec"
    " SetCredentialEncrypted TTYColumns TTYRows",
    251: "ExtensionDirectories",
    252: "ConditionCredential StartupAllowedCPUs StartupAllowedMemoryNodes StartupMemoryHigh StartupMemoryLow"
    " StartupMemoryMax StartupMemorySwapMax",
    253: "LogFilterPatterns MemoryZSwapMax OpenFile ReloadSignal StartupMemoryZSwapMax",
    254: "DelegateSubgroup ExtensionImagePolicy FileDescriptorStorePreserve ImportCredential MemoryKSM"
    " MemoryPressureThresholdSec MemoryPressureWatch MountImagePolicy RestartMaxDelaySec RestartMode RestartSteps"
    " RootEphemeral RootImagePolicy",
    255: "ConditionSecurity CoredumpReceive NFTSet PollLimitBurst PollLimitIntervalSec SetLoginEnvironment"
    " SurviveFinalKillSignal",
    256: "MemoryZSwapWriteback PassFileDescriptorsToExec WantsMountsFor",
    257: "BindLogSockets ManagedOOMMemoryPressureDurationSec PrivatePIDs",
}
"""Directives by the systemd that knows them first, from the manual pages of systemd 257."""

NEWER_VALUES = {
    ("Type", "notify-reload"): 253,
    ("CPUWeight", "idle"): 252,
    ("ProtectControlGroups", "private"): 257,
    ("ProtectControlGroups", "strict"): 257,
    ("PrivateTmp", "disconnected"): 257,
    ("PrivateUsers", "identity"): 257,
    ("ProtectHostname", "private"): 258,
}


def since(setting: Setting) -> int:
    """The first systemd to understand it, or 249 for all that are older."""
    by_name = next((version for version, names in NEWER_THAN_249.items() if setting.name in names.split()), 249)
    return max(by_name, NEWER_VALUES.get((setting.name, setting.value), 249))


def instance_of(unit: str) -> str:
    return unit.replace("@.", "@20261130-221500-support-tone-7f3a09c1.")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root directory with systemd's own units, ours, and a stand-in for each program that ours start."""
    if not SYSTEMD_UNITS.is_dir():
        pytest.skip(f"needs {SYSTEMD_UNITS}: install the Debian package systemd")
    root = tmp_path / "root"
    shutil.copytree(SYSTEMD_UNITS, root / "usr/lib/systemd/system", symlinks=True)
    for name in NAMES:
        write(root, OURS + name, (UNITS / name).read_text())
        for setting in settings_of(UNITS / name):
            if setting.name.startswith("Exec"):
                program = write(root, setting.value.lstrip("-+").split()[0], "#!/bin/sh\n")
                program.chmod(0o755)
    return root


def write(root: Path, path: str, text: str) -> Path:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def complaints(root: Path, unit: str) -> str:
    """What systemd finds wrong with a unit, in its own words."""
    ended = verify(root, instance_of(unit), "--recursive-errors=no")
    return ended.stderr or ("" if ended.returncode == 0 else f"status {ended.returncode}")


def verify(root: Path, unit: str, *options: str) -> subprocess.CompletedProcess[str]:
    tool = require_program("systemd-analyze", "systemd")
    command = [tool, "verify", "--man=no", f"--root={root}", *options, unit]
    return subprocess.run(command, capture_output=True, text=True, cwd=root)


@pytest.mark.parametrize("unit", NAMES)
def test_systemd_has_no_complaint_about_a_unit(root: Path, unit: str):
    assert complaints(root, unit) == ""


def test_a_misspelt_directive_would_be_seen(root: Path):
    with (root / OURS.lstrip("/") / stage_unit("train")).open("a") as file:
        file.write("[Service]\nWatchDogSec=5\n")
    assert "WatchDogSec" in complaints(root, stage_unit("train"))


def test_a_program_that_nobody_installs_would_be_seen(root: Path):
    (root / "opt/finetuned/current/daemon/bin/python").unlink()
    assert "not executable" in complaints(root, stage_unit("train"))


@pytest.mark.parametrize("drop_in", sorted(UNITS.glob("dropins/credentials/*.conf")), ids=lambda path: path.stem)
def test_systemd_has_no_complaint_about_the_drop_in_of_a_credential(root: Path, drop_in: Path):
    write(root, f"{OURS}{stage_unit('deliver')}.d/{drop_in.name}", drop_in.read_text())
    assert complaints(root, stage_unit("deliver")) == ""


@pytest.mark.parametrize("unit", NAMES)
def test_units_hold_on_systemd_249(unit: str):
    settings = settings_of(UNITS / unit)
    assert [setting for setting in settings if since(setting) > 249] == []
    assert [setting for setting in settings if re.search(r"%[dyY]", setting.value)] == []  # 250 and 251


def test_a_drop_in_for_newer_systemd_says_only_what_that_version_knows():
    drop_ins = sorted(UNITS.glob("dropins/v*/*/*.conf"))
    assert drop_ins
    for path in drop_ins:
        version = int(path.parts[-3].removeprefix("v"))
        assert path.parts[-2].removesuffix(".d") in NAMES
        assert [setting for setting in settings_of(path) if since(setting) > version] == []
        assert max(since(setting) for setting in settings_of(path)) == version


def cycles_in_a_boot_with_cloud_init(root: Path) -> list[str]:
    """What systemd says of ordering cycles where cloud-init is installed and all our services are enabled.

    The ordering lines are those of cloud-init 22.4 and 25.1; its generator makes multi-user.target want the target.
    """
    system = "/usr/lib/systemd/system/"
    write(root, system + "cloud-init.target", "[Unit]\nAfter=multi-user.target\nWants=cloud-final.service\n")
    after = "network-online.target time-sync.target rc-local.service multi-user.target"
    write(root, system + "cloud-final.service", f"[Unit]\nAfter={after}\n[Service]\nExecStart=/bin/sh\n")
    enabled = [unit for unit in NAMES if values(unit, "WantedBy") == ["multi-user.target"]]
    assert "finetuned.service" in enabled
    wants = root / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(parents=True)
    for place, unit in [(system, "cloud-init.target"), *((OURS, unit) for unit in enabled)]:
        (wants / unit).symlink_to(place + unit)
    said = verify(root, "multi-user.target").stderr
    return [line for line in said.splitlines() if "ordering cycle" in line]


def test_a_boot_with_cloud_init_has_no_ordering_cycle(root: Path):
    assert cycles_in_a_boot_with_cloud_init(root) == []


@pytest.mark.parametrize("unit", ["finetuned.service", "finetuned-scratch.service"])
def test_an_ordering_after_cloud_init_would_be_seen_as_a_cycle(root: Path, unit: str):
    write(root, f"{OURS}{unit}.d/wrong.conf", "[Unit]\nAfter=cloud-init.target\n")
    assert cycles_in_a_boot_with_cloud_init(root)


@pytest.mark.parametrize("unit", NAMES)
def test_no_unit_is_ordered_on_cloud_init(unit: str):
    assert not [each for each in words(unit, "After") | words(unit, "Before") if each.startswith("cloud-")]


def test_a_provisioned_machine_is_not_provisioned_again():
    assert values("finetuned-provision.service", "ConditionPathExists") == ["!/var/lib/finetuned/provision/done"]


def test_a_provisioning_that_fails_is_reported_even_when_the_bundle_never_arrived():
    assert values("finetuned-provision.service", "OnFailure") == ["finetuned-provision-failed.service"]
    (report,) = values("finetuned-provision-failed.service", "ExecStart")
    assert "/finetuned-provision --failed || exec /usr/local/sbin/finetuned-bootstrap --failed" in report


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_outlives_the_daemon(stage: str):
    binding = ("Requires", "Requisite", "BindsTo", "PartOf", "Upholds", "Conflicts")
    assert not [name for name in binding if "finetuned.service" in words(stage_unit(stage), name)]


@pytest.mark.parametrize("stage", STAGES)
def test_systemd_never_starts_a_stage_again_by_itself(stage: str):
    assert values(stage_unit(stage), "Restart") == ["no"]
    assert values(stage_unit(stage), "WantedBy") == []
    assert values(stage_unit(stage), "StartLimitIntervalSec") == ["0"]


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_tells_how_it_ended_whatever_ended_it(stage: str):
    (after,) = values(stage_unit(stage), "ExecStopPost")
    assert after == f"/opt/finetuned/current/daemon/bin/python -m finetuned.host.unit ended {stage} %i"


@pytest.mark.parametrize("stage", STAGES)
def test_a_stop_reaches_the_main_process_alone_and_the_end_reaches_all(stage: str):
    assert values(stage_unit(stage), "KillMode") == ["mixed"]
    assert values(stage_unit(stage), "SendSIGKILL") == []


@pytest.mark.parametrize("stage", STAGES)
def test_only_a_stage_that_ended_by_itself_is_given_time_for_its_last_words(tmp_path: Path, stage: str):
    (command,) = values(stage_unit(stage), "ExecStop")
    shell = shlex.split(command.removeprefix("-"))
    write(tmp_path, "bin/sleep", "#!/bin/sh\necho waits\n").chmod(0o755)

    def said(**environment: str) -> str:
        env = {"PATH": str(tmp_path / "bin")} | environment
        return subprocess.run(shell, env=env, capture_output=True, text=True, check=True).stdout

    assert said() == "waits\n"
    assert said(MAINPID="1") == ""


@pytest.mark.parametrize("stage", STAGES)
def test_a_hung_stage_leaves_its_stacks_and_no_core(stage: str):
    assert values(stage_unit(stage), "WatchdogSec") == ["30min"]
    assert values(stage_unit(stage), "WatchdogSignal") == ["SIGABRT"]
    assert values(stage_unit(stage), "LimitCORE") == ["0"]


@pytest.mark.parametrize("stage", STAGES)
def test_at_a_shutdown_disks_network_and_d_bus_outlive_a_stage(stage: str):
    assert {"network-online.target", "remote-fs.target", "dbus.service"} <= words(stage_unit(stage), "After")
    assert values(stage_unit(stage), "RequiresMountsFor") == ["/var/spool/finetuned"]


@pytest.mark.parametrize("stage", STAGES)
def test_the_journal_finds_a_stage_by_its_job(stage: str):
    assert values(stage_unit(stage), "LogExtraFields") == ["FINETUNED_JOB=%i"]


def test_a_bad_setting_is_not_tried_again():
    assert values("finetuned.service", "Restart") == ["always"]
    assert values("finetuned.service", "RestartPreventExitStatus") == ["78"]


def test_when_memory_runs_out_the_daemon_goes_last_and_what_only_prepares_goes_first():
    by_unit = {unit: int(values(unit, "OOMScoreAdjust")[0]) for unit in ["finetuned.service", *map(stage_unit, STAGES)]}
    runs = {by_unit[stage_unit(stage)] for stage in ON_THE_GPU}
    others = {by_unit[stage_unit(stage)] for stage in ON_THE_NETWORK}
    assert by_unit["finetuned.service"] < 0 < min(runs) <= max(runs) < min(others)
