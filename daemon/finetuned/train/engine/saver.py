"""Saves checkpoints beside training: the training thread copies, one thread of its own writes."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType

from finetuned.core.events import Checkpointed
from finetuned.core.plan import RunPlan
from finetuned.host.files import bytes_below
from finetuned.host.jobdir import checkpoint_name
from finetuned.host.stage import StageRun, now
from finetuned.train.engine.checkpoint import Snapshot, partial_checkpoint, retire_old_checkpoints, write_checkpoint

_log = logging.getLogger(__name__)


class Saver:
    """At most one write is in flight. Leaving the context waits for it."""

    def __init__(self, run: StageRun, plan: RunPlan, saved_step: int):
        self._run = run
        self._digest = plan.digest
        self._keep = max(1, plan.cadence.save_total_limit)
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None
        self._writing_step = saved_step
        self._hashed_bytes = 0
        self._lost_one = False
        self.saved_step = saved_step
        """Step of the newest whole checkpoint; 0 where there is none."""

    def __enter__(self) -> "Saver":
        return self

    def __exit__(self, *_error: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._executor.shutdown(wait=True)

    @property
    def is_writing(self) -> bool:
        return self._writing is not None and not self._writing.done()

    def save(self, take: Callable[[], Snapshot]) -> None:
        """Copy now and write in the background, after the write in flight."""
        began = time.monotonic()
        self.settle()
        snapshot = take()
        self._writing_step = snapshot.position.step
        self._writing = self._executor.submit(self._write, snapshot, time.monotonic() - began)

    def save_now(self, take: Callable[[], Snapshot], step: int) -> None:
        """Make sure that a whole checkpoint of `step` exists. Raises OSError where it cannot be written."""
        self.settle()
        if self.saved_step != step:
            self.save(take)
            self._result()

    def settle(self) -> None:
        """Wait for the write in flight. One that failed is a notice, and the next save tries again.

        Raises OSError when that fails as well: training that nothing keeps is lost with the next crash, and its end
        could not be written either. The job then waits for room.
        """
        try:
            self._result()
        except OSError as error:
            if self._lost_one:
                raise
            self._lost_one = True
            _log.warning("checkpoint not written", exc_info=error)
            self._run.notice(
                f"the checkpoint of step {self._writing_step} was not written ({error.strerror or error}); "
                f"training goes on, the newest one is of step {self.saved_step}"
            )

    def _result(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            partial = partial_checkpoint(self._run.job, self._writing_step)
            self._run.watchdog.await_writing(
                lambda seconds: bool(wait([writing], seconds).done), lambda: bytes_below(partial) + self._hashed_bytes
            )
            writing.result()

    def _write(self, snapshot: Snapshot, stall_seconds: float) -> None:
        began = time.monotonic()
        step = snapshot.position.step
        manifest = write_checkpoint(self._run.job, snapshot, self._digest, self._count_hashed)
        self.saved_step = step
        self._lost_one = False
        self._run.say(
            Checkpointed(
                time=now(),
                step=step,
                checkpoint=checkpoint_name(step),
                size_bytes=manifest.size_bytes,
                stall_seconds=stall_seconds,
                seconds=time.monotonic() - began,
            )
        )
        try:
            retire_old_checkpoints(self._run.job, self._keep)
        except (OSError, ValueError):
            _log.warning("old checkpoints stay for now", exc_info=True)

    def _count_hashed(self, size_bytes: int) -> None:
        self._hashed_bytes += size_bytes
