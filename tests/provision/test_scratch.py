"""Disks: local ones are wiped only when they are known and blank; the spool's is formatted once and kept."""

import os
from typing import Any

import pytest
from provision.machine import ProvisionFailed
from provision.main import mount_scratch
from provision.scratch import Scratch

from blank_machine import BlankMachine

AWS_SCRATCH, AWS_VOLUME = "Amazon EC2 NVMe Instance Storage", "Amazon Elastic Block Store"


def a_disk(blank: BlankMachine, name: str, model: str, **signature: str) -> None:
    """`signature`: what blkid says of it."""
    blank.put(f"dev/{name}", "")
    blank.put(f"sys/class/block/{name}/device/model", f"{model}   \n")
    if signature:
        blank.says(f"blkid .*/dev/{name}$", "\n".join(f"{key}={value}" for key, value in signature.items()))


def scratch(blank: BlankMachine, **settings: Any) -> Scratch:
    blank.settings(**settings)
    return Scratch(blank.machine, blank.read_settings())


def test_a_local_disk_known_by_its_model_becomes_the_cache(blank: BlankMachine):
    a_disk(blank, "nvme0n1", AWS_VOLUME)
    a_disk(blank, "nvme1n1", AWS_SCRATCH)
    stage = scratch(blank)
    assert stage.missing() == ["/dev/nvme1n1 to mount at /var/cache/finetuned"]
    stage.act()
    assert blank.changed() == [
        "mkfs.ext4 -q -m 0 -E nodiscard -L finetuned-cache /dev/nvme1n1",
        "mount -o noatime /dev/nvme1n1 /var/cache/finetuned",
    ]  # fmt: skip
    assert stage.missing() == []


def test_volumes_that_outlive_the_machine_are_never_looked_at(blank: BlankMachine):
    a_disk(blank, "nvme0n1", AWS_VOLUME)
    a_disk(blank, "nvme2n1", "MSFT NVMe Accelerator v1.0")
    a_disk(blank, "sda", "QEMU HARDDISK")
    assert scratch(blank).missing() == []
    assert blank.asked("blkid") == []


def test_a_local_disk_of_gcp_is_known_by_its_name(blank: BlankMachine):
    a_disk(blank, "nvme0n1", "nvme_card")
    by_id = blank.root / "dev/disk/by-id"
    by_id.mkdir(parents=True)
    (by_id / "google-local-nvme-ssd-0").symlink_to("../../nvme0n1")
    (by_id / "google-boot").symlink_to("../../sda")
    assert scratch(blank).missing() == ["/dev/nvme0n1 to mount at /var/cache/finetuned"]


def test_several_local_disks_are_striped(blank: BlankMachine):
    for name in ("nvme1n1", "nvme2n1", "nvme3n1"):
        a_disk(blank, name, AWS_SCRATCH)
    scratch(blank).act()
    created, made, mounted = blank.changed()
    assert created.startswith("mdadm --create /dev/md/finetuned-cache --run --level=0")
    assert created.endswith("--raid-devices=3 /dev/nvme1n1 /dev/nvme2n1 /dev/nvme3n1")
    assert made.endswith("/dev/md/finetuned-cache")
    assert mounted == "mount -o noatime /dev/md/finetuned-cache /var/cache/finetuned"


@pytest.mark.parametrize("signature", [
    {"TYPE": "ext4", "LABEL": "data"},
    {"TYPE": "LVM2_member", "USAGE": "raid"},
    {"PTTYPE": "gpt"},
    {"TYPE": "linux_raid_member", "LABEL": "db:7"},
])  # fmt: skip
def test_a_local_disk_with_anything_of_others_on_it_is_left_alone(
    blank: BlankMachine, signature: dict[str, str], capsys
):
    a_disk(blank, "nvme1n1", AWS_SCRATCH, **signature)
    stage = scratch(blank)
    assert stage.missing() == []
    stage.act()
    assert blank.changed() == []
    assert "/dev/nvme1n1 is left alone, it holds something" in capsys.readouterr().out


@pytest.mark.parametrize(("path", "text"), [
    ("proc/mounts", "/dev/vda1 / ext4 rw 0 0\n/dev/nvme1n1 /opt/dlami/nvme xfs rw 0 0\n"),
    ("sys/class/block/nvme1n1/nvme1n1p1/partition", "1\n"),
    ("sys/class/block/nvme1n1/holders/dm-0", ""),
])  # fmt: skip
def test_a_local_disk_in_use_is_left_alone(blank: BlankMachine, path: str, text: str):
    a_disk(blank, "nvme1n1", AWS_SCRATCH)
    blank.put(path, text)
    scratch(blank).act()
    assert blank.changed() == []


def test_a_disk_of_which_nothing_can_be_told_is_left_alone(blank: BlankMachine):
    a_disk(blank, "nvme1n1", AWS_SCRATCH)
    blank.says("blkid", "ambivalent result", 8)
    scratch(blank).act()
    assert blank.changed() == []


def test_our_cache_of_an_earlier_boot_is_mounted_and_not_made_again(blank: BlankMachine):
    a_disk(blank, "nvme1n1", AWS_SCRATCH, TYPE="ext4", LABEL="finetuned-cache")
    scratch(blank).act()
    assert blank.changed() == ["mount -o noatime /dev/nvme1n1 /var/cache/finetuned"]


