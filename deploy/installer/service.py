"""The daemon's unit and those of the stages: asked, restarted, and held to what a healthy release shows."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from installer.places import Places
from installer.programs import Programs

UNIT = "finetuned.service"
SOCKET = "finetuned-launch.socket"

_STAGE = re.compile(r"finetuned-(?:prepare|rehearse|train|deliver)@[a-z0-9-]+\.service")
_ALIVE = ("active", "activating", "deactivating", "reloading")
_LOOK_AGAIN_SECONDS = 0.5
_QUOTED_LINES = 5


@dataclass(frozen=True)
class Health:
    is_well: bool
    what: str
    """For people: what was found, or what is wrong."""


def show(programs: Programs) -> dict[str, str]:
    """What systemd says of the daemon's unit; empty when it does not answer."""
    wanted = "--property=ActiveState,Result,ConditionResult,NRestarts"
    answer = programs.attempt("systemctl", "show", UNIT, wanted, timeout=30)
    return dict(line.partition("=")[::2] for line in answer.stdout.splitlines() if "=" in line)


def is_active(programs: Programs) -> bool:
    return show(programs).get("ActiveState") == "active"


def is_held_back(said: dict[str, str]) -> bool:
    """A condition keeps it from starting: a machine that is still being provisioned."""
    return said.get("ActiveState") == "inactive" and said.get("ConditionResult") == "no"


def is_enabled(programs: Programs, unit: str) -> bool:
    return programs.attempt("systemctl", "is-enabled", unit, timeout=30).stdout.strip() == "enabled"


def restart_and_prove(programs: Programs, places: Places, seconds: float) -> Health:
    """Restart the daemon, never a stage; healthy is: ready, and `finetunectl doctor` finds nothing, in time.

    What is wrong ends with what the journal says of it since.
    """
    since = time.time()
    health = _restart_and_prove(programs, places, seconds)
    lines = [] if health.is_well else _journal_since(programs, since)
    return Health(False, "\n    ".join([f"{health.what}\nits journal:", *lines])) if lines else health


def _restart_and_prove(programs: Programs, places: Places, seconds: float) -> Health:
    deadline = time.monotonic() + seconds
    programs.attempt("systemctl", "reset-failed", UNIT, timeout=30)
    asked = programs.attempt("systemctl", "restart", UNIT, timeout=seconds)
    said = show(programs)
    if asked.returncode == 0 and is_held_back(said):
        return Health(True, "not started: a condition of the unit holds it back, as on a machine being provisioned")
    while said.get("ActiveState") != "active":
        if said.get("ActiveState") == "failed" or time.monotonic() >= deadline:
            state = f"{said.get('ActiveState', 'unknown')} ({said.get('Result', 'no result')})"
            told = f": {asked.stderr.strip().splitlines()[-1]}" if asked.stderr.strip() else ""
            return Health(False, f"{UNIT} is {state} and not ready after {seconds:.0f} s at most{told}")
        time.sleep(_LOOK_AGAIN_SECONDS)
        said = show(programs)
    return _prove(programs, places, deadline, said.get("NRestarts"))


def _prove(programs: Programs, places: Places, deadline: float, restarts: str | None) -> Health:
    """The doctor's word, and that the daemon did not die while it was asked."""
    env = {"FINETUNED_SPOOL": str(places.spool), "FINETUNED_CONFIG": str(places.settings)}
    doctor = places.current / "daemon/bin/finetunectl"
    while True:
        left = max(1.0, deadline - time.monotonic())
        answer = programs.attempt(doctor, "doctor", env=env, timeout=left)
        said = show(programs)
        is_steady = said.get("ActiveState") == "active" and said.get("NRestarts") == restarts
        if answer.returncode == 0 and is_steady:
            return Health(True, f"{UNIT} is ready, and finetunectl doctor finds nothing wrong")
        if time.monotonic() >= deadline:
            break
        restarts = said.get("NRestarts")
        time.sleep(_LOOK_AGAIN_SECONDS)
    if answer.returncode == 0:
        return Health(False, f"{UNIT} does not stay up: {said.get('ActiveState')}, restarted {restarts} times")
    complaints = [line for line in answer.stdout.splitlines() if line.startswith("fail")]
    return Health(
        False, "\n    ".join(["finetunectl doctor complains:", *(complaints or [answer.stderr.strip()[-500:]])])
    )


def _journal_since(programs: Programs, since: float) -> list[str]:
    """The daemon's last words; where it had none, those of systemd about it."""
    programs.attempt("journalctl", "--sync", timeout=10)
    for match in (f"_SYSTEMD_UNIT={UNIT}", f"--unit={UNIT}"):
        options = (f"--since=@{since:.3f}", f"--lines={_QUOTED_LINES}", "--output=cat", "--quiet", "--no-pager")
        if lines := programs.attempt("journalctl", *options, match, timeout=30).stdout.strip().splitlines():
            return lines
    return []


def living_stages(programs: Programs) -> list[str]:
    """The units of stages that live, whoever started them. Raises Trouble when systemd does not say."""
    listed = programs.run(
        "systemctl", "list-units", "--all", "--full", "--plain", "--no-legend", "finetuned-*@*.service"
    )
    rows = [line.split() for line in listed.splitlines()]
    return [row[0] for row in rows if len(row) > 3 and _STAGE.fullmatch(row[0]) and row[2] in _ALIVE]
