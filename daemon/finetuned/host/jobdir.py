"""Every path inside one job's directory, and typed reads and writes of its files."""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from finetuned.core.job import Claim, Exit, Launch, Phase, Result, Stage, Wish
from finetuned.core.plan import Facts, RunPlan
from finetuned.core.record import Record
from finetuned.host.files import write_whole

RecordType = TypeVar("RecordType", bound=Record)

_CHECKPOINT = re.compile(r"step-(\d{8})")


class Unreadable(Exception):
    """A file of a job exists and is not what it should be; the message names it."""


def read_record(path: Path, kind: type[RecordType]) -> RecordType | None:
    """The record in `path`, or None when there is no such file. Raises Unreadable."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unreadable(f"{path}: {error.strerror}") from error
    try:
        return kind.model_validate_json(content)
    except ValueError as error:
        raise Unreadable(f"{path} is not a readable {kind.__name__.lower()}: {str(error).splitlines()[0]}") from error


def write_record(path: Path, record: Record) -> None:
    write_whole(path, (record.model_dump_json(indent=1) + "\n").encode())


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint directory under its final name. `step` is what its name says."""

    path: Path
    step: int

    @property
    def name(self) -> str:
        return self.path.name

    def is_whole(self) -> bool:
        """Manifest present and every file it names of the right size; contents are hashed by the loader alone."""
        try:
            manifest = json.loads((self.path / "manifest.json").read_bytes())
            return all((self.path / f["path"]).stat().st_size == f["size_bytes"] for f in manifest["files"])
        except (OSError, ValueError, KeyError, TypeError):
            return False


@dataclass(frozen=True)
class JobDir:
    """One job. `path` is SPOOL/PHASE/JOB; all other paths are inside it."""

    path: Path

    @property
    def job(self) -> str:
        return self.path.name

    @property
    def phase(self) -> Phase:
        return Phase(self.path.parent.name)

    @property
    def spool(self) -> Path:
        return self.path.parent.parent

    @property
    def claim_file(self) -> Path:
        return self.path / "claim.json"

    @property
    def dropped(self) -> Path:
        """What a person dropped: a file, or a folder that holds job.yaml or job.json."""
        return self.path / "dropped"

    @property
    def spec_file(self) -> Path:
        return self.path / "spec.yaml"

    @property
    def facts_file(self) -> Path:
        return self.path / "facts.json"

    @property
    def plan_file(self) -> Path:
        return self.path / "plan.json"

    @property
    def result_file(self) -> Path:
        return self.path / "result.json"

    @property
    def earlier_results(self) -> Path:
        return self.path / "results"

    @property
    def launches(self) -> Path:
        return self.path / "launches"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def artifacts(self) -> Path:
        return self.path / "artifacts"

    @property
    def preview(self) -> Path:
        return self.path / "preview.txt"

    def events_file(self, stage: Stage) -> Path:
        return self.path / "events" / f"{stage}.jsonl"

    def lock_file(self, stage: Stage) -> Path:
        return self.path / f"{stage}.lock"

    def log_file(self, stage: Stage) -> Path:
        return self.path / f"{stage}.log"

    def launch_file(self, number: int) -> Path:
        return self.launches / f"{number:04d}.json"

    def exit_file(self, number: int) -> Path:
        return self.launches / f"{number:04d}.exit.json"

    def wish_file(self, wish: Wish) -> Path:
        return self.path / f"wish.{wish}"

    def read_claim(self) -> Claim | None:
        return read_record(self.claim_file, Claim)

    def read_facts(self) -> Facts | None:
        return read_record(self.facts_file, Facts)

    def read_plan(self) -> RunPlan | None:
        return read_record(self.plan_file, RunPlan)

    def read_result(self) -> Result | None:
        return read_record(self.result_file, Result)

    def read_spec_text(self) -> str | None:
        """The spec as copied at the claim; undecodable bytes become U+FFFD, which the parser then reports."""
        try:
            return self.spec_file.read_bytes().decode(errors="replace")
        except FileNotFoundError:
            return None

    def read_launches(self) -> list[Launch]:
        """All launches, oldest first. Raises Unreadable."""
        launches = []
        for name in _names(self.launches):
            if re.fullmatch(r"\d{4,}\.json", name):
                launch = read_record(self.launches / name, Launch)
                if launch is not None:
                    launches.append(launch)
        return sorted(launches, key=lambda launch: launch.number)

    def read_exit(self, number: int) -> Exit | None:
        return read_record(self.exit_file(number), Exit)

    def earlier_result_numbers(self) -> list[int]:
        return sorted(int(name[:-5]) for name in _names(self.earlier_results) if re.fullmatch(r"\d+\.json", name))

    def read_newest_earlier_result(self) -> Result | None:
        """The result that `resume` put away last, or None."""
        numbers = self.earlier_result_numbers()
        return read_record(self.earlier_results / f"{numbers[-1]}.json", Result) if numbers else None

    def wishes(self) -> frozenset[Wish]:
        return frozenset(wish for wish in Wish if self.wish_file(wish).exists())

    def list_checkpoints(self) -> list[Checkpoint]:
        """Checkpoints under their final names, newest first, whole or not. What is being written is not among them."""
        found = [
            Checkpoint(self.checkpoints / name, int(match[1]))
            for name in _names(self.checkpoints)
            if (match := _CHECKPOINT.fullmatch(name))
        ]
        return sorted(found, key=lambda checkpoint: -checkpoint.step)

    def newest_whole_checkpoint(self) -> Checkpoint | None:
        return next((checkpoint for checkpoint in self.list_checkpoints() if checkpoint.is_whole()), None)


def checkpoint_name(step: int) -> str:
    return f"step-{step:08d}"


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []
