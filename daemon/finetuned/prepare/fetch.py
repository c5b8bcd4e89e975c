"""The base model as a folder on this machine, every file of it hashed: used in place, or fetched from the hub."""

import selectors
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from finetuned.core.plan import ModelFile
from finetuned.core.problems import StageFailed
from finetuned.core.spec import JobSpec
from finetuned.host.files import bytes_below
from finetuned.host.paths import Unusable, locate
from finetuned.host.sources import HubModel, require_model_folder, resolve_base_model, weight_files
from finetuned.host.stage import StageRun
from finetuned.host.store import Store, hash_files, read_seal, seal
from finetuned.prepare.download import SMALL_FILES, Downloaded, Pinned, Refused, from_line
from finetuned.prepare.progress import Progress

_LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class BaseModel:
    path: Path
    revision: str | None
    files: tuple[ModelFile, ...]
    weights: tuple[str, ...]

    @property
    def small_files(self) -> tuple[ModelFile, ...]:
        """All but the weights: what transformers may look at when it encodes."""
        return tuple(file for file in self.files if file.path not in self.weights)


def obtain_model(spec: JobSpec, folder: Path | None, store: Store, run: StageRun) -> BaseModel:
    """The base model of `spec`; `folder` is the dropped folder. Raises StageFailed, StopRequested."""
    try:
        model = resolve_base_model(spec.base_model)
        if isinstance(model, HubModel):
            path, revision = _fetch(HubModel(model.repo, model.revision or spec.revision), store, run)
        else:
            path, revision = locate(model.path, folder).resolve(), None
        require_model_folder(path)
        weights = weight_files(path)
    except Unusable as error:
        raise StageFailed(f"base_model: {error}", retry=False, hint=error.hint) from error
    files = _hashed(path, weights, store, run)
    if folder is not None and path.is_relative_to(folder.resolve()):
        path = keep_dropped(
            path, files, store, run
        )  # The job's directory moves from phase to phase; the store does not.
    return BaseModel(path, revision, files, weights)


def _hashed(path: Path, weights: tuple[str, ...], store: Store, run: StageRun) -> tuple[ModelFile, ...]:
    # Only our own seals are believed: a manifest in somebody's folder may be out of date, or name files elsewhere.
    if path.resolve().parent == store.models.resolve() and (manifest := read_seal(path)) is not None:
        return manifest.files
    names = [*(name for name in SMALL_FILES if (path / name).is_file()), *weights]
    total = sum((path / name).stat().st_size for name in names)
    return tuple(hash_files(path, names, Progress(run, "fetching", "bytes", total).advance))


def keep_dropped(path: Path, files: tuple[ModelFile, ...], store: Store, run: StageRun) -> Path:
    """A copy in the store of a model or adapter that came inside a dropped folder."""
    weights = next(file for file in files if file.path.endswith(".safetensors"))
    final = store.models / f"dropped--{weights.sha256[:32]}"
    if (manifest := read_seal(final)) is not None and manifest.files == files:
        return final
    partial = store.models / f".{final.name}.{run.job.job}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(mode=0o750)
    try:
        for file in files:
            run.stop.raise_if_set()
            (partial / file.path).parent.mkdir(exist_ok=True)
            shutil.copyfile(path / file.path, partial / file.path)
        if tuple(hash_files(partial, [file.path for file in files])) != files:
            raise StageFailed(f"{path} was changed while it was being copied", retry=True)
        seal(partial, final, files)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return final


def _fetch(model: HubModel, store: Store, run: StageRun) -> tuple[Path, str]:
    """Run the download as a process, say how far it is, and end it when this stage is to stop."""
    command = [sys.executable, "-m", "finetuned.prepare.download", model.repo, model.revision or "", str(store.models)]
    progress = Progress(run, "fetching", "bytes")
    pinned: Pinned | None = None
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        try:
            while (line := _next_line(process.stdout)) != b"":
                if line is None:
                    if pinned is None:
                        # Waiting for the hub, which has its own limits, or for another job that fetches the same model.
                        run.watchdog.moved()
                    arrived = bytes_below(Path(pinned.partial)) if pinned else 0
                    progress.reach(arrived, pinned.total_bytes if pinned else None)
                    continue
                match from_line(line):
                    case Pinned() as pinned:
                        pass
                    case Downloaded() as downloaded:
                        return store.models / downloaded.folder, downloaded.commit
                    case Refused() as refused:
                        raise StageFailed(
                            refused.what, retry=bool(refused.cause), hint=refused.hint, cause=refused.cause
                        )
        finally:
            process.kill()
    raise StageFailed(f"the download of {model.repo} ended without a word (status {process.returncode})", retry=True)


def _next_line(pipe: IO[bytes]) -> bytes | None:
    """The next line; None when there is none for a while, empty at the end."""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        return pipe.readline() if selector.select(_LOOK_SECONDS) else None
