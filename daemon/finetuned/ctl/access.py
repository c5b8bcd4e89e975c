"""Whether another user could read a path, from modes, groups and access lists; and the command that mends it."""

import errno
import glob
import grp
import os
import pwd
import shlex
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from finetuned.core.record import Record

READ, SEARCH = 4, 1


@dataclass(frozen=True)
class Reader:
    """A user with all of its groups. uid 0 reads everything."""

    name: str
    uid: int
    gids: frozenset[int]


class Obstacle(Record):
    """What keeps a reader from a path."""

    path: str
    """As the job file names it."""
    blocked_by: str
    """The file or the directory on the way to it."""
    what: str
    mend: str
    """A command for the owner of `blocked_by`."""


def reader_named(name: str) -> Reader:
    """Raises KeyError for an unknown user."""
    entry = pwd.getpwnam(name)
    return Reader(name, entry.pw_uid, frozenset(os.getgrouplist(name, entry.pw_gid)))


def owner_of(path: Path) -> Reader:
    """The user that owns `path`; one without an account has the path's group alone."""
    found = path.stat()
    try:
        return reader_named(pwd.getpwuid(found.st_uid).pw_name)
    except KeyError:
        return Reader(str(found.st_uid), found.st_uid, frozenset({found.st_gid}))


def find_obstacle(path: Path, reader: Reader) -> Obstacle | None:
    """The first thing between `reader` and `path`: a directory that cannot be searched, a file that cannot be read.

    For a folder, everything in it counts. What is missing, or hidden from us too, is no obstacle: others tell of that.
    """
    if reader.uid == 0:
        return None
    try:
        for passed, needed in _way_to(path):
            if not _allows(passed, reader, needed):
                return _obstacle(path, passed, needed, reader)
    except (OSError, RuntimeError):  # Python before 3.13 raises RuntimeError for links that lead in a circle.
        return None
    return None


def _way_to(path: Path) -> Iterator[tuple[Path, int]]:
    """Each directory on the way, as written and behind links, then the file or all of the folder.

    For a pattern (`/data/*.jsonl`): the way to each file that it finds, and the listing that finds them.
    """
    if matches := pattern_matches(path):
        for match in matches:
            yield match.parent, READ | SEARCH
            yield from _way_to(match)
        return
    absolute, resolved = Path(os.path.abspath(path)), path.resolve()
    for target in dict.fromkeys((absolute, resolved)):
        for parent in reversed(target.parents):
            yield parent, SEARCH
    if not resolved.is_dir():
        yield resolved, READ
        return
    yield resolved, READ | SEARCH
    for root, folders, files in os.walk(resolved):
        for name in sorted(folders):
            yield Path(root, name), READ | SEARCH
        for name in sorted(files):
            yield Path(root, name), READ


def pattern_matches(path: Path) -> list[Path]:
    """What a pattern finds, as we see it, in order; nothing for a path that is none."""
    if not glob.has_magic(str(path)) or path.exists():
        return []
    return [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]


def _obstacle(path: Path, blocked_by: Path, needed: int, reader: Reader) -> Obstacle:
    letters = {READ: "r", SEARCH: "x", READ | SEARCH: "rx"}[needed]
    found = blocked_by.stat()
    verb = {READ: "read", SEARCH: "pass through", READ | SEARCH: "list"}[needed]
    what = (
        f"{reader.name} cannot {verb} {blocked_by} "
        f"({stat.filemode(found.st_mode)} {_user_name(found.st_uid)}:{_group_name(found.st_gid)})"
    )
    quoted = shlex.quote(str(blocked_by))
    if found.st_gid in reader.gids and found.st_uid != reader.uid:
        mend = f"chmod g+{letters} {quoted}"
    elif found.st_uid == reader.uid:
        mend = f"chmod u+{letters} {quoted}"
    else:
        mend = f"setfacl -m u:{reader.name}:{letters} {quoted}"
    return Obstacle(path=str(path), blocked_by=str(blocked_by), what=what, mend=mend)


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _allows(path: Path, reader: Reader, needed: int) -> bool:
    found = path.stat()
    entries = _access_list(path)
    if entries:
        return _list_allows(entries, found, reader, needed)
    if found.st_uid == reader.uid:
        granted = found.st_mode >> 6
    elif found.st_gid in reader.gids:
        granted = found.st_mode >> 3
    else:
        granted = found.st_mode
    return granted & needed == needed


# POSIX access lists as Linux stores them: a version word, then (tag, permissions, id) each.
_ENTRY = struct.Struct("<HHI")
_OWNER, _USER, _GROUP, _NAMED_GROUP, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20


def _access_list(path: Path) -> list[tuple[int, int, int]]:
    try:
        stored = os.getxattr(path, "system.posix_acl_access")
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.ENOTSUP):
            return []
        raise
    return list(_ENTRY.iter_unpack(stored[4:]))


def _list_allows(entries: list[tuple[int, int, int]], found: os.stat_result, reader: Reader, needed: int) -> bool:
    """acl(5): the owner's entry, else the named user's, else any group's that grants it, else everybody's."""
    mask = next((permissions for tag, permissions, _ in entries if tag == _MASK), 7)
    if found.st_uid == reader.uid:
        return any(tag == _OWNER and permissions & needed == needed for tag, permissions, _ in entries)
    for tag, permissions, who in entries:
        if tag == _USER and who == reader.uid:
            return permissions & mask & needed == needed
    groups = [
        permissions & mask
        for tag, permissions, who in entries
        if (tag == _GROUP and found.st_gid in reader.gids) or (tag == _NAMED_GROUP and who in reader.gids)
    ]
    if groups:
        return any(permissions & needed == needed for permissions in groups)
    return any(tag == _OTHER and permissions & needed == needed for tag, permissions, _ in entries)
