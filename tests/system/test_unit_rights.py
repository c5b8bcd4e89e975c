"""What the daemon and each stage may do, and who may ask for what: never more than promised."""

import os
import re
import stat
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

EXPOSURES = {
    "finetuned.service": 20,
    "finetuned-prepare@.service": 20,
    "finetuned-rehearse@.service": 35,
    "finetuned-train@.service": 35,
    "finetuned-deliver@.service": 20,
    "finetuned-launch@.service": 15,
    "finetuned-stop-machine.service": 40,
    # Root's, and about the whole machine: packages, drivers, disks.
    "finetuned-provision.service": 100,
    "finetuned-provision-failed.service": 100,
    "finetuned-scratch.service": 100,
}
"""What `systemd-analyze security` may find at most, times ten, rounded up to the next five."""

RECIPIENTS = {
    "hub_token": {"finetuned-prepare@.service", "finetuned-deliver@.service"},
    "object_store": {"finetuned-prepare@.service", "finetuned-deliver@.service"},
    "tracker_token": {"finetuned-deliver@.service"},
}
"""The units that each secret may be given to."""


def credential_drop_in(secret: str) -> Path:
    return UNITS / "dropins/credentials" / f"{secret}.conf"


@pytest.mark.parametrize(("unit", "limit"), EXPOSURES.items())
def test_exposure_stays_within_what_was_reached(unit: str, limit: int):
    assert exposure_is_within(limit, unit)


@pytest.mark.parametrize(("unit", "limit"), EXPOSURES.items())
def test_no_limit_of_exposure_is_looser_than_it_need_be(unit: str, limit: int):
    if systemd_version() != 252:
        pytest.skip("needs systemd 252, by which the table was made; other versions weigh other things")
    assert not exposure_is_within(limit - 5, unit)


def test_every_service_has_a_limit_of_exposure():
    assert sorted(EXPOSURES) == [name for name in NAMES if name.endswith(".service")]
    assert EXPOSURES["finetuned.service"] <= 25


def exposure_is_within(limit: int, unit: str) -> bool:
    tool = require_program("systemd-analyze", "systemd")
    command = [tool, "security", "--offline=yes", f"--threshold={limit}", str(UNITS / unit)]
    return subprocess.run(command, capture_output=True, cwd=UNITS).returncode == 0


def systemd_version() -> int:
    tool = require_program("systemd-analyze", "systemd")
    said = subprocess.run([tool, "--version"], capture_output=True, text=True, check=True).stdout
    return int(said.split()[1])


def test_a_stage_writes_in_its_own_folder_and_prepare_in_the_store():
    spool = "/var/spool/finetuned"
    assert {stage: words(stage_unit(stage), "ReadWritePaths") for stage in STAGES} == {
        "prepare": {f"{spool}/queued/%i", f"{spool}/store"},
        "rehearse": {f"{spool}/active/%i"},
        "train": {f"{spool}/active/%i"},
        "deliver": {f"{spool}/outbox/%i"},
    }
    assert {value for stage in STAGES for value in values(stage_unit(stage), "ProtectSystem")} == {"strict"}


@pytest.mark.parametrize("stage", ON_THE_GPU)
def test_a_run_sees_the_gpu_and_only_itself_on_the_network(stage: str):
    unit = stage_unit(stage)
    assert [value.split()[0] for value in values(unit, "DeviceAllow")] == ["char-nvidia*"]
    assert values(unit, "DevicePolicy") == ["closed"]
    assert values(unit, "PrivateDevices") == values(unit, "MemoryDenyWriteExecute") == []
    assert (values(unit, "IPAddressDeny"), values(unit, "IPAddressAllow")) == (["any"], ["localhost"])
    assert {"NCCL_SOCKET_IFNAME=lo", "GLOO_SOCKET_IFNAME=lo"} <= words(unit, "Environment")


@pytest.mark.parametrize("stage", ON_THE_NETWORK)
def test_prepare_and_deliver_see_the_network_and_no_gpu(stage: str):
    unit = stage_unit(stage)
    assert values(unit, "PrivateDevices") == ["yes"]
    assert values(unit, "DeviceAllow") == values(unit, "SupplementaryGroups") == []
    assert values(unit, "IPAddressDeny") == []


