"""One model from the hub into the store, pinned to a commit: a process of its own.

`python -m finetuned.prepare.download REPO REVISION STORE_MODELS` (an empty REVISION is the main branch). A network that
hangs can then be left by killing it, and the stage itself stays offline. It says what it does in lines of JSON on
stdout: one `Pinned`, then one `Downloaded`; or one `Refused`.
"""

import ctypes
import errno
import fnmatch
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from finetuned.core.events import Cause
from finetuned.core.plan import ModelFile
from finetuned.core.record import Record
from finetuned.host.files import take_lock
from finetuned.host.sources import SAFETENSORS_INDEX
from finetuned.host.store import hash_files, read_seal, seal
from finetuned.prepare.login import how_to_log_in

SMALL_FILES = (
    "config.json",
    "generation_config.json",
    SAFETENSORS_INDEX,
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/tool_use.jinja",
)
"""Everything of a model but its weights that transformers may look at."""
_WEIGHTS = ("model.safetensors", "model-*-of-*.safetensors")
_PR_SET_PDEATHSIG = 1


class Pinned(Record):
    """The commit is known, and how much there is to fetch into `partial`."""

    said: Literal["pinned"] = "pinned"
    commit: str
    partial: str
    total_bytes: int


class Downloaded(Record):
    """The model stands whole in STORE_MODELS/`folder`."""

    said: Literal["downloaded"] = "downloaded"
    commit: str
    folder: str


class Refused(Record):
    said: Literal["refused"] = "refused"
    what: str
    hint: str = ""
    cause: Cause = ""
    """What may pass, so that another attempt may fare better; empty for what only a person can mend."""


Saying = Pinned | Downloaded | Refused
_SAYING: TypeAdapter[Saying] = TypeAdapter(Annotated[Saying, Field(discriminator="said")])


class _Refusal(Exception):
    def __init__(self, what: str, hint: str = "", *, cause: Cause = ""):
        self.refused = Refused(what=what, hint=hint, cause=cause)
        super().__init__(what)


def from_line(line: bytes) -> Saying:
    """What the process said. Raises ValueError for anything else."""
    return _SAYING.validate_json(line)


def main() -> None:
    repo, revision, models = sys.argv[1], sys.argv[2] or None, Path(sys.argv[3])
    _die_with_parent()
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    try:
        _say(_download(repo, revision, models))
    except _Refusal as refusal:
        _say(refusal.refused)
    except Exception as error:  # The one broad one of this process: what it cannot name, it passes on as it is.
        _say(_explain(repo, revision, error))


def _download(repo: str, revision: str | None, models: Path) -> Downloaded:
    if revision is not None and len(revision) == 40 and read_seal(models / _folder(repo, revision)) is not None:
        return Downloaded(commit=revision, folder=_folder(repo, revision))
    from huggingface_hub import HfApi, snapshot_download

    info = HfApi().model_info(repo, revision=revision, files_metadata=True, timeout=30)
    commit = str(info.sha)
    folder = _folder(repo, commit)
    partial = models / f".{folder}.partial"
    wanted = _wanted(repo, info.siblings or [])
    _wait_for_lock(models / f".{folder}.lock")
    if read_seal(models / folder) is not None:
        return Downloaded(commit=commit, folder=folder)
    partial.mkdir(mode=0o750, exist_ok=True)
    total_bytes = sum(file.size or 0 for file in wanted)
    _say(Pinned(commit=commit, partial=str(partial), total_bytes=total_bytes))
    _require_space(repo, partial, total_bytes)
    names = sorted(file.rfilename for file in wanted)
    snapshot_download(repo, revision=commit, local_dir=partial, allow_patterns=names)
    files = hash_files(partial, names)
    _verify(repo, files, wanted, partial)
    shutil.rmtree(partial / ".cache", ignore_errors=True)
    seal(partial, models / folder, tuple(files))
    return Downloaded(commit=commit, folder=folder)


def _folder(repo: str, commit: str) -> str:
    return f"{repo.replace('/', '--')}--{commit}"


