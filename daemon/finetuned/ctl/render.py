"""The same facts as a table, as a page, and as lines; JSON is the records themselves (words.print_json)."""

import shutil
import sys
from collections.abc import Sequence

import typer

from finetuned.core.durations import in_words
from finetuned.core.events import (
    Checkpointed,
    Entered,
    Evaluated,
    Event,
    Exported,
    FailedForGood,
    FailedRetry,
    Finished,
    Noticed,
    Progressed,
    Restored,
    SetAside,
    Started,
    Stepped,
    Stopped,
)
from finetuned.core.problems import Problem, describe
from finetuned.ctl.facts import AttemptRow, JobList, JobPage, JobRow, State
from finetuned.ctl.words import ago, local, printable, say, size

_COLORS: dict[State, str] = {
    "training": "green",
    "preparing": "green",
    "succeeded": "green",
    "held": "yellow",
    "stopping": "yellow",
    "failed": "red",
    "unreadable": "red",
}
_GAP = "  "


def print_list(jobs: JobList) -> None:
    """Rows on stdout; what else there is to know about the spool on stderr."""
    if jobs.jobs:
        colors = [_COLORS.get(job.state) for job in jobs.jobs]
        _print_table([_HEADER, *map(_row, jobs.jobs)], [None, *colors])
    else:
        say(f"no jobs in {jobs.spool}")
    if jobs.daemon_running is False:
        say(f"no daemon is running on {jobs.spool}; jobs wait for one (systemctl start finetuned, or finetuned run)")


_HEADER = ("JOB", "STATE", "PROGRESS", "LOSS", "ETA", "WHY")
_STATE_COLUMN = 1


def _row(job: JobRow) -> tuple[str, ...]:
    loss = f"{job.loss:.4f}" if job.loss is not None else ""
    eta = in_words(job.eta_seconds) if job.eta_seconds is not None else ""
    progress = _progress(job)
    why = "" if job.state in ("training", "preparing") and job.why in (progress, job.activity) else job.why
    return tuple(printable(cell) for cell in (job.job, job.state, progress, loss, eta, why))