def test_no_unit_has_a_credential_where_no_drop_in_gives_it_one():
    giving = re.compile(r"(Load|Set|Import)Credential|PassEnvironment|EnvironmentFile")
    assert [(unit, each) for unit in NAMES for each in settings_of(UNITS / unit) if giving.match(each.name)] == []


@pytest.mark.parametrize("stage", STAGES)
def test_no_stage_can_look_into_the_folder_of_credentials(stage: str):
    assert values(stage_unit(stage), "InaccessiblePaths") == ["-/etc/finetuned/credentials"]


@pytest.mark.parametrize("secret", RECIPIENTS)
def test_a_credential_goes_to_the_units_that_its_first_line_names(secret: str):
    first_line, *_ = credential_drop_in(secret).read_text().splitlines()
    assert set(re.findall(r"finetuned[\w-]*@?\.service", first_line)) == RECIPIENTS[secret]
    loads = Setting("Service", "LoadCredential", f"{secret}:/etc/finetuned/credentials/{secret}")
    assert settings_of(credential_drop_in(secret)) == [loads]


def test_no_credential_goes_to_a_run():
    assert {path.stem for path in (UNITS / "dropins/credentials").iterdir()} == set(RECIPIENTS)
    allowed = {stage_unit(stage) for stage in ON_THE_NETWORK}
    assert set().union(*RECIPIENTS.values()) <= allowed


def test_only_the_daemons_user_may_ask_the_helper():
    socket = "finetuned-launch.socket"
    assert (values(socket, "SocketUser"), values(socket, "SocketMode")) == (["finetuned"], ["0600"])


@pytest.fixture
def with_user(tmp_path: Path) -> Path:
    """A root directory in which systemd-sysusers has made our user."""
    (tmp_path / "etc").mkdir()
    create_users(f"--root={tmp_path}")
    return tmp_path


def create_users(*options: str) -> str:
    tool = require_program("systemd-sysusers", "systemd")
    command = [tool, *options, str(UNITS / "finetuned.sysusers")]
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr


def test_the_users_file_makes_one_system_user_without_a_shell(with_user: Path):
    (line,) = (with_user / "etc/passwd").read_text().splitlines()
    name, _password, uid, gid, _words, home, shell = line.split(":")
    assert (name, home, shell) == ("finetuned", "/var/lib/finetuned", "/usr/sbin/nologin")
    assert 0 < int(uid) < 1000
    assert f"finetuned:x:{gid}:" in (with_user / "etc/group").read_text()


def test_the_users_file_can_be_read_a_second_time(with_user: Path):
    before = (with_user / "etc/passwd").read_text()
    create_users(f"--root={with_user}")
    assert (with_user / "etc/passwd").read_text() == before


def test_folders_have_the_promised_owners_and_modes(with_user: Path):
    if os.geteuid() != 0:
        pytest.skip("needs root: folders are given to other users")
    tool = require_program("systemd-tmpfiles", "systemd")
    subprocess.run([tool, f"--root={with_user}", "--create", str(UNITS / "finetuned.tmpfiles")], check=True)
    uid, gid = map(int, (with_user / "etc/passwd").read_text().split(":")[2:4])
    made = {line[1]: (with_user / line[1].lstrip("/")).stat() for line in folder_lines()}
    assert {path: (oct(stat.S_IMODE(each.st_mode)), each.st_uid, each.st_gid) for path, each in made.items()} == {
        "/var/spool/finetuned": ("0o2750", uid, gid),
        "/var/cache/finetuned": ("0o750", uid, gid),
        "/var/lib/finetuned": ("0o750", 0, gid),
        "/etc/finetuned": ("0o755", 0, 0),
        "/etc/finetuned/credentials": ("0o700", 0, 0),
        "/srv/finetuned": ("0o755", 0, 0),
        "/srv/finetuned/models": ("0o2770", 0, gid),
        "/srv/finetuned/data": ("0o2770", 0, gid),
    }


def test_nothing_is_ever_cleaned_up_by_its_age():
    assert {(line[0], line[5]) for line in folder_lines()} == {("d", "-")}


def folder_lines() -> list[list[str]]:
    """Type, path, mode, user, group and age of each line."""
    lines = (UNITS / "finetuned.tmpfiles").read_text().splitlines()
    return [line.split() for line in lines if not line.startswith("#")]


def test_the_journal_survives_a_reboot():
    assert Setting("Journal", "Storage", "persistent") in settings_of(UNITS / "journald-finetuned.conf")