def _wanted(repo: str, siblings: list[Any]) -> list[Any]:
    """Config, tokenizer and safetensors weights; code, pickles and other formats stay where they are."""
    wanted = [file for file in siblings if _is_wanted(file.rfilename)]
    names = {file.rfilename for file in wanted}
    if "config.json" not in names:
        raise _Refusal(f"{repo} is not a model that transformers can load: it has no config.json")
    if not any(name.endswith(".safetensors") for name in names):
        others = sorted(file.rfilename for file in siblings if file.rfilename.endswith((".bin", ".pth", ".gguf")))
        found = f"only {others[0]}" if others else "no weights"
        raise _Refusal(f"{repo} has no safetensors weights ({found})", "choose a repository with model.safetensors")
    return wanted


def _is_wanted(name: str) -> bool:
    return name in SMALL_FILES or any(fnmatch.fnmatchcase(name, pattern) for pattern in _WEIGHTS)


def _verify(repo: str, files: list[ModelFile], wanted: list[Any], partial: Path) -> None:
    """What the hub says about each large file must be what arrived; a file that differs is removed."""
    expected = {file.rfilename: file for file in wanted}
    for file in files:
        lfs = expected[file.path].lfs
        if lfs is not None and (lfs.sha256, lfs.size) != (file.sha256, file.size_bytes):
            (partial / file.path).unlink()
            raise _Refusal(f"{repo}: {file.path} arrived damaged (its sha256 is not the hub's)", cause="network")


def _require_space(repo: str, partial: Path, total_bytes: int) -> None:
    arrived = sum(path.stat().st_size for path in partial.rglob("*") if path.is_file())
    free = shutil.disk_usage(partial).free
    if total_bytes - arrived > free:
        raise _Refusal(
            f"{repo} needs {total_bytes - arrived:,} bytes more, and {free:,} bytes are free in {partial.parent}",
            "free some space: finetunectl prune",
            cause="disk",
        )


def _explain(repo: str, revision: str | None, error: Exception) -> Refused:
    """A failure of the hub's client as a sentence: what a person can mend is final, trouble on the way is not."""
    from huggingface_hub import constants, errors, get_token

    login = "with this login" if get_token() else "without a login"
    mend = how_to_log_in()
    if isinstance(error, errors.GatedRepoError):
        hint = f"ask for access at {constants.ENDPOINT}/{repo}; then {mend}"
        return Refused(what=f"{repo} is gated, and the hub does not give it out {login}", hint=hint)
    if isinstance(error, errors.RevisionNotFoundError):
        return Refused(what=f"{repo} has no revision {revision}", hint="leave out revision: main")
    if isinstance(error, errors.RepositoryNotFoundError):
        what = f"the hub has no model {repo}, or does not show it {login}"
        return Refused(what=what, hint=f"look at {constants.ENDPOINT}/{repo}; if it is private, {mend}")
    if isinstance(error, errors.HFValidationError):
        return Refused(what=f"{repo} is not a name on the hub: {_first_line(error)}")
    if constants.HF_HUB_OFFLINE:
        what = f"{repo} is on the hub, and HF_HUB_OFFLINE forbids going there"
        return Refused(what=what, hint="unset HF_HUB_OFFLINE for the service, or name a folder")
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return Refused(what=f"the hub refuses {repo} {login} (HTTP {status})", hint=mend)
    what = f"{repo} could not be fetched from {constants.ENDPOINT}: {type(error).__name__}: {_first_line(error)}"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Refused(what=what, hint="free some space: finetunectl prune", cause="disk")
    return Refused(what=what, hint="this is tried again; is the network up?", cause="network")


def _first_line(error: Exception) -> str:
    return (str(error).strip() or "no word why").splitlines()[0][:300]


def _wait_for_lock(path: Path) -> None:
    """Another job may be fetching the same model. The lock is held until this process ends."""
    while (lock := take_lock(path)) is None or not _is_still_there(path, lock):
        time.sleep(0.5)


def _is_still_there(path: Path, lock: int) -> bool:
    """Whether the file that was locked has not been pruned meanwhile, so that the next one would lock another."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(lock))
    except FileNotFoundError:
        return False


def _die_with_parent() -> None:
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def _say(saying: Saying) -> None:
    sys.stdout.write(saying.model_dump_json() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
