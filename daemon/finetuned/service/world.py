"""The real world of a turn: spool, launcher, clocks. Each write is durable before the next begins."""

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime

from finetuned.core.job import Launch, Phase, Result, Stage, Wish
from finetuned.core.lifecycle import Alive, JobFacts
from finetuned.core.messages import Kind, Told, status_of_daemon
from finetuned.core.plan import Machine, RunPlan
from finetuned.host.claim import Arrivals, boottime, copy_spec
from finetuned.host.files import Untrustworthy, rename_durably, sync_directory
from finetuned.host.jobdir import JobDir, Unreadable, write_record
from finetuned.host.launch import Launcher, LaunchFailed, Observation, StopFailed
from finetuned.host.machine import boot_id, look_at
from finetuned.host.observe import Observer
from finetuned.host.receipts import write_receipt
from finetuned.host.release import stage_python
from finetuned.host.requests import forget_resume, take_requests
from finetuned.host.settings import Settings
from finetuned.host.spool import Busy, Spool
from finetuned.service.turn import JobTrouble

_log = logging.getLogger(__name__)

_FULL_LOOK_SECONDS = 60.0


class DiskWorld:
    """`service.turn.World` over a spool directory."""

    def __init__(
        self,
        spool: Spool,
        settings: Settings,
        launcher: Launcher,
        arrivals: Arrivals,
        clock: Callable[[], float] = boottime,
    ):
        self._spool, self._settings = spool, settings
        self._launcher, self._arrivals, self._clock = launcher, arrivals, clock
        self._observer = Observer(launcher, lambda: self._machine, clock)
        self._machine = self._look_at_machine()
        self._where: dict[str, JobDir] = {}
        self._resumed: set[str] = set()
        self._last_said: dict[str, str] = {}
        self._warned: set[str] = set()
        self._next_full_look = clock() + _FULL_LOOK_SECONDS

    def receive(self) -> None:
        try:
            for job in self._arrivals.claim():
                write_receipt(self._spool, job)
            self._resumed = {job.job for job in take_requests(self._spool, self.now(), self._warn)}
            self._spool.keep_reserve()
        except (OSError, Unreadable) as error:
            self._warn(f"the doors of {self._spool.path} cannot be looked at: {error}; trying again every turn")

    def jobs(self) -> Iterable[str]:
        live = self._spool.jobs(Phase.QUEUED, Phase.ACTIVE, Phase.OUTBOX)
        resumed = [job for job in map(self._spool.get, self._resumed) if job is not None]
        self._where = {job.job: job for job in (*live, *resumed)}
        if self._clock() >= self._next_full_look:
            self._next_full_look = self._clock() + _FULL_LOOK_SECONDS
            self._warned.clear()
            with contextlib.suppress(OSError):  # The spool is away, which `receive` says.
                self._machine = self._look_at_machine()
            self._observer.look_at_all_again(set(self._where))
            self._last_said = {job: said for job, said in self._last_said.items() if job in self._where}
        return sorted(self._where)

    def facts(self, job: str) -> JobFacts:
        with self._trouble(job):
            found = self._observer.observe(self._where[job], job in self._resumed)
        if Alive.UNKNOWN in (found.prepare.alive, found.train.alive):
            self._warn("it cannot be told which stages run (does systemctl answer?); nothing is started or stopped now")
        return found

    def _look_at_machine(self) -> Machine:
        machine = look_at(self._spool.path, self._settings.cpu_slots)
        if machine.trouble:
            _log.error("%s; finetunectl doctor says more", machine.trouble)
        return machine

    def devices(self) -> tuple[str, ...]:
        return tuple(device.id for device in self._machine.devices)

    def prepare_slots(self) -> int:
        return self._settings.prepare_slots

    def holds_devices(self, job: str) -> bool:
        where = self._where[job]
        return where.phase is Phase.ACTIVE and self._launcher.observe(where, Stage.TRAIN) is not Observation.GONE

    def say(self, job: str, kind: Kind, what: str, mistake: Exception | None = None) -> None:
        if self._last_said.get(job) != what:
            level = logging.ERROR if mistake else logging.INFO
            told = {"told": Told(kind, what), "job": job}
            _log.log(level, "job %s: %s", job, what, exc_info=mistake, extra=told)
            self._last_said[job] = what

    def status(self) -> str:
        """What runs, on one line."""
        running = self._observer.running()
        queued = sum(where.phase is Phase.QUEUED and job not in running for job, where in self._where.items())
        return status_of_daemon(running, queued)

    def now(self) -> datetime:
        return datetime.now(UTC)

    def _warn(self, what: str) -> None:
        """Trouble that lasts is told once a minute, not once a turn."""
        if what not in self._warned:
            self._warned.add(what)
            _log.warning("%s", what)

    def copy_spec(self, job: str) -> None:
        with self._writing(job) as where:
            for outdated in (where.plan_file, where.facts_file):
                outdated.unlink(missing_ok=True)
            sync_directory(where.path)
            copy_spec(where)
            write_receipt(self._spool, where, self._position(job))

    def write_plan(self, job: str, plan: RunPlan) -> None:
        with self._writing(job) as where:
            write_record(where.plan_file, plan)

    def write_launch(self, job: str, stage: Stage, devices: tuple[str, ...]) -> Launch:
        with self._writing(job) as where:
            where.launches.mkdir(mode=0o750, exist_ok=True)
            newest = where.newest_whole_checkpoint()
            launch = Launch(
                number=max((earlier.number for earlier in where.read_launches()), default=0) + 1,
                stage=stage,
                devices=devices,
                boot_id=boot_id(),
                release=stage_python(),
                checkpoint=newest.name if newest else None,
                asked=self.now(),
            )
            write_record(where.launch_file(launch.number), launch)
            return launch

    def start(self, job: str, launch: Launch) -> None:
        with self._writing(job) as where:
            self._launcher.start(where, launch)

    def stop(self, job: str, stage: Stage) -> None:
        with self._writing(job) as where:
            self._launcher.stop(where, stage)

    def write_result(self, job: str, result: Result) -> None:
        with self._writing(job) as where, self._spool.locked(where):
            self._spool.with_reserve(lambda: write_record(where.result_file, result))

    def move(self, job: str, to: Phase) -> None:
        with self._writing(job) as where:
            self._where[job] = self._spool.move(where, to)

    def put_result_away(self, job: str) -> None:
        with self._writing(job) as where:
            where.earlier_results.mkdir(mode=0o750, exist_ok=True)
            number = max(where.earlier_result_numbers(), default=0) + 1
            rename_durably(where.result_file, where.earlier_results / f"{number}.json")

    def drop_wish(self, job: str, wish: Wish) -> None:
        with self._writing(job) as where:
            where.wish_file(wish).unlink(missing_ok=True)
            sync_directory(where.path)

    def forget_resume(self, job: str, answer: str) -> None:
        with self._writing(job) as where:
            forget_resume(self._spool, where, answer, self.now())
            self._resumed.discard(job)

    def _position(self, job: str) -> int:
        """Among the queued jobs, by age; 1 is next."""
        return 1 + sum(each < job and where.phase is Phase.QUEUED for each, where in self._where.items())

    @contextlib.contextmanager
    def _writing(self, job: str) -> Iterator[JobDir]:
        with self._trouble(job):
            try:
                yield self._where[job]
            finally:
                self._observer.forget(job)

    @contextlib.contextmanager
    def _trouble(self, job: str) -> Iterator[None]:
        """Whatever may be wrong with one job's files or stages becomes that job's trouble."""
        try:
            yield
        except LaunchFailed as error:
            raise JobTrouble(f"could not be started: {error}") from error
        except StopFailed as error:
            raise JobTrouble(f"could not be stopped: {error}") from error
        except Untrustworthy as error:
            raise JobTrouble(f"what was dropped {error}") from error
        except (Unreadable, Busy) as error:
            raise JobTrouble(str(error)) from error
        except OSError as error:
            where = os.fspath(error.filename) if error.filename else "its files"
            raise JobTrouble(f"{where!s}: {error.strerror or error}") from error
