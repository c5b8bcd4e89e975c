"""What the daemon tells the service manager: that it is ready, that its turns complete, and what runs."""

import time
from collections.abc import Callable

from finetuned.core.redaction import redacted
from finetuned.host import systemd

_SECONDS_BETWEEN_SIGNS = 1.0
_SECONDS_BETWEEN_STATUSES = 5.0


class Readiness:
    """Only turns that complete count: a daemon whose turns all fail is as dead as one that hangs."""

    def __init__(
        self, notify: Callable[..., None] = systemd.notify, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._notify, self._clock = notify, clock
        self._is_ready = False
        self._signed_at = self._status_at = float("-inf")

    def turn_completed(self, status: Callable[[], str]) -> None:
        now = self._clock()
        if not self._is_ready:
            self._is_ready = True
            self._notify("READY=1")
        if now - self._signed_at >= _SECONDS_BETWEEN_SIGNS:
            self._signed_at = now
            self._notify("WATCHDOG=1")
        if now - self._status_at >= _SECONDS_BETWEEN_STATUSES:
            self._status_at = now
            self._notify(f"STATUS={redacted(status())}")

    def leaving(self) -> None:
        self._notify("STOPPING=1")


def longest_pause(turn_seconds: float) -> float:
    """How long to wait between two turns, so that a watchdog hears of each in time."""
    watched = systemd.watchdog_seconds()
    return turn_seconds if watched is None else min(turn_seconds, watched / 3)
