"""The doorbell: wakes the daemon when something moves in incoming/ or requests/. The scan is the truth.

watchdog's inotify does the watching. Where it cannot (limits of the kernel, a file system without events), the daemon
looks every turn all the same, and `problem` says why it is slower.
"""

import contextlib
import os
import select
import threading
from pathlib import Path

from watchdog.events import (
    DirCreatedEvent,
    DirDeletedEvent,
    DirMovedEvent,
    FileClosedEvent,
    FileCreatedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers.inotify import InotifyObserver

from finetuned.host.drops import is_temporary

_EVENTS: list[type[FileSystemEvent]] = [
    FileCreatedEvent,
    FileClosedEvent,
    FileMovedEvent,
    DirCreatedEvent,
    DirMovedEvent,
    DirDeletedEvent,
]
_MOST_NAMES = 10_000


class Doorbell(FileSystemEventHandler):
    """Watches the two doors (not what is below them) until it is closed. watchdog's threads ring it."""

    def __init__(self, incoming: Path, requests: Path):
        self.problem: str | None = None
        """Why nobody rings, for people; None while watching."""
        self._incoming, self._requests = os.path.abspath(incoming), os.path.abspath(requests)
        # Not a threading.Event: its lock would deadlock a signal handler that rings while we wait.
        self._rung = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._mutex = threading.Lock()
        self._renamed: set[str] = set()
        self._observer = self._watch()

    def wait(self, seconds: float) -> bool:
        """Return when something has moved since the last return, at the latest after `seconds`; whether it has."""
        select.select([self._rung], [], [], seconds)
        try:
            return os.eventfd_read(self._rung) > 0
        except BlockingIOError:
            return False

    def ring(self) -> None:
        """Wake whoever waits, or will wait next. May be called by a signal handler."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_write(self._rung, 1)

    def arrived_by_rename(self, name: str) -> bool:
        """Whether this entry of incoming/ appeared at once and was not written to since. Says so once."""
        with self._mutex:
            if name not in self._renamed:
                return False
            # A later file of that name may come slowly, and its event after the scan that finds it.
            self._renamed.remove(name)
            return True

    def close(self) -> None:
        if self._observer is not None:
            self._observer.stop()
            self._observer.join()
            self._observer = None
            os.close(self._rung)

    def dispatch(self, event: FileSystemEvent) -> None:
        if isinstance(event, DirDeletedEvent):
            self._notice_removal(os.fsdecode(event.src_path))
            return
        is_rename = isinstance(event, FileMovedEvent | DirMovedEvent)
        path = os.fsdecode(event.dest_path if is_rename else event.src_path)
        folder, name = os.path.split(path)
        # Our own claims leave by rename, and uploads in progress hide behind a dot or a suffix.
        if not name or is_temporary(name):
            return
        if folder == self._incoming:
            self._note(name, is_rename)
        self.ring()

    def _note(self, name: str, is_rename: bool) -> None:
        with self._mutex:
            if not is_rename:
                self._renamed.discard(name)
                return
            if len(self._renamed) >= _MOST_NAMES:
                self._renamed.clear()  # These wait for a second look instead.
            self._renamed.add(name)

    def _notice_removal(self, path: str) -> None:
        if path in (self._incoming, self._requests):
            self.problem = f"{path} was removed; looking every turn instead"
            self.ring()

    def _watch(self) -> InotifyObserver | None:
        try:
            # Full events: an entry renamed in from elsewhere is told apart from one that is created and then written.
            observer = InotifyObserver(generate_full_events=True)
        except OSError as error:
            self.problem = _describe(error)
            return None
        try:
            for directory in (self._incoming, self._requests):
                observer.schedule(self, directory, recursive=False, event_filter=_EVENTS)
            observer.start()
        except OSError as error:
            self.problem = _describe(error)
            observer.on_thread_stop()  # It never began, so stop() would not release what its parts took.
            return None
        return observer


def _describe(error: OSError) -> str:
    return f"cannot watch for new files: {error.strerror or error}; looking every turn instead"
