"""`doctor`: is this machine, and this spool, fit to train? Each check says what it found and what to do."""

import itertools
from pathlib import Path

import typer

from finetuned.core.record import Record
from finetuned.ctl.arguments import AsJson
from finetuned.ctl.exits import ExitCode
from finetuned.ctl.facts import Check
from finetuned.ctl.jobs import chosen_path
from finetuned.ctl.machine_checks import check_machine
from finetuned.ctl.service_checks import check_service
from finetuned.ctl.spool_checks import check_spool
from finetuned.ctl.words import print_json, printable, say


class Examination(Record):
    """`finetunectl doctor --json`."""

    ok: bool
    """Nothing failed; warnings may stand."""
    checks: tuple[Check, ...]


def doctor(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Look at the machine and the spool, and say what is wrong; exit 1 when something is."""
    path = chosen_path(ctx)
    place = path if path.is_dir() else Path("/")
    checks = []
    for check in itertools.chain(check_spool(path), check_machine(place), check_service()):
        checks.append(check)
        if not as_json:
            first, *more = check.what.splitlines() or [""]
            typer.echo(printable(f"{check.state:<4}  {check.name:<16}  {first}"))
            for line in more:
                typer.echo(printable(f"{'':<24}{line.strip()}"))
            if check.hint:
                typer.echo(printable(f"{'':<24}hint: {check.hint}"))
    found = Examination(ok=not any(check.state == "fail" for check in checks), checks=tuple(checks))
    if as_json:
        print_json(found)
    if not found.ok:
        failed = sum(check.state == "fail" for check in checks)
        say(f"{failed} of {len(checks)} checks failed")
        raise typer.Exit(ExitCode.BAD_NEWS)
