"""Processes as /proc shows them: an identity that survives the reuse of pids, parents, and who holds a lock.

Imported by the shim, which lives as long as a run: nothing heavy here.
"""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")


class Stat(NamedTuple):
    parent: int
    start_time: int
    """Clock ticks after boot: with pid and boot id it names a process for ever."""


def read_stat(pid: int, proc: Path = PROC) -> Stat | None:
    """What a live process looks like; None when there is none (a zombie has ended too).

    Raises OSError when /proc cannot tell.
    """
    try:
        content = (proc / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        if not (proc / "self" / "stat").exists():
            raise OSError(errno.ENOENT, f"{proc} shows no processes") from None
        return None
    # The command's name stands in parentheses and may hold anything, parentheses and blanks too.
    fields = content[content.rindex(b")") + 2 :].split()
    if fields[0] in (b"Z", b"X"):
        return None
    return Stat(parent=int(fields[1]), start_time=int(fields[19]))


def is_alive(pid: int, start_time: int, proc: Path = PROC) -> bool:
    """Whether the very process that had this pid since `start_time` still runs. Raises OSError like `read_stat`."""
    found = read_stat(pid, proc)
    return found is not None and found.start_time == start_time


def children_of(parent: int) -> list[int]:
    """Pids of the direct children of a process that have not ended."""
    found = []
    for pid in _pids():
        try:
            stat = read_stat(pid)
        except OSError:
            continue
        if stat is not None and stat.parent == parent:
            found.append(pid)
    return found


def descendants_of(ancestor: int) -> list[int]:
    """Pids below a process, parents before their children."""
    found: list[int] = []
    for child in children_of(ancestor):
        found += [child, *descendants_of(child)]
    return found


def holders_of(lock: Path) -> list[int]:
    """Pids of the processes, as far as we may look into them, that keep an OFD lock on the file alive."""
    try:
        wanted = os.stat(lock)
    except FileNotFoundError:
        return []
    return [pid for pid in _pids() if pid != os.getpid() and _holds(pid, wanted)]


def _holds(pid: int, wanted: os.stat_result) -> bool:
    try:
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            found = os.stat(f"/proc/{pid}/fd/{descriptor}")
            if os.path.samestat(found, wanted):
                return b"OFDLCK" in Path(f"/proc/{pid}/fdinfo/{descriptor}").read_bytes()
    except OSError:
        return False
    return False


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir(PROC) if name.isdigit())
