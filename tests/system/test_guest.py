"""The service on a machine that boots: provisioned by cloud-init with nobody's hand in it, then killed in every way.

Here in systemd-nspawn, on Debian 12 and 13; what needs a kernel of its own is in guest/vm_proof.py. docs/real-boot.md
says how to run both, and what they have shown. The tests of one guest run in the order in which they stand here.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from finetuned.core.events import Finished, Started
from finetuned.core.job import Exit, Phase
from spools import require
from system.guest.guest import Guest
from system.guest.image import image
from system.guest.jobs import MEMBER, SPOOL, GuestJob, a_spec, drop
from system.guest.machine import CREDENTIALS, STAMP, become_one_that_trains, install, is_ready, user_data
from system.guest.nspawn import NspawnGuest
from system.guest.supply import NEWER, Supply, supply

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

EPOCHS = 60
"""600 steps: enough for four mishaps with a checkpoint before each."""
HANG_MINUTES = 0.3
"""After which a step counts as hung; no step here is nearly as slow."""
STRANGER = "stranger"
"""An ordinary user outside the group."""

everything = pytest.mark.parametrize("suite", ["bookworm"], indirect=True, scope="module")
"""What does not depend on the release of systemd is shown once."""


@pytest.fixture(scope="module", params=["bookworm", "trixie"])
def suite(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def given(suite: str, tmp_path_factory: pytest.TempPathFactory) -> Supply:
    require(os.geteuid() == 0, "needs root: it boots a machine with systemd-nspawn")
    for program, package in (("mmdebstrap", "mmdebstrap"), ("systemd-nspawn", "systemd-container")):
        require(shutil.which(program) is not None, f"needs {program}: deploy/apt-install {package}")
    return supply(suite, tmp_path_factory.getbasetemp() / "supply")


@pytest.fixture(scope="module")
def guest(suite: str, given: Supply, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    """A machine that was blank, and that our user data made what it is."""
    guest = NspawnGuest(image(suite), tmp_path_factory.mktemp(suite) / "guest", user_data(given), given.folders)
    try:
        guest.start()
        become_one_that_trains(guest)
        guest.put("/etc/finetuned/finetuned.yaml", f"hang_minutes: {HANG_MINUTES}\n")
        guest.run("useradd", "--create-home", STRANGER)
        yield guest
    finally:
        guest.remove()


def test_a_blank_machine_becomes_one_that_trains_with_nobody_logged_in(guest):
    assert guest.run("cat", "/proc/1/comm") == "systemd"
    said = json.loads(guest.run("cloud-init", "status", "--format", "json"))
    assert (said["status"], said["errors"]) == ("done", [])
    assert guest.run("systemctl", "--failed", "--no-legend", "--plain") == ""
    assert guest.read(STAMP) is not None
    assert guest.run("ps", "-o", "user=", "-p", guest.unit("finetuned.service", "MainPID")) == "finetuned"


def test_doctor_finds_nothing_amiss(guest):
    found = json.loads(guest.run("finetunectl", "doctor", "--json", user=MEMBER))
    assert [check for check in found["checks"] if check["state"] == "fail"] == []
    assert found["ok"]


def test_the_second_boot_provisions_nothing_again(guest):
    stamped = guest.run("stat", "--format=%Y %i", STAMP)
    guest.reboot()
    guest.wait_for_boot()
    guest.until(lambda: is_ready(guest), 60, "the daemon after the second boot")
    assert guest.run("stat", "--format=%Y %i", STAMP) == stamped
    assert guest.unit("finetuned-provision.service", "ConditionResult") == "no"
    assert len(guest.run("ls", "/var/lib/cloud/instances").split()) == 1
    assert guest.run("systemctl", "--failed", "--no-legend", "--plain") == ""


@pytest.fixture(scope="module")
def undisturbed(guest: Guest) -> GuestJob:
    """What nothing happens to, and the disturbed job is compared with."""
    return drop(guest, "undisturbed", a_spec(num_train_epochs=EPOCHS))


def test_a_job_file_copied_by_a_member_of_the_group_trains_as_the_daemons_user_and_ends_done(guest, undisturbed):
    guest.until(lambda: undisturbed.of_kind(Started), 120, "the worker")
    assert guest.run("ps", "-o", "user=", "-p", str(undisturbed.worker())) == "finetuned"
    assert f"/{undisturbed.unit()}" in guest.run("cat", f"/proc/{undisturbed.worker()}/cgroup")
    undisturbed.wait_for(Phase.DONE, 200)
    assert len(undisturbed.of_kind(Finished)) == 1
    said = guest.run("journalctl", "--output=json", f"FINETUNED_JOB={undisturbed.id}").splitlines()
    assert {"started", "finished"} <= {json.loads(entry).get("FINETUNED_EVENT") for entry in said}
    guest.run("cat", f"{undisturbed.folder}/artifacts/adapter/adapter_config.json", user=MEMBER)


def test_a_user_outside_the_group_can_neither_read_nor_write_the_spool(guest, undisturbed):
    job = undisturbed.folder
    for attempt in (
        ["ls", SPOOL],
        ["ls", f"{SPOOL}/incoming"],
        ["touch", f"{SPOOL}/incoming/job.yaml"],
        ["touch", f"{SPOOL}/requests/job.cancel"],
        ["cat", f"{job}/spec.yaml"],
        ["cat", f"{job}/artifacts/adapter/adapter_config.json"],
        ["ls", "/srv/finetuned/models"],
        ["ls", CREDENTIALS],
    ):
        ended = guest.ran(*attempt, user=STRANGER)
        assert (ended.returncode != 0, b"Permission denied" in ended.stderr) == (True, True), attempt


@pytest.mark.parametrize(
    "request_",
    [
        ["start", "systemd-tmpfiles-clean.service"],
        ["stop", "systemd-journald.service"],
        ["restart", "finetuned.service"],
        ["start", "finetuned-provision.service"],
        ["stop", "finetuned-stop-machine.service"],
        ["restart", "finetuned-train@x.service"],
        ["start", "finetuned-train@x.socket"],
        ["daemon-reload"],
        ["poweroff"],
    ],
    ids=" ".join,
)
def test_the_daemons_user_can_ask_nothing_else_of_systemd(guest, request_):
    ended = guest.ran("systemctl", "--no-ask-password", *request_, user="finetuned")
    assert ended.returncode != 0
    assert b"authentication required" in ended.stderr or b"Access denied" in ended.stderr


def test_the_daemons_user_can_run_no_program_as_a_unit(guest):
    assert guest.ran("systemd-run", "--no-ask-password", "touch", "/root/ran", user="finetuned").returncode != 0
    assert guest.read("/root/ran") is None


def test_the_daemons_user_can_start_what_stops_the_bill(guest):
    guest.put("/etc/finetuned/stop-machine", "#!/bin/sh\nid -un >/run/stopped\n")
    guest.run("chmod", "0755", "/etc/finetuned/stop-machine")
    guest.run("systemctl", "--no-ask-password", "start", "finetuned-stop-machine.service", user="finetuned")
    assert guest.run("cat", "/run/stopped") == "root"


@pytest.fixture(scope="class")
def endless(guest: Guest) -> Iterator[GuestJob]:
    """A job that runs as long as it is looked at."""
    job = drop(guest, "endless", a_spec(num_train_epochs=5000))
    job.wait_for_step(1, 120)
    yield job
    guest.run("finetunectl", "cancel", job.id, user=MEMBER)
    job.wait_for(Phase.CANCELLED, 60)


@contextmanager
def going_on(job: GuestJob) -> Iterator[None]:
    """The same worker takes steps before, meanwhile and after."""
    worker, step = job.worker(), job.step()
    assert worker > 0
    yield
    now = job.step()
    assert now > step
    job.wait_for_step(now + 1)
    assert job.worker() == worker
    assert len(job.of_kind(Started)) == 1


def daemon(guest: Guest) -> int:
    return int(guest.unit("finetuned.service", "MainPID"))


class TestWhileAJobRuns:
    def test_the_worker_sees_no_credentials_of_other_stages(self, guest, endless):
        guest.put(f"{CREDENTIALS}/hub_token", "hf_secret")
        holder = (
            "--unit=holder",
            "--property=User=finetuned",
            f"--property=LoadCredential=hub_token:{CREDENTIALS}/hub_token",
        )
        guest.run("systemd-run", "--quiet", *holder, "sleep", "infinity")
        held = "/run/credentials/holder.service/hub_token"
        guest.until(lambda: guest.run("runuser", "-u", "finetuned", "cat", held) == "hf_secret", 10, "the credential")
        inside = ["nsenter", f"--target={endless.worker()}", "--mount", "runuser", "-u", "finetuned", "--"]
        for secret in (held, f"{CREDENTIALS}/hub_token"):
            assert guest.ran(*inside, "cat", secret).returncode != 0
        # As root too: it is not there at all.
        assert guest.ran("nsenter", f"--target={endless.worker()}", "--mount", "cat", held).returncode != 0
        assert "CREDENTIALS_DIRECTORY" not in guest.run("cat", f"/proc/{endless.worker()}/environ")
        guest.run("systemctl", "stop", "holder.service")

    def test_a_killed_daemon_comes_back_and_the_worker_goes_on(self, guest, endless):
        killed = daemon(guest)
        with going_on(endless):
            guest.run("systemctl", "kill", "--signal=KILL", "finetuned.service")
            guest.until(lambda: is_ready(guest) and daemon(guest) != killed, 30, "the daemon to come back")

    def test_a_restarted_daemon_finds_the_worker_that_goes_on(self, guest, endless):
        before = daemon(guest)
        with going_on(endless):
            guest.run("systemctl", "restart", "finetuned.service")
            assert daemon(guest) != before

    def test_an_upgrade_lets_the_worker_go_on_with_the_release_it_began_with(self, guest, given, endless):
        ((launch, _),) = endless.launches()
        before = daemon(guest)
        with going_on(endless):
            install(guest, given, NEWER, "--upgrade")
            assert daemon(guest) != before
        assert NEWER in guest.run("finetunectl", "--version")
        assert NEWER not in launch.release
        assert guest.run("readlink", f"/proc/{endless.worker()}/exe") == guest.run("readlink", "-f", launch.release)
        assert launch.release in guest.run("cat", f"/proc/{endless.worker()}/cmdline")


@pytest.fixture(scope="module")
def disturbed(guest: Guest, undisturbed: GuestJob) -> GuestJob:
    undisturbed.wait_for(Phase.DONE, 200)
    return drop(guest, "disturbed", a_spec(num_train_epochs=EPOCHS))


def goes_on_after(mishap: Callable[[], object], job: GuestJob) -> Exit | None:
    """The job goes on from the newest checkpoint that it had; how systemd says that the worker ended."""
    step = job.wait_for_next_checkpoint(120)
    attempt = len(job.of_kind(Started))
    mishap()
    assert job.wait_for_attempt(attempt + 1, 120) >= step
    return job.exits()[attempt - 1]


@everything
def test_a_killed_worker_goes_on_from_its_newest_checkpoint(guest, disturbed):
    ended = goes_on_after(lambda: guest.run("kill", "-KILL", str(disturbed.worker())), disturbed)
    assert (ended.signal, ended.hung, ended.out_of_memory, ended.asked_to_stop) == (9, False, False, False)


@everything
def test_a_worker_that_hangs_is_killed_and_goes_on_from_its_newest_checkpoint(guest, disturbed):
    ended = goes_on_after(lambda: guest.run("kill", "-STOP", str(disturbed.worker())), disturbed)
    assert (ended.hung, ended.out_of_memory, ended.asked_to_stop) == (True, False, False)


@everything
def test_a_reboot_stops_the_worker_with_a_checkpoint_from_which_it_goes_on(guest, disturbed):
    def reboot() -> None:
        guest.reboot()
        guest.wait_for_boot()

    ended = goes_on_after(reboot, disturbed)
    assert (ended.returncode, ended.asked_to_stop) == (0, True)


@everything
def test_after_a_power_cut_the_job_goes_on_from_its_newest_checkpoint(guest, disturbed):
    def cut() -> None:
        guest.cut()
        guest.start()
        guest.wait_for_boot()

    assert goes_on_after(cut, disturbed) is None, "nobody was left to say how it ended"


@everything
def test_whatever_happened_on_the_way_the_weights_are_those_of_an_undisturbed_run(guest, undisturbed, disturbed):
    disturbed.wait_for(Phase.DONE, 200)
    disturbed.assert_steps_follow_each_other()
    assert len(disturbed.of_kind(Started)) == 5
    assert disturbed.weights() == undisturbed.weights()
