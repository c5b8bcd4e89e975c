"""The launcher of a server: stages are systemd's units, started and stopped by asking it, never children of ours."""

import os
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from finetuned.core.job import Launch, Stage
from finetuned.host.files import is_locked
from finetuned.host.jobdir import JobDir
from finetuned.host.launch import LaunchFailed, Observation, StopFailed
from finetuned.host.unit import is_job_id, unit_name

SYSTEMCTL = ("systemctl", "--no-ask-password")
HELPER = Path("/run/finetuned-launch.sock")
"""Where it is, it starts and stops units for us: Ubuntu 22.04's polkit has no rule that could let us do so."""

_ALL_STAGES = "finetuned-*@*.service"
_RESTING = ("inactive", "failed")
_SECONDS = 10.0
_SNAPSHOT_SECONDS = 1.0
_SILENCE_SECONDS = 10.0
"""After no answer, the next question waits: a turn must not spend its time, and the watchdog's patience, on waiting."""
_ANSWER_BYTES = 4096


class UnitLauncher:
    """Starts finetuned-STAGE@JOB.service; what systemd says of all of them is asked once and believed for a moment."""

    def __init__(
        self,
        systemctl: Sequence[str] = SYSTEMCTL,
        helper: Path = HELPER,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._systemctl, self._helper, self._clock = systemctl, helper, clock
        self._snapshot: frozenset[str] | None = None
        self._snapshot_until = -1.0

    def is_answered(self) -> bool:
        """Whether systemd says what runs: without it nothing could ever be started."""
        return self._living_units() is not None

    def start(self, job: JobDir, launch: Launch) -> None:
        self._forget()
        match self.observe(job, launch.stage):
            case Observation.RUNNING:
                raise LaunchFailed(f"{launch.stage} of {job.job} runs already; launch {launch.number} was not started")
            case Observation.UNKNOWN:
                raise LaunchFailed(f"systemd does not say whether {launch.stage} of {job.job} runs; started nothing")
        if not is_job_id(job.job):
            raise LaunchFailed(f"{job.job!r} cannot be the name of a unit; ids of jobs are made of a-z, 0-9 and -")
        if refusal := self._ask("start", launch.stage, job.job):
            raise LaunchFailed(f"{unit_name(launch.stage, job.job)}: {refusal}")
        self._forget()

    def stop(self, job: JobDir, stage: Stage) -> None:
        self._forget()
        if unit_name(stage, job.job) not in (self._living_units() or ()):
            return
        if refusal := self._ask("stop", stage, job.job):
            raise StopFailed(f"{unit_name(stage, job.job)}: {refusal}")
        self._forget()

    def observe(self, job: JobDir, stage: Stage) -> Observation:
        try:
            if is_locked(job.lock_file(stage)):
                return Observation.RUNNING
        except OSError:
            return Observation.UNKNOWN
        living = self._living_units()
        if living is None:
            return Observation.UNKNOWN
        return Observation.RUNNING if unit_name(stage, job.job) in living else Observation.GONE

    def _living_units(self) -> frozenset[str] | None:
        """Names of all units of stages that run, start, stop or are about to; None when systemd does not answer.

        One answer serves all jobs of a turn: a full look at 10,000 jobs must not run 10,000 programs.
        """
        if self._clock() >= self._snapshot_until:
            self._snapshot = self._look()
            believed_seconds = _SILENCE_SECONDS if self._snapshot is None else _SNAPSHOT_SECONDS
            self._snapshot_until = self._clock() + believed_seconds
        return self._snapshot

    def _forget(self) -> None:
        self._snapshot_until = -1.0

    def _look(self) -> frozenset[str] | None:
        command = [*self._systemctl, "show", "--property=Id,ActiveState,Job", _ALL_STAGES]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return living_units(answer.stdout) if answer.returncode == 0 else None

    def _ask(self, verb: str, stage: Stage, job: str) -> str:
        """Have a unit started or stopped; why it was not, or nothing."""
        if self._helper.exists():
            return _ask_helper(self._helper, verb, stage, job)
        return run_systemctl(self._systemctl, verb, unit_name(stage, job))


def run_systemctl(systemctl: Sequence[str], verb: str, unit: str) -> str:
    """Queue `verb` for `unit`; why that was refused, or nothing."""
    try:
        answer = subprocess.run(
            [*systemctl, verb, "--no-block", unit], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"systemctl {verb} did not answer within {_SECONDS:.0f} s"
    except OSError as error:
        return f"{systemctl[0]} cannot be run: {error.strerror}"
    if answer.returncode == 0:
        return ""
    last_words = answer.stderr.strip().splitlines()
    return last_words[0] if last_words else f"systemctl {verb} ended with status {answer.returncode}"


def living_units(shown: str) -> frozenset[str]:
    """From the words of `systemctl show`: units that are not at rest, or that have a job queued."""
    living = set()
    for block in shown.split("\n\n"):
        said = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        is_resting = said.get("ActiveState") in _RESTING and said.get("Job", "") in ("", "0")
        if said.get("Id") and not is_resting:
            living.add(said["Id"])
    return frozenset(living)


def _ask_helper(path: Path, verb: str, stage: Stage, job: str) -> str:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_SECONDS)
            connection.connect(os.fspath(path))
            connection.sendall(f"{verb} {stage} {job}\n".encode())
            answer = b""
            while len(answer) < _ANSWER_BYTES and (piece := connection.recv(_ANSWER_BYTES)):
                answer += piece
    except OSError as error:
        return f"{path} does not answer: {error.strerror or error}"
    said = answer.decode(errors="replace").strip()
    return "" if said == "ok" else said or f"{path} closed the connection without an answer"
