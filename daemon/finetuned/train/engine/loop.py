"""The training loop: steps, evaluations and saves, between which it can be stopped without losing anything."""

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from finetuned.core.events import Entered, Evaluated, Stepped
from finetuned.core.plan import RunPlan
from finetuned.core.problems import StageFailed, StopRequested
from finetuned.host.stage import StageRun, now
from finetuned.train.batches import MicroBatch, Order, micro_batches
from finetuned.train.engine.checkpoint import Snapshot, take_snapshot
from finetuned.train.engine.evaluate import evaluate
from finetuned.train.engine.position import Position, after_evaluation
from finetuned.train.engine.randomness import capture_randomness
from finetuned.train.engine.saver import Saver
from finetuned.train.engine.schedule import learning_rate_at
from finetuned.train.methods.causal import sum_of_losses
from finetuned.train.model.tuned import TunedModel
from finetuned.train.rows import Rows

_log = logging.getLogger(__name__)

_ROWS_NAMED = 8


@dataclass(frozen=True)
class Data:
    """What is learned and evaluated, and how large micro-batches may be. A budget of 0: one example each."""

    train: Rows
    eval: Rows | None
    order: Order
    budget_tokens: int
    eval_budget_tokens: int


@dataclass(frozen=True)
class Learner:
    """What changes in a step."""

    model: TunedModel
    optimizer: Optimizer


