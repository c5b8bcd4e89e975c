"""What a stage's unit runs: `python -m finetuned.host.unit run|ended STAGE JOB`.

`run` (ExecStart) becomes the newest launch of that stage: the release that the launch names, on its devices. `ended`
(ExecStopPost) writes launches/NNNN.exit.json from what systemd says of the end. FINETUNED_SPOOL names the spool.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NoReturn

from finetuned.core.job import Exit, Launch, Stage
from finetuned.host import environment
from finetuned.host.jobdir import JobDir, Unreadable, write_record
from finetuned.host.launch import stage_command
from finetuned.host.settings import InvalidSettings, Settings, config_directory, default_spool, read_settings
from finetuned.host.spool import Spool

_JOB = re.compile(r"[a-z0-9][a-z0-9-]{0,127}")
_SYSTEMCTL_SECONDS = 10.0

EXIT_NOTHING_TO_RUN = 66  # EX_NOINPUT of sysexits.h
EXIT_CANNOT_EXECUTE = 127


class NothingToRun(Exception):
    """No launch asks for this; the message says why, and what to do instead."""


def is_job_id(text: str) -> bool:
    """Whether this can be the id of a job, and so the instance of a unit."""
    return _JOB.fullmatch(text) is not None


def unit_name(stage: Stage, job: str) -> str:
    return f"finetuned-{stage}@{job}.service"


def main() -> None:
    verb, stage, job = _arguments()
    try:
        directory = _find(job)
        if verb == "run":
            run(stage, directory)
        ended(stage, directory, os.environ, was_asked_to_stop(unit_name(stage, job)))
    except (NothingToRun, Unreadable) as error:
        sys.exit(_say(f"{stage} of {job}: {error}", EXIT_NOTHING_TO_RUN))


def _arguments() -> tuple[str, Stage, str]:
    words = sys.argv[1:]
    stages = [stage.value for stage in Stage]
    if len(words) != 3 or words[0] not in ("run", "ended") or words[1] not in stages or not is_job_id(words[2]):
        sys.exit(_say(f"usage: python -m finetuned.host.unit run|ended {'|'.join(stages)} JOB", os.EX_USAGE))
    return words[0], Stage(words[1]), words[2]


def _find(job: str) -> JobDir:
    spool = Spool(default_spool())
    found = spool.get(job)
    if found is None:
        raise NothingToRun(f"{spool.path} has no such job; jobs are started by dropping a file into its incoming/")
    return found


def run(stage: Stage, job: JobDir, command: Callable[[JobDir, Launch], list[str]] = stage_command) -> NoReturn:
    """Become the newest launch of `stage`. Raises NothingToRun where there is none, or where it has ended already."""
    launch = _open_launch(stage, job)
    words = command(job, launch)
    try:
        os.execvpe(words[0], words, dict(os.environ) | environment.of_launch(launch, _settings()))
    except OSError as error:
        sys.exit(_say(f"launch {launch.number} of {job.job}: {words[0]}: {error.strerror}", EXIT_CANNOT_EXECUTE))


def ended(stage: Stage, job: JobDir, said: Mapping[str, str], asked_to_stop: bool) -> None:
    """Write how the launch that `run` became has ended. `said`: SERVICE_RESULT, EXIT_CODE and EXIT_STATUS."""
    try:
        launch = _open_launch(stage, job)
    except NothingToRun:
        return  # `run` refused for the same reason.
    result, how, status = (said.get(name, "") for name in ("SERVICE_RESULT", "EXIT_CODE", "EXIT_STATUS"))
    record = Exit(
        launch=launch.number,
        returncode=int(status) if how == "exited" and status.isdecimal() else None,
        signal=_signal_number(status) if how in ("killed", "dumped") else None,
        out_of_memory=result == "oom-kill",
        hung=result == "watchdog",
        asked_to_stop=asked_to_stop,
        ended=datetime.now(UTC),
    )
    write_record(job.exit_file(launch.number), record)


def was_asked_to_stop(unit: str, systemctl: Sequence[str] = ("systemctl",)) -> bool:
    """Whether a stop of the unit is in progress; False where it ended by itself, or where systemd does not answer.

    To be called by its ExecStopPost: only what was asked for has a job queued then. That of a start is there too while
    the unit has never been ready.
    """
    job = _ask(systemctl, "Job", unit)
    return job not in ("", "0") and _ask(systemctl, "JobType", job) in ("stop", "restart")


def _ask(systemctl: Sequence[str], name: str, of: str) -> str:
    command = [*systemctl, "show", "--value", f"--property={name}", of]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_SYSTEMCTL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""


def _open_launch(stage: Stage, job: JobDir) -> Launch:
    """The newest launch of the stage, which must not have ended."""
    launches = [launch for launch in job.read_launches() if launch.stage is stage]
    if not launches:
        raise NothingToRun("the daemon has not asked for it; it starts this unit itself when it is time")
    if job.exit_file(launches[-1].number).exists():
        raise NothingToRun(f"launch {launches[-1].number} has ended already; the daemon starts the next one itself")
    return launches[-1]


def _settings() -> Settings:
    try:
        return read_settings(config_directory())
    except InvalidSettings as error:
        _say(f"{error}; starting with the defaults", 0)
        return Settings()


def _signal_number(name: str) -> int | None:
    try:
        return signal.Signals[f"SIG{name}"].value
    except KeyError:
        return int(name) if name.isdecimal() else None  # A real-time signal has a number only.


def _say(what: str, status: int) -> int:
    print(f"finetuned: {what}", file=sys.stderr)
    return status


if __name__ == "__main__":
    main()
