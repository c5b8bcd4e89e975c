"""`check`: every problem of a job file at once, and whether the service's user can read what it names."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from finetuned.core.problems import InvalidSpec, Problem
from finetuned.core.record import Record
from finetuned.core.spec import JobSpec, parse_spec
from finetuned.ctl.access import Obstacle, Reader, find_obstacle, owner_of, reader_named
from finetuned.ctl.arguments import AsJson, Settings
from finetuned.ctl.draft import Draft, read_draft
from finetuned.ctl.exits import ExitCode, Sorry
from finetuned.ctl.jobs import chosen_path
from finetuned.ctl.render import problem_lines
from finetuned.ctl.words import did_you_mean, print_json, printable
from finetuned.host.paths import Unusable, locate
from finetuned.host.sources import LocalModel, locate_template, resolve_base_model, source_problems


class Report(Record):
    """`finetunectl check --json`."""

    source: str
    ok: bool
    """No problems, and the service's user can read everything."""
    problems: tuple[Problem, ...]
    notices: tuple[str, ...]
    user: str | None
    """Whose eyes the obstacles are about; None when there is no spool to have an owner."""
    obstacles: tuple[Obstacle, ...]


SpecArgument = Annotated[
    str, typer.Argument(metavar="SPEC", help="A job file, a folder that holds job.yaml, or - for standard input.")
]


def check(
    ctx: typer.Context,
    spec: SpecArgument,
    settings: Settings = None,
    user: Annotated[
        str | None, typer.Option("--user", help="Who must be able to read the files; else the spool's owner.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tell every problem of a job file; nothing is submitted. Exit 1 when there is one."""
    report = examine(read_draft(spec, settings or [], None), _reader(user, chosen_path(ctx)))
    if as_json:
        print_json(report)
    else:
        _print(report)
    if not report.ok:
        raise typer.Exit(ExitCode.BAD_NEWS)


def _reader(user: str | None, spool: Path) -> Reader | None:
    if user is None:
        return owner_of(spool) if spool.is_dir() else None
    try:
        return reader_named(user)
    except KeyError as error:
        hint = did_you_mean(user, _user_names())
        raise Sorry(ExitCode.USAGE, f"this machine has no user {printable(user)!r}{hint}") from error


def _user_names() -> list[str]:
    import pwd

    return [entry.pw_name for entry in pwd.getpwall()]


def examine(draft: Draft, reader: Reader | None) -> Report:
    """What the daemon would say at the claim, and what `reader` could not read."""
    problems, notices, obstacles = _found(draft, reader)
    return Report(
        source=draft.source,
        ok=not problems and not obstacles,
        problems=problems,
        notices=notices,
        user=reader.name if reader else None,
        obstacles=obstacles,
    )


def _found(draft: Draft, reader: Reader | None) -> tuple[tuple[Problem, ...], tuple[str, ...], tuple[Obstacle, ...]]:
    try:
        notices = parse_spec(draft.text, draft.source).notices
        spec = parse_spec(draft.pinned, draft.source).spec
    except InvalidSpec as error:
        return error.problems, (), ()
    problems = source_problems(spec, None)
    if reader is None or reader.uid == os.geteuid():
        return problems, notices, ()
    obstacles = (find_obstacle(path, reader) for path in named_paths(spec))
    return problems, notices, tuple(obstacle for obstacle in obstacles if obstacle is not None)


def named_paths(spec: JobSpec) -> tuple[Path, ...]:
    """Every file and folder on this machine that `spec` names by an absolute path."""
    return tuple(dict.fromkeys(_named_paths(spec)))


def _named_paths(spec: JobSpec) -> Iterator[Path]:
    for dataset in (*spec.datasets, *spec.eval_datasets):
        yield from _absolute(dataset.path)
    try:
        model = resolve_base_model(spec.base_model)
        template = locate_template(spec.chat_template, None) if spec.chat_template else None
    except Unusable:
        return
    if isinstance(model, LocalModel):
        yield from _absolute(model.path)
    if spec.init_adapter is not None:
        yield from _absolute(spec.init_adapter)
    if template is not None:
        yield template


def _absolute(path: str | Path) -> Iterator[Path]:
    try:
        yield locate(path, None)
    except Unusable:
        return


def _print(report: Report) -> None:
    if report.problems:
        typer.echo(problem_lines(report.source, report.problems))
    for notice in report.notices:
        typer.echo(printable(f"notice: {notice}"))
    for obstacle in report.obstacles:
        typer.echo(printable(f"{obstacle.path}: {obstacle.what}"))
        typer.echo(printable(f"  hint: {obstacle.mend}"))
    if report.obstacles:
        typer.echo(
            "  or move the files to /srv/finetuned/data; finetunectl submit packs what the service's user cannot read"
        )
    if report.ok:
        typer.echo(printable(f"{report.source}: no problems"))
