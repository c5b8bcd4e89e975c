"""Where training goes on: the newest checkpoint that verifies, or the beginning."""

import shutil

from torch.optim import Optimizer

from finetuned.core.events import Evaluated, Restored, SetAside
from finetuned.core.plan import RunPlan
from finetuned.core.problems import StageFailed
from finetuned.host.files import rename_durably
from finetuned.host.jobdir import Checkpoint
from finetuned.host.journal import read_events
from finetuned.host.stage import StageRun, now
from finetuned.train.engine.checkpoint import (
    Damaged,
    put_optimizer_states,
    put_weights,
    read_manifest,
    read_snapshot,
    read_weights,
    sweep_leftovers,
)
from finetuned.train.engine.position import Position
from finetuned.train.engine.randomness import restore_randomness, seed_everything
from finetuned.train.model.tuned import TunedModel


def restore_newest(run: StageRun, plan: RunPlan, model: TunedModel, optimizer: Optimizer) -> Position:
    """Put model, optimizer and randomness where the newest verified checkpoint left them, or at the beginning.

    A damaged checkpoint is renamed out of the way and the next older one is tried. Raises StageFailed (no retry) for
    one of another plan.
    """
    sweep_leftovers(run.job)
    checkpoint = _newest_verified(run, plan)
    if checkpoint is None:
        seed_everything(plan.seed)
        run.say(Restored(time=now(), checkpoint=None, step=0))
        return Position(evaluated_step=0 if _was_evaluated_before_training(run) else -1)
    snapshot = read_snapshot(checkpoint)
    _put(checkpoint, snapshot.weights, model)
    put_optimizer_states(snapshot.optimizer, model, optimizer)
    restore_randomness(snapshot.randomness)
    run.say(Restored(time=now(), checkpoint=checkpoint.name, step=checkpoint.step))
    return snapshot.position


def restore_best(run: StageRun, plan: RunPlan, model: TunedModel, position: Position) -> int:
    """Set the weights that become the artifact; the step they are of."""
    best_step = position.best_step
    if not plan.selection.load_best or best_step is None or best_step == position.step:
        return position.step
    best = next((found for found in run.job.list_checkpoints() if found.step == best_step), None)
    if best is None or not _verifies(run, plan, best):
        run.notice(
            f"the best weights (step {best_step}, evaluation loss {position.best_loss:.4f}) have no whole checkpoint; "
            f"the last ones (step {position.step}) are exported"
        )
        return position.step
    _put(best, read_weights(best), model)
    return best_step


def _newest_verified(run: StageRun, plan: RunPlan) -> Checkpoint | None:
    for checkpoint in run.job.list_checkpoints():
        run.stop.raise_if_set()
        if _verifies(run, plan, checkpoint):
            return checkpoint
    return None


def _verifies(run: StageRun, plan: RunPlan, checkpoint: Checkpoint) -> bool:
    """Whether it is what was written; a damaged one is set aside. Raises StageFailed for one of another plan."""
    try:
        manifest = read_manifest(checkpoint)
    except Damaged as damage:
        _set_aside(run, checkpoint, str(damage))
        return False
    if manifest.digest != plan.digest:
        raise StageFailed(
            f"checkpoint {checkpoint.name} belongs to another plan ({manifest.digest[:12]}, not {plan.digest[:12]})",
            retry=False,
            hint=f"to start over, remove {checkpoint.path.parent}; to go on, put back the plan.json it was written for",
        )
    return True


def _set_aside(run: StageRun, checkpoint: Checkpoint, why: str) -> None:
    aside = checkpoint.path.with_name(f"corrupt-{checkpoint.name}")
    shutil.rmtree(aside, ignore_errors=True)
    rename_durably(checkpoint.path, aside)
    run.say(SetAside(time=now(), checkpoint=checkpoint.name, renamed_to=aside.name, why=why))


def _put(checkpoint: Checkpoint, weights: dict, model: TunedModel) -> None:
    try:
        put_weights(weights, model)
    except ValueError as error:
        raise StageFailed(
            f"checkpoint {checkpoint.name} does not fit the model: {error}",
            retry=False,
            hint="the base model or the release has changed since it was written",
        ) from error


def _was_evaluated_before_training(run: StageRun) -> bool:
    events = read_events(run.job.events_file(run.stage))
    return any(isinstance(event, Evaluated) and event.step == 0 for event in events)
