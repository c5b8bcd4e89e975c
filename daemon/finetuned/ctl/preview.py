"""`preview`: what a model would see and learn of the first rows of a job, before anything is submitted."""

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from finetuned.core.preview import Preview, PreviewAsked
from finetuned.ctl.arguments import AsJson, Settings
from finetuned.ctl.check import examine
from finetuned.ctl.draft import Draft, read_draft
from finetuned.ctl.exits import ExitCode, Sorry
from finetuned.ctl.jobs import chosen_path, find_job, open_spool
from finetuned.ctl.render import problem_lines
from finetuned.ctl.words import print_json, printable
from finetuned.host.release import stage_python
from finetuned.host.store import Store

_LOOKS = (
    (re.compile(r"⟦.*?⟧", re.DOTALL), "green"),
    (re.compile(r"^>.*$", re.MULTILINE), "green"),
    (re.compile(r"^======== .*$", re.MULTILINE), "bold"),
)
"""What stands out on a terminal: what is learned, as text and in the list of tokens, and where rows begin."""


def preview(
    ctx: typer.Context,
    spec: Annotated[
        str,
        typer.Argument(
            metavar="SPEC", help="A job file, a folder that holds job.yaml, - for standard input, or a prepared JOB."
        ),
    ],
    settings: Settings = None,
    rows: Annotated[int, typer.Option("--rows", "-n", min=1, max=100, help="Rows of each set to show.")] = 3,
    tokens: Annotated[bool, typer.Option("--tokens", help="Also token by token, with ids.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the first rows as the model will see them, and what it learns of them; nothing is submitted or fetched.

    Exit 1 when there is a problem.
    """
    if _is_a_job(ctx, spec):
        _show_prepared(ctx, spec)
        return
    draft = read_draft(spec, settings or [], None)
    checked = examine(draft, None)
    if checked.problems:
        found = Preview(source=draft.source, text="", problems=checked.problems)
    else:
        found = _look(draft, rows, tokens, Store(chosen_path(ctx) / "store").models)
        found = found.model_copy(update={"notices": (*checked.notices, *found.notices)})
    if as_json:
        print_json(found)
    else:
        _print(found)
    if found.problems:
        raise typer.Exit(ExitCode.BAD_NEWS)


def _is_a_job(ctx: typer.Context, spec: str) -> bool:
    """Where there is no such file, and a name that no file of ours would have."""
    is_file = spec == "-" or "/" in spec or spec.endswith((".yaml", ".yml", ".json")) or Path(spec).exists()
    return not is_file and (chosen_path(ctx) / "incoming").is_dir()


def _show_prepared(ctx: typer.Context, text: str) -> None:
    job = find_job(open_spool(ctx), text)
    try:
        _print_text(job.preview.read_text())
    except FileNotFoundError as error:
        raise Sorry(
            ExitCode.BAD_NEWS, f"{job.job} is not prepared yet", f"finetunectl status {job.job} shows how far it is"
        ) from error


def _look(draft: Draft, rows: int, with_tokens: bool, models: Path) -> Preview:
    """Prepare is run as a program in an empty folder: it has transformers, and we stay light. Raises Sorry."""
    asked = PreviewAsked(spec=draft.pinned, source=draft.source, rows=rows, with_tokens=with_tokens, models=str(models))
    with tempfile.TemporaryDirectory(prefix="finetuned-preview-") as folder:
        ended = subprocess.run(
            [stage_python(), "-m", "finetuned.prepare.glance"],
            input=asked.model_dump_json().encode(),
            capture_output=True,
            cwd=folder,
            check=False,
        )
    try:
        return Preview.model_validate_json(ended.stdout)
    except ValidationError as error:
        said = (ended.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
        if "ModuleNotFoundError" in said:
            hint = "the machine that trains can: it is installed with finetuned[train]"
            raise Sorry(ExitCode.UNUSABLE, f"this machine cannot prepare rows: {said}", hint) from error
        raise Sorry(ExitCode.OUR_MISTAKE, f"prepare ended with status {ended.returncode}: {said}") from error


def _print(found: Preview) -> None:
    if found.text:
        _print_text(found.text)
    for notice in found.notices:
        typer.echo(printable(f"notice: {notice}"))
    if found.problems:
        typer.echo(problem_lines(found.source, found.problems))


def _print_text(text: str) -> None:
    from rich.console import Console
    from rich.text import Text

    shown = Text(printable(text, keep="\n\t"), end="")
    for pattern, style in _LOOKS:
        shown.highlight_regex(pattern, style)
    Console(file=sys.stdout, highlight=False).print(shown, soft_wrap=True, end="")
