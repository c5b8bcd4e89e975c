"""finetunectl: the verbs, and the edge where whatever goes wrong becomes one sentence."""

import itertools
import os
import signal
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from finetuned.ctl.about import version
from finetuned.ctl.exits import EPILOG, ExitCode, Sorry
from finetuned.ctl.words import did_you_mean, say

_VERBS = {
    "check": "check.check",
    "preview": "preview.preview",
    "submit": "submit.submit",
    "import": "import_.import_",
    "list": "show.list_jobs",
    "status": "show.status",
    "logs": "follow.logs",
    "events": "follow.job_events",
    "cancel": "wishes.cancel",
    "hold": "wishes.hold",
    "release": "wishes.release",
    "resume": "wishes.resume",
    "resubmit": "submit.resubmit",
    "get": "get.get",
    "prune": "prune.prune",
    "doctor": "doctor.doctor",
    "schema": "about.schema",
    "version": "about.version",
}
"""Verb → module and function. Imported when used: a verb starts in half the time that all of them together take."""

_OTHER_WORDS = {
    "list": "ls ps queue jobs",
    "status": "show info stat",
    "logs": "log tail",
    "cancel": "kill stop abort rm remove",
    "hold": "pause suspend",
    "release": "unpause continue unhold",
    "resume": "restart retry",
    "resubmit": "rerun",
    "submit": "run add start train",
    "check": "validate lint",
    "preview": "look peek sample",
    "import": "convert translate migrate",
    "get": "download fetch cp",
    "prune": "clean delete gc",
}


class Verbs(TyperGroup):
    """Takes --spool anywhere on the line, and tells what a mistyped verb was probably meant to be."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _VERBS:
            return None
        module, function = _VERBS[cmd_name].split(".")
        alone = _typer(add_completion=False)
        alone.command(cmd_name)(getattr(import_module(f"finetuned.ctl.{module}"), function))
        return typer.main.get_command(alone)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _spool_first(args))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        verb = args[0]
        if verb not in _VERBS and not verb.startswith("-") and not ctx.resilient_parsing:
            meant = next((ours for ours, others in _OTHER_WORDS.items() if verb in others.split()), verb)
            ctx.fail(f"no such command '{verb}'{did_you_mean(meant, _VERBS)}")
        return super().resolve_command(ctx, args)


def _typer(**more: Any) -> typer.Typer:
    settings = {"help_option_names": ["-h", "--help"]}
    return typer.Typer(pretty_exceptions_enable=False, context_settings=settings, **more)


def _spool_first(args: list[str]) -> list[str]:
    """`list --spool PATH` as `--spool PATH list`."""
    first: list[str] = []
    rest: list[str] = []
    words = iter(args)
    for word in words:
        if word == "--":
            rest += [word, *words]
        elif word == "--spool":
            first += [word, *itertools.islice(words, 1)]
        elif word.startswith("--spool="):
            first.append(word)
        else:
            rest.append(word)
    return first + rest


app = _typer(cls=Verbs, no_args_is_help=True, epilog=EPILOG)


def _print_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


@app.callback()
def finetunectl(
    spool: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            readable=False,  # Looked at where it is used, which knows what to do about it.
            help="The spool directory; else FINETUNED_SPOOL, /var/spool/finetuned, ~/.local/state/finetuned.",
        ),
    ] = None,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Hand jobs to finetuned, look at them, and get models back. JOB is any unambiguous part of an id or name."""


def main() -> None:
    # A closed pipe (| head) ends us as it ends cat: quietly.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # As it is where the shell has closed it: >&-
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        app(prog_name="finetunectl")
    except Sorry as sorry:
        say(f"finetunectl: {sorry}" + (f"\n  hint: {sorry.hint}" if sorry.hint else ""))
        sys.exit(sorry.code)
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
    except OSError as error:
        sys.exit(_tell_system_error(error))
    except Exception as error:
        sys.exit(_tell_our_mistake(error))


def _tell_system_error(error: OSError) -> ExitCode:
    _show_traceback_if_asked()
    say(f"finetunectl: {error.filename or 'the system'}: {error.strerror or error}")
    if isinstance(error, PermissionError):
        say("  hint: if that is the spool, its group may use it: sudo usermod -aG finetuned $USER, then log in again")
    return ExitCode.UNUSABLE


def _tell_our_mistake(error: Exception) -> ExitCode:
    """The one broad answer: a mistake of this program, said in a sentence."""
    if not _show_traceback_if_asked():
        said = (str(error).strip().splitlines() or [""])[0][:300]
        say(f"finetunectl: this should not happen: {type(error).__name__}: {said}")
        say("  hint: FINETUNED_DEBUG=1 finetunectl ... shows the traceback, which a bug report needs")
    return ExitCode.OUR_MISTAKE


def _show_traceback_if_asked() -> bool:
    if not os.environ.get("FINETUNED_DEBUG"):
        return False
    traceback.print_exc()
    return True
