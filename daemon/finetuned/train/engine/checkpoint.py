"""Checkpoints on disk: written aside, hashed, renamed last; verified before they are read. No pickle anywhere.

checkpoints/step-00000400/   weights.safetensors optimizer.safetensors randomness.safetensors position.json
                             manifest.json (last: names, sizes, hashes of the others)
checkpoints/.step-00000400.partial   being written    .step-00000400.retired   being deleted
"""

import errno
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch.optim import Optimizer

from finetuned.core.plan import ModelFile
from finetuned.core.record import Record
from finetuned.host.files import rename_durably, sync_directory, sync_file
from finetuned.host.jobdir import Checkpoint, JobDir, checkpoint_name
from finetuned.host.store import hash_files
from finetuned.train.engine.position import Position
from finetuned.train.model.tuned import TunedModel

Tensors = dict[str, torch.Tensor]

_MANIFEST = "manifest.json"
_POSITION = "position.json"
_TENSOR_FILES = ("weights", "optimizer", "randomness")


class Damaged(Exception):
    """A checkpoint is not what was written; the message says which file and how."""


class Manifest(Record):
    """manifest.json: what makes a checkpoint whole, and which plan it belongs to."""

    format: Literal[1] = 1
    step: int
    digest: str
    files: tuple[ModelFile, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True)
class Snapshot:
    """Everything needed to go on from a step, as copies on the CPU that training no longer touches."""

    position: Position
    weights: Tensors
    """Trained weights by name."""
    optimizer: Tensors
    """Optimizer states, each named KIND/WEIGHT, e.g. exp_avg/model.norm.weight; a whole number is an int64 scalar."""
    randomness: Tensors


def take_snapshot(position: Position, model: TunedModel, optimizer: Optimizer, randomness: Tensors) -> Snapshot:
    states = {
        f"{kind}/{name}": torch.tensor(value) if isinstance(value, int) else _copied(value)
        for name, weight in model.trainable.items()
        for kind, value in optimizer.state[weight].items()
    }
    return Snapshot(position, copied_weights(model), states, randomness)


def copied_weights(model: TunedModel) -> Tensors:
    return {name: _copied(weight) for name, weight in model.trainable.items()}


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def partial_checkpoint(job: JobDir, step: int) -> Path:
    """Where the checkpoint of a step is while it is being written."""
    return job.checkpoints / f".{checkpoint_name(step)}.partial"


def write_checkpoint(
    job: JobDir, snapshot: Snapshot, digest: str, hashed: Callable[[int], None] = lambda _size_bytes: None
) -> Manifest:
    """Write a whole checkpoint under its final name. Raises OSError, and then leaves nothing behind.

    `hashed` is told of every piece that was read again for its hash.
    """
    name = checkpoint_name(snapshot.position.step)
    partial = partial_checkpoint(job, snapshot.position.step)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True, mode=0o750)
    try:
        manifest = _write_files(partial, snapshot, digest, hashed)
        # Renamed last: a directory with this name is whole, whatever happened before.
        rename_durably(partial, job.checkpoints / name)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return manifest


def _write_files(partial: Path, snapshot: Snapshot, digest: str, hashed: Callable[[int], None]) -> Manifest:
    for kind in _TENSOR_FILES:
        _save_tensors(getattr(snapshot, kind), partial / f"{kind}.safetensors")
    (partial / _POSITION).write_text(snapshot.position.model_dump_json(indent=1) + "\n")
    names = sorted(os.listdir(partial))
    for name in names:
        sync_file(partial / name)
    manifest = Manifest(step=snapshot.position.step, digest=digest, files=tuple(hash_files(partial, names, hashed)))
    (partial / _MANIFEST).write_text(manifest.model_dump_json(indent=1) + "\n")
    sync_file(partial / _MANIFEST)
    sync_directory(partial)
    return manifest


def _save_tensors(tensors: Tensors, path: Path) -> None:
    try:
        save_file(tensors, path)
    except SafetensorError as error:
        # safetensors 0.8 tells a failed write only in words: "... (os error 28)".
        found = re.search(r"os error (\d+)", str(error))
        number = int(found[1]) if found else errno.EIO
        raise OSError(number, os.strerror(number), str(path)) from error


