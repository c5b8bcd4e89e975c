"""From what was seen of a job to what a person is told: state, why, attempts, checkpoints."""

from collections.abc import Iterable
from pathlib import Path

from finetuned.core.durations import in_words
from finetuned.core.events import Attempt, FailedForGood, FailedRetry, Finished, Stopped
from finetuned.core.job import Phase, Stage, Wish
from finetuned.core.lifecycle import Conclude, Ready, Wait
from finetuned.core.retry import describe_exit
from finetuned.ctl.facts import AttemptRow, CheckpointRow, JobPage, JobRow, StagePage, State
from finetuned.ctl.reasons import what_is_next, why_unread
from finetuned.ctl.sight import Sight
from finetuned.host.jobdir import JobDir, Unreadable


def row(sight: Sight, position: int | None, daemon_running: bool | None) -> JobRow:
    if sight.unreadable:
        return JobRow(job=sight.job.job, name="", phase=sight.job.phase, state="unreadable", why=sight.unreadable)
    state, why = _state(sight, position, daemon_running)
    progress = sight.progress()
    result = sight.result
    return JobRow(
        job=sight.job.job,
        name=sight.claim.name if sight.claim else "",
        phase=sight.job.phase,
        state=state,
        why=why,
        priority=sight.priority,
        queue_position=position,
        activity=progress.activity if state in ("preparing", "training", "stopping") else None,
        done=progress.done,
        total=progress.total,
        unit=progress.unit,
        step=progress.step,
        total_steps=progress.total_steps or (sight.plan.schedule.total_steps if sight.plan else 0),
        loss=progress.loss,
        eta_seconds=progress.remaining_seconds if state == "training" else None,
        wishes=tuple(sorted(sight.wishes)),
        claimed=sight.claim.claimed if sight.claim else None,
        ended=result.ended if result else None,
        outcome=result.outcome if result else None,
    )


def _state(sight: Sight, position: int | None, daemon_running: bool | None) -> tuple[State, str]:
    phase, result = sight.job.phase, sight.result
    if phase.is_terminal:
        how: State = "succeeded" if phase is Phase.DONE else "failed" if phase is Phase.FAILED else "cancelled"
        return how, result.reason if result else ""
    if result is not None or phase is Phase.OUTBOX:
        return "ending", f"{result.outcome}: {result.reason}" if result else "its result is missing"
    if sight.is_alive(Stage.TRAIN):
        return ("stopping", f"asked to {_list(sight.wishes)}") if sight.wishes else ("training", _activity(sight))
    if sight.is_alive(Stage.PREPARE):
        return ("stopping", f"asked to {_list(sight.wishes)}") if sight.wishes else ("preparing", _activity(sight))
    if Wish.CANCEL in sight.wishes:
        return "stopping", "asked to cancel" + _idle(daemon_running)
    if Wish.HOLD in sight.wishes:
        return "held", f"finetunectl release {sight.job.job} lets it go on"
    if phase is Phase.ACTIVE:
        return "training", "its worker is starting, or has just ended" + _idle(daemon_running)
    return _waiting(sight, position, daemon_running)


def _waiting(sight: Sight, position: int | None, daemon_running: bool | None) -> tuple[State, str]:
    idle = _idle(daemon_running)
    last = _last_ending(sight)
    if not sight.has_spec and not sight.is_refused:
        return "waiting", (why_unread(sight.job) or "waits to be read") + idle
    match what_is_next(sight):
        case Wait(why=why, seconds=seconds):
            return "waiting", why + (f" in about {in_words(seconds)}" if seconds is not None else "") + idle
        case Conclude(outcome=outcome, reason=reason):
            return "ending", f"{outcome}: {reason}" + idle
        case Ready():
            goes_on = f"{last}; goes on from step {sight.progress().checkpointed_step}; " if last else ""
            return "ready", goes_on + _turn(position) + idle
        case _:
            return "waiting", (f"{last}; prepare is tried again" if last else "waits to be prepared") + idle


def _turn(position: int | None) -> str:
    if position is None:
        return "waits for its turn"
    return "its turn is next" if position == 1 else f"{position - 1} before it"


def _idle(daemon_running: bool | None) -> str:
    return "; no daemon is running" if daemon_running is False else ""