class Loop:
    """Carries training from a position to its end. `position` is always that of the last whole step."""

    def __init__(self, run: StageRun, plan: RunPlan, learner: Learner, data: Data, position: Position):
        self._run = run
        self._plan = plan
        self._model = learner.model
        self._optimizer = learner.optimizer
        self._data = data
        self._randomness = capture_randomness()
        self._saved_at = time.monotonic()
        self._unlogged: Stepped | None = None
        """The last step, when it has not been said."""
        self.position = position

    def run_to_end(self, saver: Saver) -> Position:
        """Train until the planned steps are done or training ends early; the last weights are then in a checkpoint.

        Raises StopRequested with the last whole step in a checkpoint, OSError where that could not be written, and
        StageFailed (no retry) when loss or gradients stop being numbers.
        """
        try:
            self._run.enter("training")
            while True:
                self._evaluate_if_due()
                if self._is_over():
                    break
                self._save_if_due(saver)
                self._step()
        except StopRequested:
            self._end(saver)
            raise
        self._end(saver)
        return self.position

    def _is_over(self) -> bool:
        return self.position.step >= self._plan.schedule.total_steps or bool(self.position.early_end)

    def _step(self) -> None:
        """One update. The position moves only once the weights have."""
        began = time.monotonic()
        done = self.position.step
        rows = self._data.order.batch_at(done)
        batches = micro_batches([self._data.train.example(row) for row in rows], self._data.budget_tokens)
        loss, norm = self._accumulate(batches)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise self._not_finite(loss, norm, rows)
        learning_rate = learning_rate_at(done, self._plan.optimizer.learning_rate, self._plan.schedule)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate * group["lr_factor"]
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._move(self.position.model_copy(update={"step": done + 1}))
        self._unlogged = Stepped(
            time=now(),
            step=done + 1,
            total_steps=self._plan.schedule.total_steps,
            epoch=self._data.order.epoch_at(done + 1),
            loss=loss,
            grad_norm=norm,
            learning_rate=learning_rate,
            tokens=sum(batch.tokens for batch in batches),
            target_tokens=sum(batch.target_tokens for batch in batches),
            micro_batches=len(batches),
            seconds=time.monotonic() - began,
        )
        self._run.watchdog.stepped(self._unlogged.seconds)
        if self._is_logged(done + 1):
            self._log_last_step()

    def _accumulate(self, batches: Sequence[MicroBatch]) -> tuple[float, float]:
        """Gradients of the mean loss over all target tokens, clipped; that loss, and the norm before clipping."""
        target_tokens = max(1, sum(batch.target_tokens for batch in batches))
        loss = torch.zeros((), device=self._model.device)
        for batch in batches:
            self._run.stop.raise_if_set()
            with self._model.computing():
                losses = sum_of_losses(self._model.network, batch.to(self._model.device))
            mean = losses / target_tokens
            mean.backward()
            loss += mean.detach()
            self._run.watchdog.moved()
        norm = clip_grad_norm_(self._model.trainable.values(), self._plan.optimizer.max_grad_norm or math.inf)
        # One transfer a step: the device is waited for here and nowhere else.
        loss_and_norm: list[float] = torch.stack([loss, norm.to(loss)]).tolist()
        return loss_and_norm[0], loss_and_norm[1]

    def _move(self, position: Position) -> None:
        self.position = position
        self._run.step = position.step
        self._randomness = capture_randomness()

    def _is_logged(self, step: int) -> bool:
        return step % max(1, self._plan.cadence.logging_steps) == 0 or step == self._plan.schedule.total_steps

    def _log_last_step(self) -> None:
        if (last := self._unlogged) is not None:
            self._run.say(last)
            _log.info(
                "step %d of %d: loss %.4f, gradient norm %.3f, learning rate %.3g, %.2f s",
                *(last.step, last.total_steps, last.loss, last.grad_norm, last.learning_rate, last.seconds),
            )
            self._unlogged = None

    def _not_finite(self, loss: float, norm: float, rows: Sequence[int]) -> StageFailed:
        sources = [self._data.train.source(row) for row in rows]
        more = f" and {len(sources) - _ROWS_NAMED} more" if len(sources) > _ROWS_NAMED else ""
        return StageFailed(
            f"step {self.position.step + 1}: the loss is {loss:g} and the gradient norm {norm:g}; the weights are left "
            f"as they were. The batch was {', '.join(sources[:_ROWS_NAMED])}{more}",
            retry=False,
            hint="look at these rows; then try a lower learning_rate, a longer warm-up, or bf16: false",
        )

    def _evaluate_if_due(self) -> None:
        step, every = self.position.step, self._plan.cadence.eval_steps
        if self._data.eval is None or every == 0 or self.position.evaluated_step == step:
            return
        if step % every and step != self._plan.schedule.total_steps:
            return
        began = time.monotonic()
        self._run.enter("evaluating")
        loss, target_tokens = evaluate(self._run, self._model, self._data.eval, self._data.eval_budget_tokens)
        self.position = after_evaluation(self.position, loss, self._plan.selection, self._plan.schedule.total_steps)
        self._run.say(
            Evaluated(
                time=now(),
                step=step,
                eval_loss=loss,
                target_tokens=target_tokens,
                is_best=step > 0 and self.position.best_step == step,
                seconds=time.monotonic() - began,
            )
        )
        _log.info("step %d: evaluation loss %.4f over %d target tokens", step, loss, target_tokens)
        self._run.enter("training")

    def _save_if_due(self, saver: Saver) -> None:
        cadence, step = self._plan.cadence, self.position.step
        if not saver.is_writing:
            saver.settle()
        if step in (0, saver.saved_step):
            return
        waited_minutes = (time.monotonic() - self._saved_at) / 60
        is_time = 0 < cadence.save_minutes <= waited_minutes and not saver.is_writing
        is_step = cadence.save_steps > 0 and step % cadence.save_steps == 0
        if is_time or is_step or self.position.evaluated_step == step:
            saver.save(self._snapshot)
            self._saved_at = time.monotonic()

    def _end(self, saver: Saver) -> None:
        """However it ended: the last whole step is said, whatever logging_steps is, and in a checkpoint."""
        self._log_last_step()
        if self.position.step > 0:
            self._run.say(Entered(time=now(), activity="saving"))
            saver.save_now(self._snapshot, self.position.step)

    def _snapshot(self) -> Snapshot:
        return take_snapshot(self.position, self._model, self._optimizer, self._randomness)
