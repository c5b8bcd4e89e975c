"""`import`: a job file out of a file for axolotl, LLaMA-Factory, OpenAI or Together; every key is accounted for."""

import math
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from finetuned.core.importers.kinds import UnknownKind, translate
from finetuned.core.importers.ledger import Note
from finetuned.core.importers.work import TOOL_NAMES, DatasetInfo, Kind, Supplied, Translation
from finetuned.core.jobfile.text import Scalar, UnreadableText, read_tree
from finetuned.ctl.arguments import AsJson
from finetuned.ctl.draft import read_text
from finetuned.ctl.exits import ExitCode, Sorry
from finetuned.ctl.render import problem_lines
from finetuned.ctl.words import print_json, printable, say

_DATASET_INFO = "dataset_info.json"
_DATA = "data"
"""LLaMA-Factory's own default for dataset_dir."""


def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The other tool's YAML or JSON; - for standard input.")],
    kind: Annotated[
        Kind | None, typer.Option("--as", help="Whose file it is, where that cannot be told by its keys.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="JOB.yaml", help="Write the job file here, instead of stdout."),
    ] = None,
    base_model: Annotated[
        str | None, typer.Option("--base-model", metavar="MODEL", help="Tune this model, whatever the file names.")
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option("--data", metavar="NAME=PATH", help="Where rows are that the file calls NAME; repeatable."),
    ] = None,
    dataset_info: Annotated[
        Path | None,
        typer.Option(
            "--dataset-info", metavar="FILE", help=f"LLaMA-Factory's {_DATASET_INFO}, if not found beside FILE."
        ),
    ] = None,
    rows_per_pack: Annotated[
        float | None,
        typer.Option("--rows-per-pack", min=1, help="How many rows the other tool packs into one, to size the batch."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Translate another tool's file into a job file; tells what became of each key.

    Exit 1, and no job file, when something that matters cannot be had here.
    """
    if rows_per_pack is not None and not math.isfinite(rows_per_pack):
        raise Sorry(ExitCode.USAGE, f"--rows-per-pack {rows_per_pack} is no number of rows", "write for example 14")
    shown = "standard input" if str(file) == "-" else printable(str(file))
    try:
        text = sys.stdin.read() if str(file) == "-" else read_text(file)
        supplied = Supplied(base_model, _named_files(data or []), rows_per_pack, _find_info(file, text, dataset_info))
        translation = translate(text, supplied, kind)
    except UnreadableText as error:
        where = f"line {error.line}" if error.line else "the file"
        raise Sorry(ExitCode.BAD_NEWS, f"{shown}: {where} {error.what}", error.hint) from error
    except UnknownKind as error:
        hint = "say --as " + ", ".join(TOOL_NAMES)
        raise Sorry(ExitCode.USAGE, f"{shown} {error}", hint) from error
    if as_json:
        print_json(translation)
    _tell(shown, translation)
    if translation.problems:
        raise typer.Exit(ExitCode.BAD_NEWS)
    if output is not None:
        _write(output, translation.job_file)
    elif not as_json:
        typer.echo(translation.job_file, nl=False)


def _named_files(assignments: list[str]) -> dict[str, str]:
    files: dict[str, str] = {}
    for assignment in assignments:
        name, equals, path = assignment.partition("=")
        if not (name and equals and path):
            what = f"--data {printable(assignment)} is not NAME=PATH"
            raise Sorry(ExitCode.USAGE, what, "write for example --data file-abc123=/path/to/rows.jsonl")
        files[name] = path
    return files


def _find_info(file: Path, text: str, named: Path | None) -> DatasetInfo | None:
    """What --dataset-info names, or what lies in dataset_dir, in data/ or beside FILE."""
    if named is not None:
        return DatasetInfo(read_text(named), printable(str(named)), str(named.parent))
    beside = file.parent
    folder = _value(text, "dataset_dir") or _DATA
    for path in (Path(folder) / _DATASET_INFO, beside / folder / _DATASET_INFO, beside / _DATASET_INFO):
        if path.is_file():
            return DatasetInfo(read_text(path), printable(str(path)), str(path.parent))
    return None


def _value(text: str, key: str) -> str:
    values = (entry.value for entry in read_tree(text).entries if entry.key == key)
    return next((value.text for value in values if isinstance(value, Scalar)), "")


def _tell(source: str, translation: Translation) -> None:
    tool = TOOL_NAMES[translation.kind]
    count = len(translation.kept)
    say(f"{source}: for {tool}; {count} keys taken over, as the comments in the job file say")
    _tell_notes("taken over, but it does not mean quite the same", translation.changed)
    _tell_notes("not needed here", translation.ignored)
    if translation.problems:
        say(problem_lines(source, translation.problems))
        say("nothing was written: change these, in a copy of the file, and import it again")


def _tell_notes(headline: str, notes: tuple[Note, ...]) -> None:
    if not notes:
        return
    width = max(len(note.place) for note in notes)
    say("\n".join([f"{headline}:", *(f"  {note.place:<{width}}  {note.what}" for note in notes)]))


def _write(output: Path, job_file: str) -> None:
    if output.exists():
        raise Sorry(ExitCode.REFUSED, f"{printable(str(output))} exists already", "name a new file")
    output.write_text(job_file, encoding="utf-8")
    say(f"finetunectl check {printable(os.fspath(output))} looks at the result")
