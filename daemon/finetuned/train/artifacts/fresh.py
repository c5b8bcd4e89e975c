"""The fresh process, seen from the worker: what it is given, how it is watched, and what its answer means."""

import os
import shutil
import sys
from pathlib import Path

from finetuned.core.plan import ModelFacts
from finetuned.core.problems import StageFailed
from finetuned.host.jobdir import read_record, write_record
from finetuned.host.program import run_program
from finetuned.host.stage import StageRun
from finetuned.train.artifacts.proof import Proof, Task, Verdict
from finetuned.train.report.model_card import hub_name

_SECONDS = 4 * 3600.0
"""Loading a 70B base from a slow disk and merging into it takes most of an hour; a process that hangs, for ever."""


def prove(run: StageRun, task: Task) -> tuple[Proof, ...]:
    """A proof of each folder that `task` asks for, found by a new Python process.

    Raises StageFailed: for good where an artifact is not what was trained, to be retried where the process was killed
    or had too little memory; StopRequested; OSError.
    """
    scratch = Path(task.scratch)
    verdict_file = scratch / "verdict.json"
    verdict_file.unlink(missing_ok=True)
    write_record(scratch / "task.json", task)
    command = [sys.executable, "-m", "finetuned.train.artifacts.verify", str(scratch / "task.json"), str(os.getpid())]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(_hub_of(task.plan.model, scratch / "hub"))}
    ended = run_program(command, seconds=_SECONDS, stop=run.stop, environment=environment, moved=run.watchdog.moved)
    verdict = read_record(verdict_file, Verdict)
    if verdict is None:
        last = f": {ended.last_lines[-1]}" if ended.last_lines else ""
        raise StageFailed(
            f"what was exported could not be proven: the process that loads it again {ended.how}{last}",
            retry=True,
            hint="if it was killed, main memory was too small: the kernel's log (dmesg) says so",
        )
    if verdict.trouble:
        raise StageFailed(f"what was exported could not be proven: {verdict.trouble}", retry=True, hint=verdict.hint)
    if verdict.failure:
        raise StageFailed(verdict.failure, retry=False, hint=verdict.hint)
    return verdict.proofs


def _hub_of(model: ModelFacts, cache: Path) -> Path:
    """A cache of the hub's client that holds the base under the name and commit that adapter_config.json gives."""
    shutil.rmtree(cache, ignore_errors=True)
    cache.mkdir()
    name = hub_name(model)
    if name is not None and model.revision is not None:
        folder = cache / f"models--{name.replace('/', '--')}"
        (folder / "snapshots").mkdir(parents=True)
        (folder / "refs").mkdir()
        (folder / "refs" / model.revision).write_text(model.revision)
        (folder / "snapshots" / model.revision).symlink_to(Path(model.path).absolute(), target_is_directory=True)
    return cache
