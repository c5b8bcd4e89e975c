"""The stage's side of the watchdog: it announces for how long it may be silent, and says that it moves.

Its supervisor (systemd, or the shim) kills it with SIGABRT when it has been silent for longer.
"""

import time
from collections import deque
from collections.abc import Callable

from finetuned.core.events import (
    Activity,
    Entered,
    Event,
    FailedForGood,
    FailedRetry,
    Finished,
    History,
    Progressed,
    Started,
    Stopped,
    extend,
)
from finetuned.core.messages import status_of
from finetuned.core.redaction import redacted
from finetuned.core.silence import allowed_silence_seconds
from finetuned.host import systemd

_SECONDS_BETWEEN_SIGNS = 1.0
_SECONDS_BETWEEN_STATUSES = 5.0
"""A flood of notifications from a service that is being stopped has hung PID 1 (systemd#37288)."""
_LOOK_SECONDS = 1.0
_STEPS_REMEMBERED = 20
_CHANGE = 0.1
"""By which a patience must differ from the one announced to be announced anew."""
DEFAULT_HANG_SECONDS = 600.0


class Watchdog:
    """To be told of everything that moves. `stopping`: whether the stage has been asked to stop."""

    def __init__(
        self,
        stopping: Callable[[], bool] = lambda: False,
        hang_seconds: float = DEFAULT_HANG_SECONDS,
        notify: Callable[..., None] = systemd.notify,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._stopping, self._hang_seconds, self._notify, self._clock = stopping, hang_seconds, notify, clock
        self._activity: Activity | None = None
        self._step_seconds: deque[float] = deque(maxlen=_STEPS_REMEMBERED)
        self._announced_seconds = 0.0
        self._signed_at = self._status_at = float("-inf")
        self._history = History()
        self._done = -1

    def saw(self, event: Event) -> None:
        """Every event of the stage; the first, *Started*, makes it ready."""
        self._history = extend(self._history, [event])
        match event:
            case Started():
                self._announce("READY=1")
            case Entered(activity=activity):
                self._activity = activity
                self._announce()
            case Finished() | Stopped() | FailedRetry() | FailedForGood():
                self._activity = None
                self._announce()
            case Progressed(done=done) if done == self._done:
                return  # Waiting, and saying so, is no progress.
            case Progressed(done=done):
                self._done = done
                self.moved()
            case _:
                self.moved()
        self._tell_status(is_new_activity=isinstance(event, Entered))

    def stepped(self, seconds: float) -> None:
        """One more step is done, whether or not it becomes an event."""
        self._step_seconds.append(seconds)
        if abs(self._allowed_seconds() - self._announced_seconds) > _CHANGE * self._announced_seconds:
            self._announce()
        self.moved()

    def moved(self) -> None:
        """Something has been done: a micro-batch, some bytes, some rows."""
        if self._clock() - self._signed_at >= _SECONDS_BETWEEN_SIGNS:
            self._signed_at = self._clock()
            self._notify("WATCHDOG=1")

    def await_writing(self, is_done: Callable[[float], bool], written_bytes: Callable[[], int]) -> None:
        """Wait until `is_done`, which itself waits for so many seconds; it lives as long as its bytes grow.

        A stop is then given the time that it takes.
        """
        seen = -1
        while not is_done(_LOOK_SECONDS):
            found = written_bytes()
            if found > seen:
                self._notify("WATCHDOG=1", *([_usec("EXTEND_TIMEOUT", self._hang_seconds)] if self._stopping() else []))
            seen = max(seen, found)

    def _announce(self, *more: str) -> None:
        self._announced_seconds = self._allowed_seconds()
        self._signed_at = self._clock()
        self._notify(*more, "WATCHDOG=1", _usec("WATCHDOG", self._announced_seconds))

    def _allowed_seconds(self) -> float:
        if not self._history.attempts or self._history.attempts[-1].ending is not None:
            return self._hang_seconds
        return allowed_silence_seconds(self._activity or "loading", self._step_seconds, self._hang_seconds)

    def _tell_status(self, is_new_activity: bool) -> None:
        if is_new_activity or self._clock() - self._status_at >= _SECONDS_BETWEEN_STATUSES:
            self._status_at = self._clock()
            self._notify(f"STATUS={redacted(status_of(self._history.progress))}")


def _usec(name: str, seconds: float) -> str:
    return f"{name}_USEC={round(seconds * 1e6)}"
