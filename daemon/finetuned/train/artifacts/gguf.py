"""A GGUF file for llama.cpp, written by llama.cpp's own converter after everything else is published and proven.

Whatever goes wrong here costs this file alone: it becomes a notice, and the job succeeds.
"""

import logging
import stat
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from finetuned.core.plan import LoraTuning, RunPlan
from finetuned.core.problems import StageFailed
from finetuned.host.converter import GgufPrograms, NoProgram
from finetuned.host.files import rename_durably, sync_file
from finetuned.host.program import run_program
from finetuned.host.settings import InvalidSettings, config_directory, read_settings
from finetuned.host.stage import StageRun

if TYPE_CHECKING:
    from finetuned.train.artifacts.proof import Task

_log = logging.getLogger(__name__)

_MAGIC = b"GGUF"
_HEADER = struct.Struct("<4sIQQ")
"""Magic, version, number of tensors, number of metadata entries."""
_LAST_LINES = 3
_NO_FILES = {stat.S_ISLNK: "a symbolic link", stat.S_ISDIR: "a folder", stat.S_ISFIFO: "a pipe"}


class _NoGguf(Exception):
    """Why there is no file, in words."""


@dataclass(frozen=True)
class Gguf:
    """What became of the GGUF file; all empty where none was asked for."""

    file: str = ""
    """Relative to the artifacts."""
    size_bytes: int = 0
    failure: str = ""

    @property
    def notice(self) -> str:
        return self.failure or f"{self.file} is written ({self.size_bytes / 1e9:.2f} GB)"


def convert(run: StageRun, plan: RunPlan, task: "Task", artifacts: Path, scratch: Path) -> Gguf:
    """Add gguf/model-TYPE.gguf to the published `artifacts`, or say why not. Raises StopRequested alone."""
    try:
        scratch.mkdir(mode=0o750)
        converted = _converted(run, plan, _whole_model(run, plan, task, artifacts, scratch), scratch)
        converted.chmod(0o640)
        sync_file(converted)
        target = artifacts / "gguf" / converted.name
        target.parent.mkdir(mode=0o750, exist_ok=True)
        rename_durably(converted, target)
    except (_NoGguf, NoProgram, InvalidSettings, StageFailed, OSError) as error:
        _log.exception("no GGUF file")
        return Gguf(failure=f"no GGUF file could be made, all else is there: {error}")
    return Gguf(str(target.relative_to(artifacts)), target.stat().st_size)


def _whole_model(run: StageRun, plan: RunPlan, task: "Task", artifacts: Path, scratch: Path) -> Path:
    """The folder to convert; an adapter that was not to be merged is merged here, and proven like any other."""
    if not isinstance(plan.tuning, LoraTuning):
        return artifacts / "model"
    if plan.exports.merge:
        return artifacts / "merged"
    from finetuned.train.artifacts.fresh import prove

    merged = scratch / "merged"
    prove(run, task.model_copy(update={"artifacts": str(artifacts), "proves": None, "merges_into": str(merged)}))
    return merged


def _converted(run: StageRun, plan: RunPlan, model: Path, scratch: Path) -> Path:
    settings = read_settings(config_directory())
    programs = GgufPrograms.find(plan.exports.gguf, settings)
    found = scratch / f"model-{plan.exports.gguf}.gguf"
    deadline = time.monotonic() + settings.gguf_minutes * 60
    for command in programs.commands(plan.exports.gguf, model, found):
        _log.info("running %s", " ".join(command))
        left = max(1.0, deadline - time.monotonic())
        ended = run_program(command, seconds=left, stop=run.stop, moved=run.watchdog.moved)
        if not ended.succeeded:
            limit = f" (gguf_minutes: {settings.gguf_minutes:g})" if ended.returncode is None else ""
            said = "; ".join(ended.last_lines[-_LAST_LINES:]) or "it said nothing"
            raise _NoGguf(f"{Path(command[0]).name} {ended.how}{limit}: {said}")
        _require_gguf(Path(command[command.index("--outfile") + 1]) if "--outfile" in command else found, command[0])
    return found


def _require_gguf(path: Path, program: str) -> None:
    """Raises _NoGguf for what is no GGUF file that llama.cpp could load."""
    name = Path(program).name
    try:
        found = path.lstat().st_mode
    except FileNotFoundError:
        raise _NoGguf(f"{name} ended well and wrote no file") from None
    if not stat.S_ISREG(found):
        # A link would be published as one, and opening a pipe waits for ever.
        kind = next((word for is_kind, word in _NO_FILES.items() if is_kind(found)), "something else")
        raise _NoGguf(f"{name} left {kind}, not a file, at {path.name}")
    with open(path, "rb") as file:
        header = file.read(_HEADER.size)
    if len(header) < _HEADER.size or not header.startswith(_MAGIC):
        raise _NoGguf(f"what {name} wrote does not begin as a GGUF file does ({header[:8]!r})")
    _magic, version, tensors, entries = _HEADER.unpack(header)
    if version not in (2, 3) or tensors == 0 or entries == 0:
        raise _NoGguf(f"{name} wrote a GGUF file of version {version} with {tensors} tensors and {entries} entries")
    try:
        from gguf import GGUFReader
    except ImportError:
        return
    try:
        GGUFReader(path)
    except Exception as error:  # Of a damaged file it raises whatever numpy does.
        raise _NoGguf(f"what {name} wrote is a damaged GGUF file: {error}") from error
