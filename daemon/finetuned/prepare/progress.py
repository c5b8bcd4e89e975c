"""How a long activity says how far it is, and looks whether it should stop."""

import time

from finetuned.core.events import Activity, Progressed
from finetuned.host.stage import StageRun, now

_SECONDS_BETWEEN = 1.0


class Progress:
    """Counts one activity of a stage. Safe places to stop are exactly the calls of `advance`."""

    def __init__(self, run: StageRun, activity: Activity, unit: str, total: int | None = None):
        self._run, self._activity, self._unit, self._total = run, activity, unit, total
        self._done = 0
        self._said_at = time.monotonic()

    def advance(self, by: int) -> None:
        """Count `by` more; at most once a second this becomes an event. Raises StopRequested."""
        self.reach(self._done + by)

    def reach(self, done: int, total: int | None = None) -> None:
        """Like `advance`, to an absolute count, perhaps with a total learned meanwhile. Raises StopRequested."""
        self._run.stop.raise_if_set()
        if done > self._done:
            self._run.watchdog.moved()
        self._done = done
        self._total = total if total is not None else self._total
        if time.monotonic() - self._said_at < _SECONDS_BETWEEN:
            return
        self._said_at = time.monotonic()
        self._run.say(Progressed(time=now(), activity=self._activity, done=done, total=self._total, unit=self._unit))
