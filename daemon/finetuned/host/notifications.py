"""The shim's side of the watchdog: a socket like systemd's, and what a stage has said on it about its silence.

Imported by the shim, which lives as long as a run: nothing heavy here.
"""

import contextlib
import os
import socket
import struct
from dataclasses import dataclass
from math import inf

_MESSAGE_BYTES = 4096
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid.


class NotifySocket:
    """Hears what one process says with sd_notify(3), and nobody else: any user may write to such a socket."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind("")  # The kernel chooses an abstract name, which no folder has to hold.

    @property
    def address(self) -> str:
        """For NOTIFY_SOCKET."""
        return "@" + os.fsdecode(self._socket.getsockname()[1:])

    def fileno(self) -> int:
        return self._socket.fileno()

    def hear(self, pid: int) -> list[str]:
        """All lines that the process has said since the last call."""
        lines = []
        with contextlib.suppress(BlockingIOError):
            while True:
                message, ancillary, _flags, _address = self._socket.recvmsg(
                    _MESSAGE_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size)
                )
                if _sender(ancillary) == pid:
                    lines += message.decode(errors="replace").splitlines()
        return lines


def _sender(ancillary: list[tuple[int, int, bytes]]) -> int | None:
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS and len(data) >= _CREDENTIALS.size:
            pid: int = _CREDENTIALS.unpack_from(data)[0]
            return pid
    return None


@dataclass
class Patience:
    """For how long the stage may be silent, by its own word. Moments are those of CLOCK_MONOTONIC, in seconds."""

    silence_seconds: float = inf
    sign_at: float = -inf
    """When it last said that it moves."""
    extended_until: float = -inf
    """Until when a stop may last that it has asked more time for."""

    @property
    def hangs_at(self) -> float:
        """When it will have been silent for too long; never for a stage that has announced nothing."""
        return inf if self.silence_seconds == inf else self.sign_at + self.silence_seconds

    def hear(self, lines: list[str], moment: float) -> None:
        for line in lines:
            name, _, value = line.partition("=")
            if name == "WATCHDOG" and value == "1":
                self.sign_at = moment
            elif name == "WATCHDOG_USEC" and value.isdecimal():
                self.silence_seconds, self.sign_at = int(value) / 1e6, moment
            elif name == "EXTEND_TIMEOUT_USEC" and value.isdecimal():
                self.extended_until = moment + int(value) / 1e6
