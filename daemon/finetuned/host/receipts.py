"""Answers to those who dropped something through a door: one small JSON file each, in receipts/."""

import hashlib
from datetime import datetime
from pathlib import Path
from typing import Literal

from finetuned.core.problems import Problem
from finetuned.core.record import Record, UtcTime
from finetuned.host.jobdir import JobDir, Unreadable, write_record
from finetuned.host.spool import Spool


class Receipt(Record):
    """receipts/JOB.json: what was dropped has become this job."""

    format: Literal[1] = 1
    job: str
    name: str
    """As dropped."""
    sha256: str | None
    """Of the job file's bytes as they were read; None for a refused drop."""
    position: int | None = None
    """Among the queued jobs when this was written, by age; 1 is the oldest. A priority may overtake."""
    refusal: Problem | None = None
    claimed: UtcTime


class Answer(Record):
    """receipts/REQUEST.json: why a request was not carried out, or that it was."""

    format: Literal[1] = 1
    request: str
    answer: str
    answered: UtcTime


def write_receipt(spool: Spool, job: JobDir, position: int | None = None) -> None:
    """Tell the submitter that the drop was taken. Raises Unreadable without a claim, and OSError."""
    claim = job.read_claim()
    if claim is None:
        raise Unreadable(f"{job.claim_file} is missing")
    try:
        sha256 = hashlib.sha256(job.spec_file.read_bytes()).hexdigest()
    except FileNotFoundError:
        sha256 = None
    receipt = Receipt(
        job=job.job,
        name=claim.name,
        sha256=sha256,
        position=position,
        refusal=claim.refusal,
        claimed=claim.claimed,
    )
    write_record(spool.receipts / f"{job.job}.json", receipt)


def receipts_of(spool: Spool, job: str) -> list[Path]:
    """The receipt of a job, and the answers to requests about it."""
    return [path for path in spool.receipts.glob(f"{job}.*json") if path.name.split(".")[0] == job]


def write_answer(spool: Spool, file_name: str, answer: str, now: datetime, request: str | None = None) -> None:
    """`file_name` is ours and safe; `request` is what the asker called it, where that differs. Raises OSError."""
    write_record(
        spool.receipts / f"{file_name}.json", Answer(request=request or file_name, answer=answer, answered=now)
    )
