"""What `--wait` shows: one job followed to its end, with a bar on a terminal and a line now and then elsewhere."""

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from finetuned.core.durations import in_words
from finetuned.core.events import History
from finetuned.core.job import Phase, Result, Stage, Wish
from finetuned.core.lifecycle import Wait
from finetuned.ctl.exits import ExitCode, Sorry
from finetuned.ctl.jobs import is_daemon_running, locate
from finetuned.ctl.reasons import what_is_next
from finetuned.ctl.render import problem_lines
from finetuned.ctl.sight import look_at_job
from finetuned.ctl.words import printable, say
from finetuned.host.jobdir import JobDir, Unreadable
from finetuned.host.journal import HistoryReader

_LOOK_SECONDS = 0.5
_LINE_SECONDS = 30.0


@dataclass(frozen=True)
class Scene:
    """What there is to show of a job at one moment."""

    what: str
    done: float
    total: float | None
    detail: str = ""


@dataclass
class Follower:
    """Keeps the histories of a job up to date wherever it moves."""

    job: JobDir
    _readers: dict[Path, HistoryReader] = field(default_factory=dict)

    def look(self) -> Scene:
        """Raises Sorry when the job is gone."""
        now = locate(self.job)
        if now is None:
            raise Sorry(ExitCode.NO_SUCH_JOB, f"{self.job.job} is gone: somebody removed it")
        self.job = now
        return _scene(now, {stage: self._history(now.events_file(stage)) for stage in Stage})

    def _history(self, events: Path) -> History:
        return self._readers.setdefault(events, HistoryReader(events)).read()


def wait_for_end(job: JobDir) -> Result:
    """Show the job's way until it is filed. Raises Sorry when it vanishes, or was filed without a result."""
    follower = Follower(job)
    if sys.stderr.isatty():
        _draw(follower)
    else:
        _write_lines(follower)
    try:
        result = follower.job.read_result()
    except Unreadable as error:
        raise Sorry(ExitCode.UNUSABLE, str(error)) from error
    if result is None:
        raise Sorry(ExitCode.UNUSABLE, f"{follower.job.path} has no result.json")
    return result


def tell_end(job: str, result: Result) -> None:
    """How it ended, in words on stderr."""
    say(f"{job} {result.outcome}: {result.reason}")
    if result.problems:
        say(problem_lines(job, result.problems))
    if result.hint:
        say(f"hint: {result.hint}")


def _draw(follower: Follower) -> None:
    console = Console(file=sys.stderr, highlight=False, markup=False, emoji=False)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[detail]}", markup=False),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None, detail="")
        while not follower.job.phase.is_terminal:
            scene = follower.look()
            bar.update(task, description=scene.what, completed=scene.done, total=scene.total, detail=scene.detail)
            if not follower.job.phase.is_terminal:
                time.sleep(_LOOK_SECONDS)


def _write_lines(follower: Follower) -> None:
    """A line whenever it does something else, and every half minute while it goes on."""
    shown, shown_at = "", 0.0
    while not follower.job.phase.is_terminal:
        scene = follower.look()
        if follower.job.phase.is_terminal:
            return
        if scene.what != shown or time.monotonic() - shown_at >= _LINE_SECONDS:
            shown, shown_at = scene.what, time.monotonic()
            say(f"{scene.what}: {scene.detail}" if scene.detail else scene.what)
        time.sleep(_LOOK_SECONDS)


def _scene(job: JobDir, histories: dict[Stage, History]) -> Scene:
    """`what` changes only when the job does something else; `detail` holds the numbers."""
    if job.phase not in (Phase.QUEUED, Phase.ACTIVE):
        return Scene("ending", 0, None)
    history = histories[Stage.TRAIN if job.phase is Phase.ACTIVE else Stage.PREPARE]
    if job.phase is Phase.QUEUED and (not history.attempts or history.attempts[-1].ending is not None):
        return Scene(_waiting(job), 0, None)
    progress = history.progress
    if job.phase is Phase.ACTIVE and progress.activity == "training" and progress.total_steps:
        loss = f", loss {progress.loss:.4f}" if progress.loss is not None else ""
        left = progress.remaining_seconds
        eta = f", about {in_words(left)} left" if left is not None else ""
        detail = f"step {progress.step} of {progress.total_steps}{loss}{eta}"
        return Scene("training", progress.step, progress.total_steps, detail)
    detail = f"{progress.done:,} of {progress.total:,} {progress.unit}" if progress.total else ""
    return Scene(progress.activity or "starting", progress.done, progress.total, printable(detail))


def _waiting(job: JobDir) -> str:
    if Wish.HOLD in job.wishes():
        return f"on hold until: finetunectl release {job.job}"
    if is_daemon_running(job.spool) is False:
        return f"waiting: no daemon is running on {job.spool}"
    sight = look_at_job(job)
    if sight.unreadable:
        return f"unreadable: {sight.unreadable}"
    match what_is_next(sight):
        case Wait(why=why):
            return why
    return "waiting for its turn"
