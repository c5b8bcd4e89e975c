"""`logs` and `events`: what a job's stages wrote, followed wherever the job moves until it has ended."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from finetuned.core import events
from finetuned.core.job import Stage
from finetuned.ctl.arguments import AsJson, Follow, JobText, OfStage
from finetuned.ctl.exits import ExitCode, Sorry
from finetuned.ctl.jobs import find_job, locate, open_spool
from finetuned.ctl.render import event_line
from finetuned.ctl.words import say, strict_json
from finetuned.host.jobdir import JobDir

_LOOK_SECONDS = 0.5
_REMEMBERED_BYTES = 4096


class Growing:
    """A file that grows, is replaced by a shorter copy of itself (a capped log), or moves with its job."""

    def __init__(self) -> None:
        self._inode: int | None = None
        self._offset = 0
        self._last = b""

    def read_new(self, path: Path, *, whole_lines: bool) -> bytes:
        """What was added since the last look; nothing while there is no such file."""
        try:
            file = open(path, "rb")  # noqa: SIM115 (closed below, whatever happens)
        except FileNotFoundError:
            return b""
        with file:
            found = os.fstat(file.fileno())
            if self._inode is not None and (found.st_ino != self._inode or found.st_size < self._offset):
                self._offset = self._place_in(file.read())
            self._inode = found.st_ino
            file.seek(self._offset)
            content = file.read()
        if whole_lines:
            content = content[: content.rfind(b"\n") + 1]
        self._offset += len(content)
        self._last = (self._last + content)[-_REMEMBERED_BYTES:]
        return content

    def _place_in(self, replaced: bytes) -> int:
        """Just behind what was read last; at the start when that is not there."""
        found = replaced.rfind(self._last) if self._last else -1
        return 0 if found < 0 else found + len(self._last)


def logs(
    ctx: typer.Context,
    job: JobText,
    follow: Follow = False,
    stage: OfStage = None,
    lines: Annotated[int | None, typer.Option("-n", min=0, help="Only the last so many lines.")] = None,
) -> None:
    """The log of a job's stage: of train once there is one, else of prepare."""
    found = find_job(open_spool(ctx), job)
    chosen = stage or (Stage.TRAIN if found.log_file(Stage.TRAIN).exists() else Stage.PREPARE)
    if not follow and not found.log_file(chosen).exists():
        raise Sorry(ExitCode.BAD_NEWS, f"{found.job} has no {chosen} log yet", f"finetunectl status {found.job}")
    growing = Growing()

    def print_new(now: JobDir) -> None:
        typer.echo(growing.read_new(now.log_file(chosen), whole_lines=False), nl=False)

    if lines is not None:
        typer.echo(_last_lines(growing.read_new(found.log_file(chosen), whole_lines=False), lines), nl=False)
    _print_until_ended(found, print_new, follow=follow)


def _last_lines(content: bytes, count: int) -> bytes:
    return b"".join(content.splitlines(keepends=True)[-count:]) if count else b""


def job_events(
    ctx: typer.Context, job: JobText, follow: Follow = False, stage: OfStage = None, as_json: AsJson = False
) -> None:
    """What a job's stages said happened: a line each, or with --json one object a line."""
    found = find_job(open_spool(ctx), job)
    growing = {each: Growing() for each in Stage if stage in (None, each)}

    def print_new(now: JobDir) -> None:
        for each, file in growing.items():
            for line in file.read_new(now.events_file(each), whole_lines=True).splitlines():
                told = _as_json(each, line) if as_json else _as_words(each, line)
                if told:
                    typer.echo(told)

    _print_until_ended(found, print_new, follow=follow)


def _as_words(stage: Stage, line: bytes) -> str:
    """Empty for what this release does not know, or cannot read."""
    try:
        event = events.from_line(line)
    except ValueError:
        return ""
    return event_line(stage, event) if event else ""


def _as_json(stage: Stage, line: bytes) -> str:
    """The event as written, kinds of newer releases included, with its stage; empty for what is no event."""
    try:
        said = json.loads(line)
    except ValueError:
        return ""
    return strict_json({"stage": str(stage), **said}) if isinstance(said, dict) else ""


def _print_until_ended(job: JobDir, print_new: Callable[[JobDir], None], *, follow: bool) -> None:
    """Once, or with `follow` until the job is filed; what it wrote last is printed too."""
    now: JobDir | None = job
    while now is not None:
        # Looked at before printing, so that whatever was written before the end is printed.
        is_last = not follow or now.phase.is_terminal
        print_new(now)
        if is_last:
            return
        time.sleep(_LOOK_SECONDS)
        now = locate(now)
    say(f"{job.job} is gone: somebody removed it")