def read_manifest(checkpoint: Checkpoint) -> Manifest:
    """The manifest of a checkpoint whose files are all what they were when written. Raises Damaged."""
    try:
        manifest = Manifest.model_validate_json((checkpoint.path / _MANIFEST).read_bytes())
        for file in manifest.files:
            if hash_files(checkpoint.path, [file.path]) != [file]:
                raise Damaged(f"{file.path} is not what was written (size or sha256 differs)")
    except OSError as error:
        raise Damaged(f"{Path(error.filename or checkpoint.path).name}: {error.strerror}") from error
    except ValueError as error:
        raise Damaged(f"{_MANIFEST} is not a manifest: {str(error).splitlines()[0]}") from error
    if manifest.step != checkpoint.step:
        raise Damaged(f"{_MANIFEST} is of step {manifest.step}")
    expected = {_POSITION, *(f"{kind}.safetensors" for kind in _TENSOR_FILES)}
    if lacking := expected - {file.path for file in manifest.files}:
        raise Damaged(f"{_MANIFEST} does not name {', '.join(sorted(lacking))}")
    return manifest


def read_position(checkpoint: Checkpoint) -> Position:
    """Raises OSError and ValueError."""
    return Position.model_validate_json((checkpoint.path / _POSITION).read_bytes())


def read_weights(checkpoint: Checkpoint) -> Tensors:
    """The trained weights of a verified checkpoint."""
    return dict(load_file(checkpoint.path / "weights.safetensors"))


def read_snapshot(checkpoint: Checkpoint) -> Snapshot:
    """The contents of a verified checkpoint."""
    weights, optimizer, randomness = (load_file(checkpoint.path / f"{kind}.safetensors") for kind in _TENSOR_FILES)
    return Snapshot(read_position(checkpoint), weights, optimizer, randomness)


@torch.no_grad()
def put_weights(weights: Mapping[str, torch.Tensor], model: TunedModel) -> None:
    """Set the trained weights. Raises ValueError where names, shapes or types are not the model's."""
    names = sorted(weights.keys() | model.trainable.keys())
    kinds = {name: (_kind(weights.get(name)), _kind(model.trainable.get(name))) for name in names}
    if odd := [f"{name} ({has} is stored, {needs} expected)" for name, (has, needs) in kinds.items() if has != needs]:
        raise ValueError(f"{len(odd)} weights are not the model's, among them {odd[0]}")
    for name, weight in model.trainable.items():
        weight.copy_(weights[name])


def _kind(weight: torch.Tensor | None) -> str:
    return "nothing" if weight is None else f"{str(weight.dtype).removeprefix('torch.')} {list(weight.shape)}"


@torch.no_grad()
def put_optimizer_states(states: Mapping[str, torch.Tensor], model: TunedModel, optimizer: Optimizer) -> None:
    """Set the optimizer's states of the trained weights, each in the type that it was saved in."""
    by_weight: dict[str, Tensors] = {}
    for label, value in states.items():
        kind, name = label.split("/", 1)
        by_weight.setdefault(name, {})[kind] = value
    for name, weight in model.trainable.items():
        if name in by_weight:
            optimizer.state[weight] = {
                kind: _restored(kind, value, weight, optimizer) for kind, value in by_weight[name].items()
            }


def _restored(kind: str, value: torch.Tensor, weight: torch.Tensor, optimizer: Any) -> torch.Tensor | int:
    if value.dtype == torch.int64 and value.ndim == 0:
        return int(value)
    if kind in ("state1", "state2"):  # bitsandbytes' own, which may have to lie in memory that is paged.
        buffer: torch.Tensor = optimizer.get_state_buffer(weight, dtype=value.dtype)
        return buffer.copy_(value)
    return value.to(weight.device)


def sweep_leftovers(job: JobDir) -> None:
    """Remove what a killed write or deletion left. Nobody else may be writing: the caller holds the stage's lock."""
    for leftover in job.checkpoints.glob(".step-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def retire_old_checkpoints(job: JobDir, keep: int) -> None:
    """Delete all whole checkpoints but the newest `keep` and those that they name as the best.

    To be called when a new one has just been written whole, so that what a run was resumed from goes only after it. An
    older kept one names its own best, which is needed where the newest turns out to be damaged. Deletes nothing and
    raises OSError or ValueError where a kept one does not say its best.
    """
    whole = [checkpoint for checkpoint in job.list_checkpoints() if checkpoint.is_whole()]
    kept = whole[:keep]
    best_steps = {read_position(checkpoint).best_step for checkpoint in kept}
    for checkpoint in whole[keep:]:
        if checkpoint.step not in best_steps:
            # Renamed first: a half-deleted checkpoint must not look like a damaged one.
            retired = checkpoint.path.with_name(f".{checkpoint.name}.retired")
            rename_durably(checkpoint.path, retired)
            shutil.rmtree(retired)
