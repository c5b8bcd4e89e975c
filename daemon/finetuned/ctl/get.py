"""`get`: a job's artifacts, copied whole or not at all."""

import os
import secrets
import shutil
from pathlib import Path
from typing import Annotated

import typer

from finetuned.core.job import Phase
from finetuned.core.record import Record
from finetuned.ctl.arguments import AsJson, JobText
from finetuned.ctl.exits import ExitCode, Sorry
from finetuned.ctl.jobs import find_job, open_spool
from finetuned.ctl.words import print_json, say, size
from finetuned.host.files import sync_directory, sync_file
from finetuned.host.jobdir import JobDir, Unreadable


class Fetched(Record):
    """`finetunectl get --json`."""

    job: str
    path: str
    files: int
    size_bytes: int


def get(
    ctx: typer.Context,
    job: JobText,
    dest: Annotated[Path, typer.Argument(metavar="DEST", help="The folder to make of them.")],
    force: Annotated[bool, typer.Option("--force", help="Replace DEST where it exists.")] = False,
    as_json: AsJson = False,
) -> None:
    """Copy a job's artifacts to DEST, a new folder."""
    found = find_job(open_spool(ctx), job)
    _require_artifacts(found)
    target = Path(os.path.abspath(dest))
    if _is_taken(target) and not force:
        raise Sorry(ExitCode.REFUSED, f"{dest} exists already", "name a new folder, or replace it with --force")
    if _is_taken(target):
        _require_nobodys_home(target, found.spool)
    if not target.parent.is_dir():
        raise Sorry(ExitCode.REFUSED, f"{target.parent} is not a folder", f"mkdir -p {target.parent}")
    fetched = _copy(found, target)
    print_json(fetched) if as_json else typer.echo(fetched.path)
    say(f"{fetched.files} files, {size(fetched.size_bytes)}")
    if _lacks_gguf(found):
        say(f"the GGUF file that was asked for could not be made; finetunectl status {found.job} says why")


def _require_artifacts(job: JobDir) -> None:
    if job.artifacts.is_dir():
        return
    if job.phase in (Phase.FAILED, Phase.CANCELLED):
        hint = f"finetunectl status {job.job} shows why; finetunectl resume {job.job} goes on from its checkpoint"
        raise Sorry(ExitCode.BAD_NEWS, f"{job.job} is {job.phase} and has no artifacts", hint)
    hint = f"finetunectl status {job.job} shows how far it is"
    raise Sorry(ExitCode.BAD_NEWS, f"{job.job} ({job.phase}) has no artifacts yet", hint)


def _lacks_gguf(job: JobDir) -> bool:
    try:
        plan = job.read_plan()
    except Unreadable:
        return False
    return plan is not None and plan.exports.gguf != "none" and not (job.artifacts / "gguf").is_dir()


def _require_nobodys_home(target: Path, spool: Path) -> None:
    """--force deletes what stands there: with "." or ~ that would be far more than anybody means."""
    for precious in (Path.home(), Path.cwd(), spool):
        if precious.is_relative_to(target):
            what = f"{target} holds {precious}" if precious != target else f"{target} is no place for this"
            raise Sorry(ExitCode.REFUSED, what, "name a new folder")


def _is_taken(target: Path) -> bool:
    if target.is_dir() and not target.is_symlink():
        return any(target.iterdir())
    return os.path.lexists(target)


def _copy(job: JobDir, target: Path) -> Fetched:
    """Copy beside the target, compare sizes, rename into place; what stood there goes last."""
    token = secrets.token_hex(4)
    partial = target.with_name(f".finetunectl-{token}.partial")
    try:
        _copy_tree(job, partial)
        sizes = _sizes(partial)
        if sizes != _sizes(job.artifacts):
            raise Sorry(ExitCode.UNUSABLE, f"{job.artifacts} changed while it was copied", "try again")
        _put(partial, target, target.with_name(f".finetunectl-{token}.old"))
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    sync_directory(target.parent)
    return Fetched(job=job.job, path=str(target), files=len(sizes), size_bytes=sum(sizes.values()))


def _copy_tree(job: JobDir, partial: Path) -> None:
    try:
        shutil.copytree(job.artifacts, partial, copy_function=_copy_file)
    except (shutil.Error, FileNotFoundError) as error:
        if not job.artifacts.is_dir():
            raise Sorry(ExitCode.UNUSABLE, f"{job.job} was moved while it was copied", "try again") from error
        if not isinstance(error, shutil.Error):
            raise
        # What went wrong with each file: (source, target, why).
        source, _target, why = error.args[0][0]
        raise Sorry(ExitCode.UNUSABLE, f"{source} cannot be copied: {why}") from error


def _copy_file(source: str, target: str) -> None:
    """Contents alone: the copy belongs to whoever fetched it, with their usual permissions."""
    shutil.copyfile(source, target)
    sync_file(Path(target))


def _sizes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}


def _put(partial: Path, target: Path, aside: Path) -> None:
    if not os.path.lexists(target):
        os.rename(partial, target)
        return
    os.rename(target, aside)
    os.rename(partial, target)
    if aside.is_dir() and not aside.is_symlink():
        shutil.rmtree(aside)
    else:
        aside.unlink()
