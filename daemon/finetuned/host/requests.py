"""What people ask through requests/: JOB.cancel and JOB.hold become wishes of their job, JOB.release takes one away.

JOB.resume stays until whoever carries it out deletes it last (`forget_resume`). What makes no sense is answered in
receipts/ and removed. Nothing here decides what a wish leads to.
"""

import hashlib
import logging
import os
import re
import secrets
import stat
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from finetuned.core.job import Phase, Wish
from finetuned.host.drops import for_people, is_temporary
from finetuned.host.files import rename_durably, sync_directory
from finetuned.host.jobdir import JobDir
from finetuned.host.receipts import write_answer
from finetuned.host.spool import Spool

_log = logging.getLogger(__name__)

_REQUEST = re.compile(r"([a-z0-9-]{1,200})\.(cancel|hold|release|resume)")


class Nonsense(Exception):
    """A request that cannot be carried out; the message is the answer."""


def take_requests(spool: Spool, now: datetime, warn: Callable[[str], None] = _log.warning) -> list[JobDir]:
    """Carry out what was asked, oldest first; the jobs whose *resume* waits to be carried out by the caller.

    Trouble with one request goes to `warn`, and is met again next time. Raises OSError when requests/ cannot be listed.
    """
    resumed: list[JobDir] = []
    for path in _oldest_first(spool.requests):
        try:
            job = _take(spool, path)
        except Nonsense as nonsense:
            _refuse(spool, path, str(nonsense), now, warn)
        except FileNotFoundError:
            continue  # Taken back.
        except OSError as error:
            warn(f"request {path.name!r} cannot be carried out yet: {error}")
        else:
            resumed += [job] if job else []
    return resumed


def forget_resume(spool: Spool, job: JobDir, answer: str, now: datetime) -> None:
    """The last step of a resume, done or refused: say what came of it, then delete the request. Raises OSError."""
    path = spool.requests / f"{job.job}.resume"
    if path.exists():
        write_answer(spool, path.name, answer, now)
        _remove(path)


def _take(spool: Spool, path: Path) -> JobDir | None:
    """Raises Nonsense or OSError; the job when it is to be resumed."""
    asked = _REQUEST.fullmatch(path.name)
    if asked is None:
        raise Nonsense("a request is an empty file named JOB.cancel, JOB.hold, JOB.release or JOB.resume")
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise Nonsense("a request is an ordinary empty file")
    job = spool.get(asked[1])
    if job is None:
        raise Nonsense("there is no such job; finetunectl list --all shows every job")
    match asked[2]:
        case "cancel":
            _require(job, Phase.QUEUED, Phase.ACTIVE, Phase.OUTBOX)
            rename_durably(path, job.wish_file(Wish.CANCEL))
        case "hold":
            _require(job, Phase.QUEUED, Phase.ACTIVE)
            rename_durably(path, job.wish_file(Wish.HOLD))
        case "release":
            _require(job, Phase.QUEUED, Phase.ACTIVE)
            _remove(job.wish_file(Wish.HOLD))
            _remove(path)
        case "resume":
            return job
    return None


def _require(job: JobDir, *phases: Phase) -> None:
    if job.phase not in phases:
        raise Nonsense(f"the job has ended already; it is in {job.phase}")


def _refuse(spool: Spool, path: Path, answer: str, now: datetime, warn: Callable[[str], None]) -> None:
    name = for_people(path.name)
    is_ours = _REQUEST.fullmatch(path.name) is not None
    file_name = path.name if is_ours else f"junk-{hashlib.sha256(os.fsencode(path.name)).hexdigest()[:16]}"
    try:
        write_answer(spool, file_name, answer, now, request=name)
        _clear_away(path, file_name)
    except OSError as error:
        warn(f"request {path.name!r} ({answer}) cannot be answered yet: {error}")
        return
    _log.info("request %r: %s", path.name, answer)


def _clear_away(path: Path, file_name: str) -> None:
    try:
        _remove(path)
    except IsADirectoryError:
        # What is inside is its owner's; under this name it is not looked at again.
        os.rename(path, path.with_name(f".{file_name}.{secrets.token_hex(4)}"))


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    sync_directory(path.parent)


def _oldest_first(directory: Path) -> list[Path]:
    found: list[tuple[int, str]] = []
    for name in os.listdir(directory):
        if is_temporary(name):
            continue
        try:
            found.append((os.lstat(directory / name).st_ctime_ns, name))
        except FileNotFoundError:
            continue  # Taken back.
    return [directory / name for _, name in sorted(found)]
