"""A stage checks, acts, checks again and stamps; they run in order, a reboot in between if need be."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Protocol

from .machine import Machine, ProvisionFailed

STAMPS = "/var/lib/finetuned/provision"
MAXIMUM_REBOOTS = 2


class NeedsReboot(Exception):
    """The stage goes on after a reboot; the message says what for."""


class Stage(Protocol):
    @property
    def name(self) -> str: ...

    def missing(self) -> list[str]:
        """What is not yet as it should be, in words. Changes nothing. Raises ProvisionFailed where nothing can help."""

    def act(self) -> None:
        """Supplies what is missing. Raises ProvisionFailed or NeedsReboot."""

    def versions(self) -> dict[str, Any]:
        """What the stamp should tell of the things this stage answers for."""


@dataclass(frozen=True)
class Stamps:
    machine: Machine
    release: str

    def read(self, name: str) -> dict[str, Any]:
        try:
            stamp: dict[str, Any] = json.loads(self.machine.read(f"{STAMPS}/{name}"))
        except ValueError:
            return {}
        return stamp

    def write(self, name: str, content: dict[str, Any]) -> None:
        at = datetime.now(timezone.utc).isoformat(timespec="seconds")  # noqa: UP017 (Python 3.9)
        stamp = {"format": 1, "at": at, "release": self.release, **content}
        self.machine.write(f"{STAMPS}/{name}", json.dumps(stamp, indent=1) + "\n")

    @property
    def reboots(self) -> int:
        text = self.machine.read(f"{STAMPS}/reboots").strip()
        return int(text) if text.isdigit() else 0


def carry_out(stage: Stage, stamps: Stamps) -> None:
    """Raises what the stage raises, and ProvisionFailed where acting did not help."""
    began = time.monotonic()
    missing = stage.missing()
    if missing:
        print(f"{stage.name}: {'; '.join(missing)}", flush=True)
        stage.act()
        still = stage.missing()
        if still:
            raise ProvisionFailed(f"after doing all it can: {'; '.join(still)}")
    if missing or stamps.read(f"{stage.name}.json").get("release") != stamps.release:
        seconds = round(time.monotonic() - began, 1)
        stamps.write(f"{stage.name}.json", {"seconds": seconds, "acted": missing, "versions": stage.versions()})
    print(f"{stage.name}: ok", flush=True)


def reboot(machine: Machine, stamps: Stamps, reason: str) -> None:
    """Counts it first, so that a machine which needs one for ever does not get one for ever."""
    if stamps.reboots >= MAXIMUM_REBOOTS:
        raise ProvisionFailed(
            f"rebooted {stamps.reboots} times already, and again it needs one: {reason}",
            f"look at the journal of the earlier boots; `rm {STAMPS}/reboots` allows {MAXIMUM_REBOOTS} more",
        )
    machine.write(f"{STAMPS}/reboots", f"{stamps.reboots + 1}\n")
    print(f"rebooting ({stamps.reboots} of {MAXIMUM_REBOOTS}): {reason}", flush=True)
    machine.do("systemctl", "reboot")


def what_is_missing(stages: Sequence[Stage]) -> dict[str, list[str]]:
    """By stage; one whose check cannot even be made is told with the rest."""
    found = {}
    for stage in stages:
        try:
            missing = stage.missing()
        except ProvisionFailed as failed:
            missing = [f"{failed}{f' ({failed.hint})' if failed.hint else ''}"]
        if missing:
            found[stage.name] = missing
    return found
