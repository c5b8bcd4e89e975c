"""`finetuned run`: puts the daemon's parts together, takes turns until told to stop, and leaves stages running."""

import argparse
import logging
import os
import signal
import sys
from pathlib import Path

from finetuned import __version__
from finetuned.core.retry import Limits
from finetuned.host.claim import Arrivals
from finetuned.host.launch import ChildLauncher
from finetuned.host.settings import InvalidSettings, Settings, config_directory, default_spool, read_settings
from finetuned.host.spool import Spool, SpoolUnusable
from finetuned.host.unitlauncher import UnitLauncher
from finetuned.service.turn import turn
from finetuned.service.watch import Doorbell
from finetuned.service.world import DiskWorld

_log = logging.getLogger(__name__)

EXIT_SPOOL_UNUSABLE = 69  # EX_UNAVAILABLE of sysexits.h
EXIT_BAD_SETTINGS = 78  # EX_CONFIG


def main() -> None:
    arguments = _parse_arguments()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    os.environ["FINETUNED_CONFIG"] = str(arguments.config.absolute())  # Stages read the same settings.
    try:
        settings = read_settings(arguments.config)
        spool = Spool(arguments.spool.absolute())
        spool.create()
        lock = spool.take_daemon_lock()
    except InvalidSettings as error:
        sys.exit(_refuse(str(error), EXIT_BAD_SETTINGS))
    except (SpoolUnusable, OSError) as error:
        sys.exit(_refuse(str(error), EXIT_SPOOL_UNUSABLE))
    run(spool, settings, arguments.launcher)
    del lock  # Held until here: one daemon a spool.


def run(spool: Spool, settings: Settings, launcher: str = "children") -> None:
    """Take turns until SIGTERM or SIGINT. Stages go on by themselves; the next daemon finds them."""
    doorbell = Doorbell(spool.incoming, spool.requests)
    stopping: list[str] = []

    def stop(number: int, _frame: object) -> None:
        stopping.append(signal.Signals(number).name)
        doorbell.ring()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    arrivals = Arrivals(spool, settings, doorbell.arrived_by_rename)
    chosen = UnitLauncher() if launcher == "units" else ChildLauncher(settings)
    world = DiskWorld(spool, settings, chosen, arrivals)
    limits = Limits(patience_seconds=settings.network_retry_minutes * 60)
    _log.info("finetuned %s works on %s with %s", __version__, spool.path, ", ".join(world.devices()) or "no device")
    said_problem = None
    while not stopping:
        if doorbell.problem != said_problem:
            said_problem = doorbell.problem
            _log.warning("%s", said_problem)
        try:
            turn(world, limits)
        except Exception:
            _log.exception("this turn failed; the next one begins from the disk")
        if not stopping:
            doorbell.wait(0 if arrivals.has_more else settings.turn_seconds)
    doorbell.close()
    _log.info("%s: leaving; what runs goes on, and the next daemon finds it", stopping[0])


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="finetuned", description="The daemon that fine-tunes. See also: finetunectl.")
    parser.add_argument("--version", action="version", version=f"finetuned {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run", help="watch a spool and carry out the jobs dropped there, in the foreground")
    runs.add_argument("--spool", type=Path, default=default_spool(), help="the spool directory (default: %(default)s)")
    runs.add_argument(
        "--launcher",
        choices=("children", "units"),
        default="children",
        help="what stages run as: processes of their own, or systemd's units (default: %(default)s)",
    )
    runs.add_argument(
        "--config", type=Path, default=config_directory(), help="where finetuned.yaml is (default: %(default)s)"
    )
    return parser.parse_args()


def _refuse(why: str, status: int) -> int:
    print(f"finetuned: {why}", file=sys.stderr)
    return status
