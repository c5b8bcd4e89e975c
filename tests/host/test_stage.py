"""How a stage ends: whatever happens in its work becomes one event that decides what is next."""

import errno
from pathlib import Path

import pytest

from finetuned.core.events import Ending, FailedRetry
from finetuned.core.job import Stage
from finetuned.host.journal import Journal
from finetuned.host.stage import StageRun, ending_of
from spools import a_queued_job, a_spool


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        # As safetensors 0.8 and tokenizers 0.23 say it.
        Exception("No space left on device (os error 28)"),
        RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_is_waited_out_whoever_met_it(tmp_path: Path, error: Exception):
    def work(_run: StageRun) -> Ending:
        raise error

    job = a_queued_job(a_spool(tmp_path))
    run = StageRun(job, Stage.TRAIN, launch=1, attempt=1, journal=Journal(job.events_file(Stage.TRAIN)), step=7)
    ending = ending_of(run, work)
    assert isinstance(ending, FailedRetry)
    assert (ending.cause, ending.step) == ("disk", 7)
    assert ending.error.startswith("disk full: ")
    assert ending.hint == "free some space on the spool's file system"