def test_our_stripes_of_an_earlier_boot_are_put_together_again(blank: BlankMachine):
    for name in ("nvme1n1", "nvme2n1"):
        a_disk(blank, name, AWS_SCRATCH, TYPE="linux_raid_member", LABEL="any:finetuned-cache")
    scratch(blank).act()
    assert blank.changed() == [
        "mdadm --assemble /dev/md/finetuned-cache /dev/nvme1n1 /dev/nvme2n1",
        "mount -o noatime /dev/md/finetuned-cache /var/cache/finetuned",
    ]


def test_our_stripes_that_udev_put_together_are_only_mounted(blank: BlankMachine):
    for name in ("nvme1n1", "nvme2n1"):
        a_disk(blank, name, AWS_SCRATCH, TYPE="linux_raid_member", LABEL="any:finetuned-cache")
        blank.put(f"sys/class/block/{name}/holders/md127", "")
    blank.put("dev/md/finetuned-cache", "")
    stage = scratch(blank)
    assert stage.missing() == ["/dev/nvme1n1 /dev/nvme2n1 to mount at /var/cache/finetuned"]
    stage.act()
    assert blank.changed() == ["mount -o noatime /dev/md/finetuned-cache /var/cache/finetuned"]


def test_a_new_cache_belongs_to_the_user_of_the_service(blank: BlankMachine):
    blank.put("etc/passwd", f"finetuned:x:{os.getuid()}:{os.getgid()}::/var/lib/finetuned:/usr/sbin/nologin\n")
    a_disk(blank, "nvme1n1", AWS_SCRATCH)
    scratch(blank).act()
    cache = (blank.root / "var/cache/finetuned").stat()
    assert (cache.st_uid, cache.st_mode & 0o777) == (os.getuid(), 0o750)


def test_the_owner_may_name_disks_that_no_model_tells(blank: BlankMachine):
    a_disk(blank, "vdb", "")
    assert scratch(blank, scratch_disks=["/dev/vd[b-z]"]).missing() == ["/dev/vdb to mount at /var/cache/finetuned"]


def test_the_disks_are_mounted_at_each_boot_and_only_once(blank: BlankMachine):
    a_disk(blank, "nvme1n1", AWS_SCRATCH)
    assert mount_scratch(blank.machine, blank.read_settings()) == 0
    blank.forget()
    assert mount_scratch(blank.machine, blank.read_settings()) == 0
    assert blank.changed() == []


# The spool.

SPOOL = "/dev/disk/by-id/volume-7"


def a_spool_disk(blank: BlankMachine, **signature: str) -> None:
    a_disk(blank, "vdb", "", **signature)
    (blank.root / "dev/disk/by-id").mkdir(parents=True)
    (blank.root / SPOOL.lstrip("/")).symlink_to("../../vdb")


def test_a_blank_spool_disk_is_formatted_once(blank: BlankMachine):
    a_spool_disk(blank)
    stage = scratch(blank, spool_disk=SPOOL)
    assert stage.missing() == [f"{SPOOL} to mount at /var/spool/finetuned"]
    stage.act()
    assert blank.changed() == [
        "mkfs.ext4 -q -m 0 -L finetuned-spool /dev/vdb",
        "mount -o noatime /dev/vdb /var/spool/finetuned",
    ]
    assert stage.missing() == []


def test_a_spool_disk_with_our_label_is_never_formatted(blank: BlankMachine):
    a_spool_disk(blank, TYPE="ext4", LABEL="finetuned-spool")
    scratch(blank, spool_disk=SPOOL).act()
    assert blank.changed() == ["mount -o noatime /dev/vdb /var/spool/finetuned"]


@pytest.mark.parametrize("signature", [{"TYPE": "ext4"}, {"TYPE": "xfs", "LABEL": "home"}, {"PTTYPE": "dos"}])
def test_a_spool_disk_with_anything_else_on_it_is_refused(blank: BlankMachine, signature: dict[str, str]):
    a_spool_disk(blank, **signature)
    with pytest.raises(ProvisionFailed, match="holds something that is not ours") as failed:
        scratch(blank, spool_disk=SPOOL).act()
    assert "wipefs" in failed.value.hint
    assert blank.changed() == []


def test_a_spool_disk_that_is_mounted_elsewhere_is_refused(blank: BlankMachine):
    a_spool_disk(blank)
    blank.put("proc/mounts", "/dev/vdb /mnt ext4 rw 0 0\n")
    with pytest.raises(ProvisionFailed, match="is mounted at /mnt"):
        scratch(blank, spool_disk=SPOOL).act()


def test_the_daemon_does_not_start_on_a_spool_whose_disk_is_missing(blank: BlankMachine):
    a_spool_disk(blank)
    blank.settings(spool_disk=SPOOL)
    blank.provision()
    gate = blank.read("etc/systemd/system/finetuned.service.d/10-provisioned.conf")
    assert "ConditionPathIsMountPoint=/var/spool/finetuned\n" in gate


def test_several_local_disks_bring_the_program_that_joins_them(blank: BlankMachine):
    for name in ("nvme1n1", "nvme2n1"):
        a_disk(blank, name, AWS_SCRATCH)
    blank.archive({"mdadm": "4.2"})
    blank.provision()
    assert any(line.endswith(" install mdadm") for line in blank.asked("apt-get"))


def test_a_spool_disk_that_is_not_there_is_told_with_the_way_to_name_it(blank: BlankMachine):
    with pytest.raises(ProvisionFailed, match="volume-7 is not there") as failed:
        scratch(blank, spool_disk=SPOOL).act()
    assert "by-id" in failed.value.hint
