"""What needs a kernel of its own: reboots, power cuts that lose what nobody synced, memory limits, a full disk.

Run by hand (tests/run --vm), for it takes most of an hour: qemu without KVM. The tests run in the order in which they
stand here, on one machine, and go back to a snapshot of it.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from finetuned.core.events import Checkpointed, FailedRetry, Started, Stopped
from finetuned.core.job import Phase
from spools import require
from system.guest.image import image
from system.guest.jobs import MEMBER, SPOOL, GuestJob, a_spec
from system.guest.machine import become_one_that_trains, is_ready, user_data
from system.guest.nspawn import NspawnGuest
from system.guest.qemu import QemuGuest
from system.guest.supply import make_supply_disk, supply

pytestmark = pytest.mark.timeout(7200)

SUITE = "bookworm"
DISK_BYTES = 4 << 30
SPEC = a_spec(num_train_epochs=6, save_steps=5)
"""60 steps: enough for a power cut and a reboot with a checkpoint before each."""
INSTALLED = "installed"
TRAINING = "training"
"""Snapshots: after the installation, and after the first checkpoint of the job."""


@pytest.fixture(scope="module")
def vm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QemuGuest]:
    """A machine that was blank, and that our user data made what it is.

    In the folder that FINETUNED_VM names it is kept, installed, for the next time; remove the folder after a change.
    """
    for program in ("mmdebstrap", "qemu-system-x86_64", "qemu-img", "ssh"):
        require(shutil.which(program) is not None, f"needs {program}: tests/run --vm installs it")
    kept = os.environ.get("FINETUNED_VM")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("vm")
    key, supplies, installed = folder / "key", folder / "supply.raw", folder / INSTALLED
    guest = QemuGuest(image(SUITE, with_kernel=True), folder, [supplies], key)
    try:
        if installed.exists():
            guest.start(INSTALLED)
        else:
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
            guest.make(installed_disk(folder, supplies, key))
            start_again(guest)
            guest.save(INSTALLED)
            installed.touch()
        yield guest
    finally:
        if kept:
            guest.cut()
        else:
            guest.remove()


def installed_disk(folder: Path, supplies: Path, key: Path) -> Path:
    """The disk of a machine that was provisioned in nspawn, where that takes a minute, and here an hour."""
    given = supply(SUITE, folder / "supply")
    require(given.python is None, f"needs tests that run with the Python of {SUITE}, which the machine then has")
    make_supply_disk(given, supplies)
    data = user_data(given, "--authorized-key", key.with_suffix(".pub"))
    guest = NspawnGuest(image(SUITE, with_kernel=True), folder / "nspawn", data, given.folders)
    try:
        guest.start()
        become_one_that_trains(guest)
        guest.run("ssh-keygen", "-A")
        guest.off()
        guest.write_disk(folder / "installed.raw", DISK_BYTES)
    finally:
        guest.remove()
    return folder / "installed.raw"


def start_again(vm: QemuGuest) -> None:
    vm.start()
    vm.wait_for_boot()
    vm.until(lambda: is_ready(vm), 60, "the daemon")


def test_a_power_cut_straight_after_the_receipt_keeps_the_job(vm):
    vm.put(f"/home/{MEMBER}/kept.yaml", SPEC, user=MEMBER)
    waited = f"cp kept.yaml {SPOOL}/incoming/; until ls {SPOOL}/receipts/*-kept-*.json 2>/dev/null; do sleep 0.05; done"
    receipt = vm.run("sh", "-c", f"cd; {waited}", user=MEMBER)
    vm.cut()
    start_again(vm)
    job = GuestJob(vm, "kept")
    assert receipt.endswith(f"/{job.id}.json")
    assert job.phase in (Phase.QUEUED, Phase.ACTIVE)


@pytest.fixture(scope="module")
def training(vm: QemuGuest) -> GuestJob:
    job = GuestJob(vm, "kept")
    job.wait_for_next_checkpoint(300)
    vm.save(TRAINING)
    return job


@pytest.fixture(scope="module")
def undisturbed(training: GuestJob) -> dict[str, bytes]:
    """The weights of a run that nothing happened to since its receipt."""
    training.wait_for(Phase.DONE, 300)
    training.assert_steps_follow_each_other()
    assert len(training.of_kind(Started)) == 1
    return training.weights()


def back(vm: QemuGuest) -> None:
    """To the moment after the first checkpoint, in memory and on disk."""
    vm.cut()
    vm.start(TRAINING)


def test_a_power_cut_straight_after_a_checkpoint_keeps_it(vm, training, undisturbed):
    back(vm)
    before = training.checkpointed_step()
    vm.until(lambda: training.checkpointed_step() > before, 120, "another checkpoint")
    said = training.checkpointed_step()
    vm.cut()
    start_again(vm)
    assert training.wait_for_attempt(2, 120) >= said
    assert training.exits()[0] is None, "nobody was left to say how it ended"


def test_a_reboot_stops_the_worker_with_a_checkpoint_from_which_it_goes_on(vm, training):
    step = training.wait_for_next_checkpoint(120)
    vm.reboot()
    vm.wait_for_boot()
    assert training.wait_for_attempt(3, 120) >= step
    assert [(each.returncode, each.asked_to_stop) for each in training.exits()[1:2]] == [(0, True)]
    assert len(training.of_kind(Stopped)) == 1


def test_after_both_the_weights_are_those_of_an_undisturbed_run(training, undisturbed):
    training.wait_for(Phase.DONE, 300)
    training.assert_steps_follow_each_other()
    assert training.weights() == undisturbed


def test_a_worker_that_hits_the_memory_limit_is_named_as_out_of_host_memory(vm, training):
    back(vm)
    # Half of what is neither a file's nor swap: the kernel can take back none of it.
    counted = vm.run("cat", f"/sys/fs/cgroup{vm.unit(training.unit(), 'ControlGroup')}/memory.stat").split()
    limit = int(counted[counted.index("anon") + 1]) // 2
    vm.run("systemctl", "set-property", "--runtime", training.unit(), f"MemoryMax={limit}", "MemoryHigh=infinity")
    vm.until(lambda: training.exits()[0], 60, "the worker to be killed")
    ended = training.exits()[0]
    assert (ended.out_of_memory, ended.hung) == (True, False)
    vm.until(
        lambda: "host memory" in vm.run("finetunectl", "show", training.id, user=MEMBER), 30, "the cause to be named"
    )


def test_a_full_disk_keeps_the_older_checkpoint_and_the_job_goes_on_when_there_is_space_again(vm, training):
    back(vm)
    older = training.of_kind(Checkpointed)[-1]
    vm.shell("fallocate -l $(df --output=avail -B1 / | tail -1) /filler; cat /dev/zero >/filler.rest; sync")
    vm.until(lambda: training.exits()[0], 120, "the worker to give up")
    (ending,) = training.of_kind(FailedRetry)
    assert ending.cause == "disk"
    kept = vm.run("sh", "-c", f"ls {training.folder}/checkpoints").split()
    assert older.checkpoint in kept
    vm.run("rm", "/filler", "/filler.rest")
    assert training.wait_for_attempt(2, 240) >= older.step
    training.wait_for_next_checkpoint(120)
