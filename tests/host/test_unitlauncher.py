"""UnitLauncher: the conformance suite against a real systemd, and what it promises where systemd does not answer."""

import socket
import sys
import threading
from pathlib import Path

import pytest

import scripted_unit
import user_systemd
from finetuned.core.job import Launch, Stage
from finetuned.host.jobdir import JobDir
from finetuned.host.launch import LaunchFailed, Observation
from finetuned.host.unit import unit_name
from finetuned.host.unitlauncher import UnitLauncher, living_units
from launcher_conformance import STAGE, LauncherConformance, a_job, a_launch
from until import until
from user_systemd import UserSystemd

TESTS = Path(scripted_unit.__file__).parent
STOP_SECONDS = 8
"""The limit of ExecStopPost too, which starts a Python, on a machine that may be busy."""
NO_HELPER = Path("/nonexistent")


def a_unit(home: Path) -> str:
    """A template as units/ has them, without what needs the system's own manager."""
    run = f"{sys.executable} {scripted_unit.__file__}"
    return f"""
[Service]
Type=notify
NotifyAccess=main
KillMode=mixed
TimeoutStopSec={STOP_SECONDS}
WatchdogSec=30min
LimitCORE=0
Environment=PYTHONPATH={TESTS} FINETUNED_SPOOL={home}/spool FINETUNED_CONFIG={home}
ExecStart={run} run {STAGE} %i
ExecStopPost={run} ended {STAGE} %i
"""


@pytest.fixture(scope="module")
def systemd(tmp_path_factory: pytest.TempPathFactory):
    if reason := user_systemd.why_not():
        pytest.skip(reason)
    home = tmp_path_factory.mktemp("systemd")
    manager = UserSystemd(home, {f"finetuned-{STAGE}@.service": a_unit(home)})
    manager.spool = home / "spool"
    yield manager
    manager.close()


class ScriptedUnits(UnitLauncher):
    """Leaves the words for the unit to find."""

    def __init__(self, *script: str):
        super().__init__(scripted_unit.SYSTEMCTL, NO_HELPER)
        self._script = script

    def start(self, job: JobDir, launch: Launch) -> None:
        if self.observe(job, launch.stage) is Observation.GONE:
            (job.path / "script").write_text("\n".join(self._script))
        super().start(job, launch)


