"""What the jobs of the spool still need of old releases. Reads launch files as they lie on disk; never writes."""

from __future__ import annotations

import json
import re
from pathlib import Path

from installer.places import Places

_LIVE = ("queued", "active", "outbox", "queued")
"""Looked at in this order: a job that goes on, or back, meanwhile is seen at least once."""

_LAUNCH = re.compile(r"(\d{4,})\.json")


class Unknown(Exception):
    """A launch file cannot be read; so nobody can tell which releases are still needed."""


def releases_in_use(places: Places) -> set[str]:
    """Names of the releases that the newest launches of live jobs name, one of each stage, or that a process runs.

    Raises Unknown.
    """
    folder = str(places.releases.resolve())
    named = [release for job in _live_jobs(places) for release in _newest_launches(job)]
    return {
        Path(path).relative_to(folder).parts[0]
        for path in [*named, *_running(places)]
        if path.startswith(f"{folder}/") and path != f"{folder}/"
    }


def _live_jobs(places: Places) -> list[Path]:
    return [job for phase in _LIVE for job in (places.spool / phase).glob("*") if job.is_dir()]


def _newest_launches(job: Path) -> list[str]:
    newest: dict[str, str] = {}
    for path in sorted((job / "launches").glob("*.json"), key=lambda path: (len(path.name), path.name)):
        if not _LAUNCH.fullmatch(path.name):
            continue
        try:
            launch = json.loads(path.read_text())
            newest[str(launch["stage"])] = str(launch["release"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Unknown(f"{path} cannot be read ({error})") from error
    return list(newest.values())


def _running(places: Places) -> list[str]:
    """The first word of every process's command line: a virtual environment's Python is known by nothing else."""
    words = []
    for path in (places.root / "proc").glob("[0-9]*/cmdline"):
        try:
            words.append(path.read_bytes().split(b"\0")[0].decode(errors="replace"))
        except OSError:
            continue
    return words
