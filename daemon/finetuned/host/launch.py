"""How stages are started, stopped and observed; and the launcher that makes them children of a shim.

`ChildLauncher` is for a laptop, a container and the tests. A stage's identity is boot id, pid and start time, written
by its shim (host/shim.py), so that another daemon, or the same one after a crash, finds it again.
"""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Literal, Protocol

from finetuned.core.job import Launch, Stage
from finetuned.core.record import Record
from finetuned.host.environment import inherited, of_launch
from finetuned.host.files import is_locked
from finetuned.host.jobdir import JobDir, Unreadable, read_record
from finetuned.host.machine import boot_id
from finetuned.host.process import PROC, descendants_of, holders_of, is_alive
from finetuned.host.settings import Settings

_START_SECONDS = 10.0
_CHILD_NAME = re.compile(r"(\d{4,})\.child\.json")


class Observation(StrEnum):
    RUNNING = "running"
    GONE = "gone"
    UNKNOWN = "unknown"


class LaunchFailed(Exception):
    """The stage was not started; the message says why. Another launch may fare better."""


class StopFailed(Exception):
    """The stage could not even be asked to stop; the message says why."""


class Launcher(Protocol):
    def start(self, job: JobDir, launch: Launch) -> None:
        """Start a stage whose launch file is on disk. Raises LaunchFailed, also while one of that stage lives."""

    def stop(self, job: JobDir, stage: Stage) -> None:
        """Ask the stage to stop; may be repeated. Returns at once, whether or not there is anything to stop.

        Raises StopFailed.
        """

    def observe(self, job: JobDir, stage: Stage) -> Observation:
        """Whether anything of the stage lives. UNKNOWN means that nobody could tell and must cause no action."""


class Child(Record):
    """launches/NNNN.child.json: which processes a launch became, written by the shim."""

    format: Literal[1] = 1
    launch: int
    stage: Stage
    boot_id: str
    pid: int
    start_time: int
    """The shim's, in clock ticks after boot."""
    stage_pid: int | None = None
    stage_start_time: int | None = None


def stage_command(job: JobDir, launch: Launch) -> list[str]:
    """What runs a stage: the release that the launch names."""
    return [launch.release, "-m", f"finetuned.{launch.stage}", os.path.abspath(job.path), str(launch.number)]


