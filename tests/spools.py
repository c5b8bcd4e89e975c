"""Spools and what is dropped into them, built on the spot."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from finetuned.core.job import Claim, Phase
from finetuned.host.jobdir import JobDir, write_record
from finetuned.host.spool import Spool

SOUND = "base_model: /srv/models/llama\ndatasets: [{path: /srv/data/chats.jsonl}]\n"
"""A job file without a problem in its text."""


def a_spool(parent: Path) -> Spool:
    spool = Spool(parent / "spool")
    spool.create()
    return spool


def a_queued_job(
    spool: Spool, name: str = "tone.yaml", spec: str = SOUND, job: str = "20261130-221500-tone-7f3a09c1"
) -> JobDir:
    """A claimed job, its spec copied."""
    found = JobDir(spool.path / Phase.QUEUED / job)
    found.path.mkdir()
    claim = Claim(job=job, name=name, uid=os.getuid(), claimed=datetime(2026, 11, 30, 22, 15, tzinfo=UTC))
    write_record(found.claim_file, claim)
    found.dropped.write_text(spec)
    found.spec_file.write_text(spec)
    return found


def require(condition: bool, why: str) -> None:
    """Skip a test that this machine cannot run; in CI that is a failure (see conftest.py)."""
    if not condition:
        pytest.skip(why)


@contextlib.contextmanager
def a_small_disk(at: Path, size: str = "4m") -> Iterator[Path]:
    """A file system of its own, mounted at a new directory."""
    require(os.geteuid() == 0, "only root can mount a small disk")
    at.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", at], check=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", "-l", at], check=True)


def fill(disk: Path) -> Path:
    """Write until nothing fits any more; the file that took the room."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return filler


@contextlib.contextmanager
def become(uid: int) -> Iterator[None]:
    """Be another user for a while, as far as the file system is concerned."""
    os.setegid(uid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
