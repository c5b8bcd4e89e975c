"""`finetuned run`: puts the daemon's parts together, takes turns until told to stop, and leaves stages running."""

import argparse
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from finetuned import __version__
from finetuned.core.retry import Limits
from finetuned.host import systemd
from finetuned.host.claim import Arrivals
from finetuned.host.launch import ChildLauncher
from finetuned.host.settings import InvalidSettings, Settings, config_directory, default_spool, read_settings
from finetuned.host.spool import Spool, SpoolUnusable
from finetuned.host.unitlauncher import UnitLauncher
from finetuned.service.readiness import Readiness, longest_pause
from finetuned.service.turn import turn
from finetuned.service.watch import Doorbell
from finetuned.service.world import DiskWorld

_log = logging.getLogger(__name__)

EXIT_UNAVAILABLE = 69  # EX_UNAVAILABLE of sysexits.h: no spool, or no systemd.
EXIT_BAD_SETTINGS = 78  # EX_CONFIG


def main() -> None:
    arguments = _parse_arguments()
    _set_up_logging()
    os.environ["FINETUNED_CONFIG"] = str(arguments.config.absolute())  # Stages read the same settings.
    try:
        settings = read_settings(arguments.config)
        spool = Spool(arguments.spool.absolute())
        spool.create()
        lock = spool.take_daemon_lock()
    except InvalidSettings as error:
        sys.exit(_refuse(str(error), EXIT_BAD_SETTINGS))
    except (SpoolUnusable, OSError) as error:
        sys.exit(_refuse(str(error), EXIT_UNAVAILABLE))
    if arguments.launcher == "units" and not UnitLauncher().is_answered():
        why = "systemd does not answer (systemctl show), and stages are its units; --launcher children needs none"
        sys.exit(_refuse(why, EXIT_UNAVAILABLE))
    run(Parts(spool, settings, arguments.launcher), lambda: read_settings(arguments.config))
    del lock  # Held until here: one daemon a spool.


class Parts:
    """The daemon's parts, put together for these settings; they remember nothing that a new set would miss."""

    def __init__(self, spool: Spool, settings: Settings, launcher: str, doorbell: Doorbell | None = None):
        self.spool, self.settings, self.launcher = spool, settings, launcher
        self.doorbell = doorbell or Doorbell(spool.incoming, spool.requests)
        self.arrivals = Arrivals(spool, settings, self.doorbell.arrived_by_rename)
        chosen = UnitLauncher() if launcher == "units" else ChildLauncher(settings)
        self.world = DiskWorld(spool, settings, chosen, self.arrivals)
        self.limits = Limits(patience_seconds=settings.network_retry_minutes * 60)

    def with_settings(self, settings: Settings) -> "Parts":
        return Parts(self.spool, settings, self.launcher, self.doorbell)

    @property
    def pause_seconds(self) -> float:
        return 0 if self.arrivals.has_more else longest_pause(self.settings.turn_seconds)


def run(parts: Parts, reread: Callable[[], Settings]) -> None:
    """Take turns until SIGTERM or SIGINT; SIGHUP reads the settings again. Stages go on by themselves."""
    doorbell, readiness = parts.doorbell, Readiness()
    asked = _Signals(doorbell)
    devices = ", ".join(parts.world.devices()) or "no device"
    _log.info("finetuned %s works on %s with %s", __version__, parts.spool.path, devices)
    said_problem = None
    while not asked.stopping:
        if doorbell.problem != said_problem:
            said_problem = doorbell.problem
            _log.warning("%s", said_problem)
        try:
            turn(parts.world, parts.limits)
            readiness.turn_completed(parts.world.status)
        except Exception:
            _log.exception("this turn failed; the next one begins from the disk")
        if asked.take_reload():
            parts = _reloaded(parts, reread)
        if not asked.stopping:
            doorbell.wait(parts.pause_seconds)
    readiness.leaving()
    doorbell.close()
    _log.info("%s: leaving; what runs goes on, and the next daemon finds it", asked.stopping)


class _Signals:
    """What was asked of the daemon by signals; each rings the doorbell."""

    def __init__(self, doorbell: Doorbell):
        self.stopping = ""
        """Name of the signal that asked to stop."""
        self._reload = False
        self._doorbell = doorbell
        numbers = [signal.SIGTERM, signal.SIGINT]
        if not sys.stderr.isatty():  # Whoever closes the terminal wants to end what runs in it.
            numbers.append(signal.SIGHUP)
        for number in numbers:
            signal.signal(number, self._receive)

    def take_reload(self) -> bool:
        """Whether a reload was asked for since the last call."""
        asked, self._reload = self._reload, False
        return asked

    def _receive(self, number: int, _frame: object) -> None:
        if number == signal.SIGHUP:
            self._reload = True
        else:
            self.stopping = self.stopping or signal.Signals(number).name
        self._doorbell.ring()


def _reloaded(parts: Parts, reread: Callable[[], Settings]) -> Parts:
    """The parts with the settings as they are now; as they were where the file cannot be used."""
    systemd.reloading()
    try:
        parts = parts.with_settings(reread())
        _log.info("the settings were read again")
    except (InvalidSettings, OSError) as error:
        _log.error("the settings stay as they were: %s", error)
    finally:
        systemd.notify("READY=1")
    return parts


def _set_up_logging() -> None:
    """To the system's journal with its fields where our stderr goes there, else to stderr."""
    journal = systemd.SystemJournal.open("finetuned")
    if journal is not None:
        logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[systemd.JournalHandler(journal)])
        return
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)


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