def _last_ending(sight: Sight) -> str:
    """How the newest attempt of the main stage ended, when another has to follow."""
    attempts = sight.histories[sight.main_stage].attempts
    if not attempts or isinstance(attempts[-1].ending, Finished):
        return ""
    rows = _attempt_rows(sight, sight.main_stage)
    return f"attempt {rows[-1].attempt} of {sight.main_stage}: {rows[-1].why or rows[-1].ending}"


def _activity(sight: Sight) -> str:
    progress = sight.progress()
    if progress.activity is None:
        return "starting"
    if progress.activity == "training" and progress.total_steps:
        return f"step {progress.step} of {progress.total_steps}"
    if progress.total:
        return f"{progress.activity} {progress.done:,} of {progress.total:,} {progress.unit}".strip()
    return f"{progress.activity} {progress.done:,} {progress.unit}".strip() if progress.done else progress.activity


def _list(wishes: Iterable[Wish]) -> str:
    return " and ".join(sorted(wishes))


def page(sight: Sight, position: int | None, daemon_running: bool | None) -> JobPage:
    summary = row(sight, position, daemon_running)
    common = {**dict(summary), "path": str(sight.job.path), "daemon_running": daemon_running}
    if sight.unreadable:
        return JobPage.model_validate(common)
    progress = sight.histories[Stage.TRAIN].progress
    details = {
        "learning_rate": progress.learning_rate,
        "eval_loss_before": progress.first_eval_loss,
        "eval_loss_now": progress.last_eval_loss,
        "eval_loss_best": progress.best_eval_loss,
        "best_step": progress.best_step,
        "seconds_per_step": progress.median_step_seconds,
        "target_tokens_per_second": progress.target_tokens_per_second,
        "updated": sight.progress().updated,
        "base_model": sight.base_model,
        "stages": tuple(_stage_page(sight, stage) for stage in Stage),
        "checkpoints": tuple(_checkpoints(sight.job)),
        "notices": _notices(sight),
        "result": sight.result,
        "artifacts": _if_there(sight.job.artifacts),
        "preview": _if_there(sight.job.preview),
    }
    return JobPage.model_validate(common | details)


def _if_there(path: Path) -> str | None:
    return str(path) if path.exists() else None


def _notices(sight: Sight) -> tuple[str, ...]:
    """Oldest first, each once."""
    said = [*(sight.facts.notices if sight.facts else ()), *(sight.plan.notices if sight.plan else ())]
    for stage in Stage:
        said.extend(sight.histories[stage].progress.notices)
    return tuple(dict.fromkeys(said))


def _stage_page(sight: Sight, stage: Stage) -> StagePage:
    return StagePage(
        stage=stage,
        alive=sight.alive[stage],
        attempts=tuple(_attempt_rows(sight, stage)),
        log=_if_there(sight.job.log_file(stage)),
    )


def _attempt_rows(sight: Sight, stage: Stage) -> list[AttemptRow]:
    attempts = sight.histories[stage].attempts
    rows = [_attempt_row(sight, attempt) for attempt in attempts[:-1]]
    if attempts:
        runs = attempts[-1].ending is None and sight.is_alive(stage)
        rows.append(_attempt_row(sight, attempts[-1], runs=runs))
    return rows


def _attempt_row(sight: Sight, attempt: Attempt, runs: bool = False) -> AttemptRow:
    ending, why, ended = attempt.ending, "", attempt.ending.time if attempt.ending else None
    match ending:
        case Finished(early_end=early_end):
            why = early_end
        case Stopped(why=text):
            why = text
        case FailedRetry(error=error) | FailedForGood(error=error):
            why = error
        case None if not runs:
            found = _read_exit(sight.job, attempt.started.launch)
            why = f"ended without a word ({found})" if found else "ended without a word (killed?)"
    return AttemptRow(
        launch=attempt.started.launch,
        attempt=attempt.started.attempt,
        started=attempt.started.time,
        step=attempt.step,
        ended=ended,
        ending=ending.event if ending else None if runs else "no word",
        why=why,
    )


def _read_exit(job: JobDir, launch: int) -> str:
    try:
        found = job.read_exit(launch)
    except Unreadable:
        return ""
    return describe_exit(found) if found else ""


def _checkpoints(job: JobDir) -> Iterable[CheckpointRow]:
    """Newest first."""
    for checkpoint in job.list_checkpoints():
        files = [path for path in checkpoint.path.rglob("*") if path.is_file()]
        yield CheckpointRow(
            name=checkpoint.name,
            step=checkpoint.step,
            whole=checkpoint.is_whole(),
            size_bytes=sum(path.stat().st_size for path in files),
        )