def _print_table(rows: Sequence[tuple[str, ...]], colors: Sequence[str | None]) -> None:
    """Aligned columns; on a terminal the last one is cut at its edge, in a pipe nothing is."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    room = shutil.get_terminal_size().columns - sum(width + len(_GAP) for width in widths[:-1])
    for row, color in zip(rows, colors, strict=True):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        if sys.stdout.isatty() and len(row[-1]) > max(room, 12):
            cells[-1] = row[-1][: max(room, 12) - 1] + "…"
        if color:
            cells[_STATE_COLUMN] = typer.style(cells[_STATE_COLUMN], fg=color)
        typer.echo(_GAP.join(cells).rstrip())


def _progress(job: JobRow) -> str:
    if job.total_steps and job.step:
        return f"step {job.step} of {job.total_steps}"
    if job.activity and job.total:
        return f"{job.activity} {job.done:,} of {job.total:,} {job.unit}"
    return job.activity or ""


def print_page(page: JobPage) -> None:
    """Everything a person wants to know about one job, on stdout."""
    lines = _lines(page)
    width = max(len(label) for label, _ in lines) + len(_GAP)
    for label, text in lines:
        # Further lines of a text stand below its first.
        told = printable(text, keep="\n").replace("\n", "\n" + " " * width)
        color = _COLORS.get(page.state) if label == "state" else None
        typer.echo(typer.style(label.ljust(width), bold=True) + (typer.style(told, fg=color) if color else told))


def _lines(page: JobPage) -> list[tuple[str, str]]:
    lines = [("job", page.job), ("dropped as", page.name), ("state", _state(page)), *_standing(page)]
    lines += _numbers(page)
    lines += [(f"{stage.stage}", _attempt(each)) for stage in page.stages for each in stage.attempts]
    lines += [
        ("checkpoint", f"{each.name}, {size(each.size_bytes)}" + ("" if each.whole else ", not whole"))
        for each in page.checkpoints
    ]
    lines += [("notice", text) for text in page.notices[-5:]]
    lines += _result(page)
    lines += [("log", stage.log) for stage in page.stages if stage.log]
    lines += [(label, place) for label, place in (("preview", page.preview), ("artifacts", page.artifacts)) if place]
    lines.append(("folder", page.path))
    return [(label, text) for label, text in lines if text]


def _state(page: JobPage) -> str:
    return f"{page.state}: {page.why}" if page.why else page.state


def _standing(page: JobPage) -> list[tuple[str, str]]:
    lines = [("base model", page.base_model)]
    if page.claimed:
        lines.append(("claimed", f"{local(page.claimed)} ({ago(page.claimed)})"))
    if page.queue_position is not None:
        lines.append(("queue", f"number {page.queue_position}, priority {page.priority}"))
    if page.ended:
        lines.append(("ended", f"{local(page.ended)} ({ago(page.ended)})"))
    return lines


def _numbers(page: JobPage) -> list[tuple[str, str]]:
    lines = []
    if page.total_steps:
        lines.append(("step", f"{page.step:,} of {page.total_steps:,} ({100 * page.step / page.total_steps:.0f} %)"))
    if page.loss is not None:
        rate = f", learning rate {page.learning_rate:.3g}" if page.learning_rate is not None else ""
        lines.append(("loss", f"{page.loss:.4f}{rate}"))
    evals = [("before", page.eval_loss_before), ("now", page.eval_loss_now), ("best", page.eval_loss_best)]
    told = [f"{value:.4f} {word}" for word, value in evals if value is not None]
    if told:
        lines.append(
            ("eval loss", ", ".join(told) + (f" (step {page.best_step})" if page.best_step is not None else ""))
        )
    if page.seconds_per_step is not None:
        tokens = page.target_tokens_per_second
        speed = f", {tokens:,.0f} target tokens/s" if tokens is not None else ""
        lines.append(("speed", f"{page.seconds_per_step:.3g} s a step{speed}"))
    if page.eta_seconds is not None:
        lines.append(("time left", f"about {in_words(page.eta_seconds)} of training"))
    if page.updated is not None and not page.phase.is_terminal:
        lines.append(("last event", ago(page.updated)))
    return lines


def _attempt(attempt: AttemptRow) -> str:
    ending = "running" if attempt.ending is None else attempt.ending.replace("_", " ")
    what = f"attempt {attempt.attempt}, {local(attempt.started)}: {ending}"
    if attempt.step:
        what += f" at step {attempt.step}"
    return f"{what}; {attempt.why}" if attempt.why else what


def _result(page: JobPage) -> list[tuple[str, str]]:
    result = page.result
    if result is None:
        return []
    lines = [("result", f"{result.outcome}: {result.reason}")]
    if result.problems:
        lines.append(("problems", describe(page.name or page.job, result.problems)))
    if result.hint:
        lines.append(("hint", result.hint))
    return lines


def problem_lines(source: str, problems: Sequence[Problem]) -> str:
    return printable(describe(source, problems), keep="\n")


def event_line(stage: str, event: Event) -> str:
    """One event as a person reads it."""
    return printable(f"{local(event.time)}  {stage:<7}  {_told(event)}")


def _told(event: Event) -> str:
    match event:
        case Started():
            return f"attempt {event.attempt} started (launch {event.launch}, pid {event.pid})"
        case Entered():
            return f"{event.activity} ..."
        case Progressed(total=None):
            return f"{event.activity}: {event.done:,} {event.unit}"
        case Progressed():
            return f"{event.activity}: {event.done:,} of {event.total:,} {event.unit}"
        case Noticed():
            return f"notice: {event.text}"
        case Restored(checkpoint=None):
            return "begins at step 0; there is no checkpoint"
        case Restored():
            return f"goes on from {event.checkpoint}"
        case SetAside():
            return f"{event.checkpoint} set aside as {event.renamed_to}: {event.why}"
        case Stepped():
            return (
                f"step {event.step} of {event.total_steps}  loss {event.loss:.4f}  grad norm {event.grad_norm:.3g}  "
                f"lr {event.learning_rate:.3g}  {event.seconds:.3g} s"
            )
        case Evaluated():
            best = ", the best so far" if event.is_best else ""
            return f"eval loss {event.eval_loss:.4f} after step {event.step}{best} ({event.seconds:.1f} s)"
        case Checkpointed():
            return f"{event.checkpoint} saved, {size(event.size_bytes)} ({event.seconds:.1f} s)"
        case Exported():
            return f"artifacts of step {event.step} exported: {len(event.files)} files"
        case Finished():
            at_step = f" at step {event.step}" if event.step else ""
            return f"finished{at_step}" + (f" ({event.early_end})" if event.early_end else "")
        case Stopped():
            return f"stopped at step {event.step}: {event.why}"
        case FailedRetry():
            return f"failed at step {event.step}, may be tried again: {event.error}{_hint(event.hint)}"
        case FailedForGood():
            return f"failed at step {event.step}: {event.error}{_hint(event.hint)}"


def _hint(hint: str) -> str:
    return f" (hint: {hint})" if hint else ""
