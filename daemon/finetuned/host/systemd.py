"""What the service manager and its journal are told, through systemd-python; nothing is where either is missing."""

import contextlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from finetuned.core.messages import Severity, Told
from finetuned.core.redaction import redacted, secrets_of

_PRIORITIES = {
    logging.CRITICAL: Severity.ERROR,
    logging.ERROR: Severity.ERROR,
    logging.WARNING: Severity.WARNING,
}
_CREDENTIAL_BYTES = 1 << 20


def notify(*lines: str) -> None:
    """Tell the supervisor; it may be systemd, or the shim of a stage, or nobody."""
    if not os.environ.get("NOTIFY_SOCKET"):
        return
    try:
        from systemd import daemon
    except ImportError:
        return
    with contextlib.suppress(OSError):  # It has gone: what runs goes on.
        daemon.notify("\n".join(lines))


def reloading() -> None:
    """A reload has begun; `notify("READY=1")` ends it."""
    notify("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")


def watchdog_seconds() -> float | None:
    """Within which this process must say WATCHDOG=1; None where nobody watches it."""
    try:
        microseconds = int(os.environ.get("WATCHDOG_USEC", ""))
    except ValueError:
        return None
    return microseconds / 1e6 if os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid()) else None


class SystemJournal:
    """The system's journal, to which nothing goes but the fields that are named here, without secrets.

    systemd-python's own logging handler sends every attribute of a record, arguments included.
    """

    def __init__(self, send: Callable[..., object], identifier: str, secrets: frozenset[str] = frozenset()):
        self._send, self._identifier, self._secrets = send, identifier, secrets

    @classmethod
    def open(cls, identifier: str) -> "SystemJournal | None":
        """The journal that our stderr goes to; None where it goes elsewhere, or systemd-python is not installed.

        `identifier`: the name before each line of `journalctl`.
        """
        if not _is_journal(2):
            return None
        try:
            from systemd import journal
        except ImportError:
            return None
        return cls(journal.send, identifier, credentials())

    def tell(self, told: Told, job: str = "") -> None:
        self.write(told.text, told.severity, told.fields(job))

    def write(self, text: str, severity: Severity, fields: dict[str, str] | None = None) -> None:
        clean = {name: redacted(value, self._secrets) for name, value in (fields or {}).items()}
        with contextlib.suppress(OSError):  # A journal that is full or restarting must not stop anything.
            self._send(
                redacted(text, self._secrets),
                PRIORITY=str(severity.value),
                SYSLOG_IDENTIFIER=self._identifier,
                **clean,
            )


class JournalHandler(logging.Handler):
    """Log lines of the daemon; one about a job has its `Told` and the job's id in the record."""

    def __init__(self, journal: SystemJournal):
        super().__init__()
        self._journal = journal

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)  # The message, and the traceback where there is one.
        told: Told | None = getattr(record, "told", None)
        fields = told.fields(getattr(record, "job", "")) if told is not None else {}
        self._journal.write(text, _PRIORITIES.get(record.levelno, Severity.INFO), fields)


def credentials() -> frozenset[str]:
    """What must never be written: the contents of the files in $CREDENTIALS_DIRECTORY."""
    found: set[str] = set()
    folder = os.environ.get("CREDENTIALS_DIRECTORY", "")
    if not folder:
        return frozenset()
    with contextlib.suppress(OSError):
        for path in sorted(Path(folder).iterdir()):
            with contextlib.suppress(OSError):
                found |= secrets_of(path.read_bytes()[:_CREDENTIAL_BYTES].decode(errors="replace"))
    return frozenset(found)


def _is_journal(descriptor: int) -> bool:
    """Whether it is the very stream that systemd connected to the journal; the variable alone may be inherited."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"
