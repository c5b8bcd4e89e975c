"""How every stage opens and ends its attempt: log, lock, own launch, *Started*, a stop flag, and one ending event."""

import errno
import faulthandler
import logging
import os
import re
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from finetuned.core.events import Ending, Entered, Event, FailedForGood, FailedRetry, Noticed, Started, Stopped
from finetuned.core.job import Phase, Stage
from finetuned.core.messages import of_event
from finetuned.core.problems import CannotRun, InvalidSpec, StageFailed, StopRequested
from finetuned.host import logpump
from finetuned.host.files import take_lock
from finetuned.host.jobdir import JobDir
from finetuned.host.journal import Journal, read_events
from finetuned.host.machine import boot_id
from finetuned.host.settings import InvalidSettings, config_directory, read_settings
from finetuned.host.systemd import SystemJournal
from finetuned.host.watchdog import DEFAULT_HANG_SECONDS, Watchdog

_log = logging.getLogger(__name__)

_PHASE = {Stage.PREPARE: Phase.QUEUED, Stage.TRAIN: Phase.ACTIVE}


class NotOurs(Exception):
    """This launch is no longer the newest, its job has moved on, or another process runs this stage already."""


@dataclass
class StopFlag:
    """Set by SIGTERM or SIGINT; to be looked at wherever stopping loses nothing."""

    why: str = ""

    def is_set(self) -> bool:
        return bool(self.why)

    def raise_if_set(self) -> None:
        """Raise StopRequested when this stage was asked to stop."""
        if self.why:
            raise StopRequested(self.why)

    def install(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._set)

    def _set(self, number: int, _frame: object) -> None:
        self.why = self.why or f"asked to stop ({signal.Signals(number).name})"


@dataclass
class StageRun:
    """An opened attempt, as the stage's own code sees it."""

    job: JobDir
    stage: Stage
    launch: int
    attempt: int
    journal: Journal
    stop: StopFlag = field(default_factory=StopFlag)
    step: int = 0
    """Kept current by the train stage, so that an ending names the step."""
    watchdog: Watchdog = field(default_factory=Watchdog)
    system_journal: SystemJournal | None = None

    def say(self, event: Event) -> None:
        self.journal.append(event)
        self.watchdog.saw(event)
        if self.system_journal is not None and (told := of_event(self.stage, event)) is not None:
            self.system_journal.tell(told, self.job.job)

    def enter(self, activity: str) -> None:
        """Note what the stage is busy with from now on, unless it was asked to stop (raises StopRequested)."""
        self.stop.raise_if_set()
        self.say(Entered.model_validate({"time": now(), "activity": activity}))

    def notice(self, text: str) -> None:
        self.say(Noticed(time=now(), text=text))


def now() -> datetime:
    return datetime.now(UTC)


def run_stage(stage: Stage, work: Callable[[StageRun], Ending]) -> None:
    """The main program of a stage: `python -m finetuned.STAGE JOB_DIRECTORY LAUNCH`.

    Exit status 0 whenever an ending was written (the ending decides, not the status), or the launch is not ours.
    """
    job, launch = JobDir(Path(sys.argv[1]).resolve()), int(sys.argv[2])
    system_journal = SystemJournal.open(f"finetuned-{stage}")  # While our words still go there.
    logpump.redirect_output(job.log_file(stage))
    _leave_stacks_but_no_core()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    stop = StopFlag()
    stop.install()
    try:
        run = _open_attempt(job, stage, launch, stop, system_journal)
    except NotOurs as error:
        _log.warning("launch %d of %s: %s; leaving", launch, job.job, error)
        return
    _log.info("job %s: %s attempt %d (launch %d)", job.job, stage, run.attempt, launch)
    run.say(ending_of(run, work))


def _leave_stacks_but_no_core() -> None:
    """Of a crash, and of a hang that the supervisor ends with SIGABRT: where each thread stands, in the log."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable(all_threads=True)


def _hang_seconds() -> float:
    try:
        return read_settings(config_directory()).hang_minutes * 60
    except InvalidSettings as error:
        _log.warning("%s; a hang is noticed after %g minutes", error, DEFAULT_HANG_SECONDS / 60)
        return DEFAULT_HANG_SECONDS


def _open_attempt(
    job: JobDir, stage: Stage, launch: int, stop: StopFlag, system_journal: SystemJournal | None
) -> StageRun:
    # Never closed: the lock lives exactly as long as this process.
    if not job.path.is_dir() or take_lock(job.lock_file(stage)) is None:
        raise NotOurs("the job is gone or this stage runs already")
    newest = max((asked.number for asked in job.read_launches() if asked.stage == stage), default=None)
    if job.phase != _PHASE[stage] or newest != launch:
        raise NotOurs(f"the job is in {job.phase} and its newest {stage} launch is {newest}")
    journal = Journal(job.events_file(stage))
    earlier = sum(isinstance(event, Started) for event in read_events(job.events_file(stage)))
    watchdog = Watchdog(stop.is_set, _hang_seconds())
    run = StageRun(job, stage, launch, earlier + 1, journal, stop, watchdog=watchdog, system_journal=system_journal)
    run.say(Started(time=now(), launch=launch, attempt=run.attempt, pid=os.getpid(), boot_id=boot_id()))
    return run


def ending_of(run: StageRun, work: Callable[[StageRun], Ending]) -> Ending:
    """The one broad `except` of a stage: whatever happens in `work` becomes an ending; tracebacks go to the log."""
    try:
        return work(run)
    except StopRequested as stop:
        return Stopped(time=now(), step=run.step, why=str(stop))
    except (InvalidSpec, CannotRun) as error:
        return FailedForGood(time=now(), step=run.step, error=str(error), problems=error.problems)
    except StageFailed as error:
        _log.error("%s", error, exc_info=True)
        kind = FailedRetry if error.retry else FailedForGood
        extra = {"cause": error.cause} if error.retry else {"problems": error.problems}
        return kind.model_validate({"time": now(), "step": run.step, "error": str(error), "hint": error.hint, **extra})
    except OSError as error:
        _log.exception("stopped by an error of the system")
        return _after_system_error(run, error)
    except Exception as error:
        _log.exception("stopped by an unexpected error")
        if (system_error := _told_in_words(error)) is not None:
            return _after_system_error(run, system_error)
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else ""
        return FailedRetry(
            time=now(),
            step=run.step,
            error=f"{type(error).__name__}: {first_line}"[:2000],
            hint=f"finetunectl logs {run.job.job} shows the traceback",
        )


def _after_system_error(run: StageRun, error: OSError) -> Ending:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = "free some space on the spool's file system"
        return FailedRetry(time=now(), step=run.step, error=f"disk full: {error}", hint=hint, cause="disk")
    return FailedRetry(time=now(), step=run.step, error=f"{type(error).__name__}: {error}")


def _told_in_words(error: Exception) -> OSError | None:
    """The system's error behind one from Rust: safetensors 0.8 and tokenizers 0.23 keep it only as "(os error 28)"."""
    found = re.search(r"\(os error (\d+)\)", str(error))
    return OSError(int(found[1]), str(error).splitlines()[0]) if found else None