class ChildLauncher:
    """Starts each stage under a shim in a session of its own; what it remembers is only who has to be buried."""

    def __init__(
        self,
        settings: Settings,
        command: Callable[[JobDir, Launch], list[str]] = stage_command,
        proc: Path = PROC,
    ):
        self._settings, self._command, self._proc = settings, command, proc
        self._shims: dict[tuple[str, Stage], subprocess.Popen[bytes]] = {}
        self._first_asked: dict[tuple[str, Stage], float] = {}

    def start(self, job: JobDir, launch: Launch) -> None:
        match self.observe(job, launch.stage):
            case Observation.RUNNING:
                raise LaunchFailed(f"{launch.stage} of {job.job} runs already; launch {launch.number} was not started")
            case Observation.UNKNOWN:
                raise LaunchFailed(f"nobody can tell whether {launch.stage} of {job.job} still runs; started nothing")
        self._first_asked.pop((job.job, launch.stage), None)
        words = os.memfd_create("shim-words")
        try:
            shim = self._spawn(job, launch, words)
            self._shims[job.job, launch.stage] = shim
            self._await_record(job, launch, shim, words)
        finally:
            os.close(words)

    def stop(self, job: JobDir, stage: Stage) -> None:
        self._bury()
        try:
            child = self._living(job, stage)
        except (OSError, Unreadable):
            child = None
        if child is not None and self._shim_lives(child):
            _signal(child.pid, signal.SIGTERM)
            return
        shim = self._shims.get((job.job, stage))
        if shim is not None:
            shim.terminate()
            return
        self._stop_unsupervised(job, stage, child)

    def observe(self, job: JobDir, stage: Stage) -> Observation:
        self._bury()
        try:
            if is_locked(job.lock_file(stage)) or (job.job, stage) in self._shims:
                return Observation.RUNNING
            return Observation.GONE if self._living(job, stage) is None else Observation.RUNNING
        except (OSError, Unreadable):
            return Observation.UNKNOWN

    def _spawn(self, job: JobDir, launch: Launch, words: int) -> subprocess.Popen[bytes]:
        shim = [launch.release, "-m", "finetuned.host.shim", os.path.abspath(job.path), launch.stage.value]
        limits = [str(launch.number), str(self._settings.stop_timeout_seconds)]
        try:
            return subprocess.Popen(
                [*shim, *limits, *self._command(job, launch)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=words,
                env=inherited(launch.stage, os.environ) | of_launch(launch, self._settings),
                cwd="/",  # Python looks for modules in the current directory first: it must be nobody's.
                start_new_session=True,
            )
        except OSError as error:
            raise LaunchFailed(f"{launch.release} cannot be started: {error.strerror}") from error

    def _await_record(self, job: JobDir, launch: Launch, shim: subprocess.Popen[bytes], words: int) -> None:
        """Return when another daemon could find the stage: its shim has said who it is."""
        deadline = time.monotonic() + _START_SECONDS
        while not _child_file(job, launch.number).exists():
            if shim.poll() is not None:
                del self._shims[job.job, launch.stage]
                last_words = os.pread(words, 1 << 16, 0).decode(errors="replace").strip().splitlines()
                why = f": {last_words[-1]}" if last_words else ""
                raise LaunchFailed(f"the shim of {launch.stage} ended at once with status {shim.returncode}{why}")
            if time.monotonic() > deadline:
                shim.terminate()
                raise LaunchFailed(f"the shim of {launch.stage} said nothing for {_START_SECONDS:.0f} s; stopped it")
            time.sleep(0.005)

    def _living(self, job: JobDir, stage: Stage) -> Child | None:
        """The newest launch of the stage of which something lives. Raises OSError or Unreadable when unknown."""
        for number in _launches_without_exit(job):
            child = read_record(_child_file(job, number), Child)
            if child is not None and child.stage == stage and (self._shim_lives(child) or self._stage_lives(child)):
                return child
        return None

    def _shim_lives(self, child: Child) -> bool:
        return child.boot_id == boot_id() and is_alive(child.pid, child.start_time, self._proc)

    def _stage_lives(self, child: Child) -> bool:
        if child.stage_pid is None or child.stage_start_time is None or child.boot_id != boot_id():
            return False
        return is_alive(child.stage_pid, child.stage_start_time, self._proc)

    def _stop_unsupervised(self, job: JobDir, stage: Stage, child: Child | None) -> None:
        """Stop a stage whose shim was killed: SIGTERM, and SIGKILL for all of it when asked again after the timeout."""
        mains = set(holders_of(job.lock_file(stage)))
        if child is not None and child.stage_pid is not None and self._stage_lives(child):
            mains.add(child.stage_pid)
        if not mains:
            return
        asked = self._first_asked.setdefault((job.job, stage), time.monotonic())
        if time.monotonic() - asked < self._settings.stop_timeout_seconds:
            for pid in mains:
                _signal(pid, signal.SIGTERM)
            return
        below = [pid for main in mains for pid in descendants_of(main)]
        for pid in [*mains, *below]:
            _signal(pid, signal.SIGKILL)

    def _bury(self) -> None:
        self._shims = {key: shim for key, shim in self._shims.items() if shim.poll() is None}


def _child_file(job: JobDir, number: int) -> Path:
    return job.launches / f"{number:04d}.child.json"


def _launches_without_exit(job: JobDir) -> list[int]:
    """Numbers of the launches that may still live, newest first; the newest even when it said how it ended."""
    try:
        names = set(os.listdir(job.launches))
    except FileNotFoundError:
        return []
    numbers = sorted((int(match[1]) for name in names if (match := _CHILD_NAME.fullmatch(name))), reverse=True)
    return [number for number in numbers if number == numbers[0] or job.exit_file(number).name not in names]


def _signal(pid: int, number: signal.Signals) -> None:
    """Signal a process if it is still there and ours."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return