class TestUnitLauncher(LauncherConformance):
    save_seconds = STOP_SECONDS + 2.0

    @pytest.fixture(autouse=True)
    def spool_of_this_test(self, systemd: UserSystemd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        """The unit's name is the job's, and all tests call it alike: each finds its own spool behind one link."""
        systemd.spool.unlink(missing_ok=True)
        systemd.spool.symlink_to(tmp_path)
        for name, value in systemd.environment.items():
            monkeypatch.setenv(name, value)

    def launcher(self, *script: str, stop_timeout_seconds: float = 60.0) -> UnitLauncher:
        return ScriptedUnits(*script)

    def daemon_source(self, *script: str) -> str:
        return f"""
import scripted_unit
from finetuned.host.unitlauncher import UnitLauncher
(job.path / "script").write_text({chr(10).join(script)!r})
launcher = UnitLauncher(scripted_unit.SYSTEMCTL)
"""

    def test_one_look_serves_all_jobs_of_a_turn(self, tmp_path: Path):
        clock, looks = [0.0], []

        class Counting(UnitLauncher):
            def _look(self):
                looks.append(clock[0])
                return super()._look()

        launcher = Counting(scripted_unit.SYSTEMCTL, NO_HELPER, lambda: clock[0])
        jobs = [a_job(tmp_path, f"20261130-221500-tone-0000000{number}") for number in range(8)]
        assert {launcher.observe(job, STAGE) for job in jobs} == {Observation.GONE}
        assert looks == [0.0]
        clock[0] = 2.0
        launcher.observe(jobs[0], STAGE)
        assert looks == [0.0, 2.0]

    def test_a_launch_that_has_ended_is_not_opened_again_by_starting_its_unit_by_hand(
        self, job: JobDir, systemd: UserSystemd
    ):
        exit = self.run_to_the_end(job, "open", "exit:3")
        systemd.systemctl("start", "--no-block", unit_name(STAGE, job.job))
        launcher = self.launcher()
        until(lambda: launcher.observe(job, STAGE) is Observation.GONE)
        assert job.read_exit(1) == exit
        assert len(job.events_file(STAGE).read_text().splitlines()) == 1

    def test_a_unit_that_does_not_exist_is_a_launch_that_failed(self, tmp_path: Path):
        job = a_job(tmp_path)
        with pytest.raises(LaunchFailed, match=r"finetuned-prepare@.*not found"):
            self.launcher("exit:0").start(job, a_launch(job, stage=Stage.PREPARE))


@pytest.mark.parametrize("systemctl", [("/no/such/systemctl",), ("false",)])
def test_where_systemd_does_not_answer_nobody_can_tell_and_nothing_is_started(tmp_path: Path, systemctl):
    job = a_job(tmp_path)
    launcher = UnitLauncher(systemctl, NO_HELPER)
    assert launcher.observe(job, STAGE) is Observation.UNKNOWN
    with pytest.raises(LaunchFailed, match="systemd does not say"):
        launcher.start(job, a_launch(job))
    launcher.stop(job, STAGE)


def test_a_systemd_that_does_not_answer_is_asked_again_only_after_a_while(tmp_path: Path):
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(f"#!/bin/sh\necho >> {tmp_path}/asked\nexit 1\n")
    systemctl.chmod(0o755)
    clock = [0.0]
    launcher = UnitLauncher((str(systemctl),), NO_HELPER, lambda: clock[0])
    job = a_job(tmp_path)
    for clock[0] in (0.0, 2.0, 9.0, 11.0):
        assert launcher.observe(job, STAGE) is Observation.UNKNOWN
    assert (tmp_path / "asked").read_text() == "\n\n"


def test_units_at_rest_are_gone_and_those_with_a_job_queued_are_not():
    shown = """Id=finetuned-train@a.service
ActiveState=inactive
Job=17

Id=finetuned-train@b.service
ActiveState=failed
Job=

Id=finetuned-train@c.service
ActiveState=inactive

Id=finetuned-train@d.service
ActiveState=deactivating
Job=

Id=finetuned-train@e.service
ActiveState=active
"""
    assert living_units(shown) == {f"finetuned-train@{name}.service" for name in "ade"}
    assert living_units("") == frozenset()


class AHelper:
    """What systemd does for finetuned-launch.socket: one answer for each connection."""

    def __init__(self, path: Path, answer: bytes):
        self.asked: list[bytes] = []
        self._answer = answer
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        self._socket.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            with connection:
                self.asked.append(connection.recv(1000))
                connection.sendall(self._answer)


def an_idle_systemctl(folder: Path) -> str:
    """Says that no unit is loaded, and refuses everything else."""
    program = folder / "systemctl"
    program.write_text('#!/bin/sh\n[ "$1" = show ]\n')
    program.chmod(0o755)
    return str(program)


def test_where_a_helper_listens_it_is_asked_in_place_of_systemctl(tmp_path: Path):
    job = a_job(tmp_path)
    helper = AHelper(tmp_path / "helper", b"ok\n")
    UnitLauncher((an_idle_systemctl(tmp_path),), tmp_path / "helper").start(job, a_launch(job))
    assert helper.asked == [f"start {STAGE} {job.job}\n".encode()]


@pytest.mark.parametrize(("answer", "why"), [(b"Unit is masked.\n", "Unit is masked"), (b"", "without an answer")])
def test_what_the_helper_refuses_is_a_launch_that_failed(tmp_path: Path, answer: bytes, why: str):
    job = a_job(tmp_path)
    AHelper(tmp_path / "helper", answer)
    with pytest.raises(LaunchFailed, match=why):
        UnitLauncher((an_idle_systemctl(tmp_path),), tmp_path / "helper").start(job, a_launch(job))
