"""Event files: appended by one stage, read and followed by everybody, with a torn last line tolerated."""

import ctypes
import errno
import os
import threading
from pathlib import Path

from finetuned.core import events
from finetuned.core.events import DURABLE, Event, FailedForGood, FailedRetry, Finished, History, Stopped

_ENDINGS = (Finished, Stopped, FailedRetry, FailedForGood)
_ENDING_BYTES = 64 << 10
_AHEAD_BYTES = 256 << 10
_FALLOC_FL_KEEP_SIZE = 1
_libc = ctypes.CDLL(None, use_errno=True)


class Journal:
    """The writing end, held by the one stage that owns the file (under its lock). Safe to use from several threads."""

    def __init__(self, path: Path):
        """Open `path` for appending and cut off a torn last line that a killed predecessor left."""
        path.parent.mkdir(mode=0o750, exist_ok=True)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_APPEND, 0o640)
        self._cut_torn_tail()
        self._mutex = threading.Lock()
        self._reserved_end = 0
        self._reserve(os.fstat(self._descriptor).st_size)

    def append(self, event: Event) -> None:
        """Write one event; on return the kinds in `events.DURABLE` are on disk.

        Raises OSError on a full disk; endings still find the room that is kept for them.
        """
        line = events.to_line(event)
        with self._mutex:
            before = os.fstat(self._descriptor).st_size
            if not isinstance(event, _ENDINGS) and before + len(line) + _ENDING_BYTES > self._reserved_end:
                self._reserve(before + len(line))
            written = os.write(self._descriptor, line)
            if written != len(line):
                os.ftruncate(self._descriptor, before)
                raise OSError(errno.ENOSPC, f"no space left for an event of {len(line)} bytes")
            if isinstance(event, DURABLE):
                os.fsync(self._descriptor)
            if isinstance(event, _ENDINGS):
                self._release_reserve(before + len(line))

    def _reserve(self, used: int) -> None:
        """Keep blocks beyond the end of the file, so that a disk that fills up cannot swallow the ending."""
        length = ctypes.c_long(_AHEAD_BYTES)
        while _libc.fallocate(self._descriptor, _FALLOC_FL_KEEP_SIZE, ctypes.c_long(used), length) != 0:
            match ctypes.get_errno():
                case errno.EINTR:
                    continue
                case errno.ENOSPC | errno.EDQUOT:
                    raise OSError(errno.ENOSPC, f"no space left for {_AHEAD_BYTES:,} bytes of events")
                case _:
                    self._reserved_end = 1 << 62  # This file system cannot preallocate: write as far as it goes.
                    return
        self._reserved_end = used + _AHEAD_BYTES

    def _release_reserve(self, end: int) -> None:
        """After an ending: ten thousand filed jobs must not hold gigabytes that nobody will write."""
        os.ftruncate(self._descriptor, end)
        self._reserved_end = 0

    def _cut_torn_tail(self) -> None:
        size = os.fstat(self._descriptor).st_size
        end = size
        while end > 0:
            start = max(0, end - 65536)
            newline = os.pread(self._descriptor, end - start, start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end != size:
            os.ftruncate(self._descriptor, end)


class JournalReader:
    """Reads what has been added since the last look; starts over when the file was cut or replaced."""

    def __init__(self, path: Path):
        self._path = path
        self._inode: int | None = None
        self._offset = 0

    def read_new(self) -> tuple[list[Event], bool]:
        """New whole lines as events, and whether reading began at the start of the file (forget what you had).

        A line that cannot be read is skipped; a torn last line is left for the next look.
        """
        try:
            with open(self._path, "rb") as file:
                found = os.fstat(file.fileno())
                from_start = found.st_ino != self._inode or found.st_size < self._offset
                if from_start:
                    self._offset = 0
                self._inode = found.st_ino
                file.seek(self._offset)
                content = file.read()
        except FileNotFoundError:
            from_start = self._inode is not None
            self._inode, self._offset = None, 0
            return [], from_start
        whole = content[: content.rfind(b"\n") + 1]
        self._offset += len(whole)
        found_events = []
        for line in whole.splitlines():
            try:
                event = events.from_line(line)
            except ValueError:
                continue
            if event is not None:
                found_events.append(event)
        return found_events, from_start


class HistoryReader:
    """The folded history of one event file, kept up to date by reading only what was added."""

    def __init__(self, path: Path):
        self._reader = JournalReader(path)
        self._history = History()

    def read(self) -> History:
        added, from_start = self._reader.read_new()
        if from_start:
            self._history = History()
        if added:
            self._history = events.extend(self._history, added)
        return self._history


def read_events(path: Path) -> list[Event]:
    """All whole events of a file; empty when there is none."""
    return JournalReader(path).read_new()[0]
