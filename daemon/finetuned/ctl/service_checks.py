"""What `doctor` looks at of the system service: its unit, what stages run as, the watchdog, the provisioning."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from finetuned.ctl.facts import Check

_SYSTEMCTL_SECONDS = 10
_ASKED = ("LoadState", "ActiveState", "Result", "StatusText", "ExecStart", "WatchdogUSec", "NRestarts")
_PROVISIONED = Path("var/lib/finetuned/provision")


def check_service(root: Path = Path("/"), systemctl: Sequence[str] = ("systemctl",)) -> Iterator[Check]:
    """Nothing where systemd does not run or no unit is installed: then the daemon is run by hand."""
    if not (root / "run/systemd/system").is_dir():
        return
    said = _ask(systemctl)
    if said.get("LoadState") == "loaded":
        yield _unit(said)
        yield _launcher(said)
    yield from _provisioned(root / _PROVISIONED)


def _ask(systemctl: Sequence[str]) -> dict[str, str]:
    command = [*systemctl, "show", "finetuned.service", f"--property={','.join(_ASKED)}"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_SYSTEMCTL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return dict(line.split("=", 1) for line in answer.stdout.splitlines() if "=" in line)


def _unit(said: dict[str, str]) -> Check:
    active = said.get("ActiveState", "unknown")
    if active == "failed":
        hint = "journalctl -u finetuned -n 50"
        return Check(name="unit", state="fail", what=f"finetuned.service failed ({said.get('Result')})", hint=hint)
    if active != "active":
        hint = "sudo systemctl start finetuned; journalctl -u finetuned says why it does not run"
        return Check(name="unit", state="warn", what=f"finetuned.service is {active}", hint=hint)
    status = f": {said['StatusText']}" if said.get("StatusText") else ""
    restarts = said.get("NRestarts", "0")
    if restarts != "0":
        hint = "journalctl -u finetuned says what ended it"
        what = f"finetuned.service is active, restarted {restarts} times by systemd{status}"
        return Check(name="unit", state="warn", what=what, hint=hint)
    return Check(name="unit", state="ok", what=f"finetuned.service is active{status}")


def _launcher(said: dict[str, str]) -> Check:
    if "--launcher units" not in said.get("ExecStart", ""):
        hint = "put --launcher units into ExecStart= of finetuned.service"
        what = "stages are children of the service: stopping it ends them"
        return Check(name="launcher", state="warn", what=what, hint=hint)
    watched = said.get("WatchdogUSec", "0")
    if watched in ("0", "infinity"):
        hint = "set WatchdogSec=60 in finetuned.service"
        what = "stages are units of their own; nobody notices a daemon that hangs"
        return Check(name="launcher", state="warn", what=what, hint=hint)
    return Check(
        name="launcher", state="ok", what=f"stages are units of their own; a silent daemon ends after {watched}"
    )


def _provisioned(folder: Path) -> Iterator[Check]:
    """Nothing on a machine that was installed by hand, or where only root may look."""
    try:
        stamps = {path.name for path in folder.iterdir()}
        done = json.loads((folder / "done").read_text()) if "done" in stamps else None
    except (OSError, ValueError):
        return
    if done is None:
        hint = "journalctl -u finetuned-provision -n 50; sudo finetuned-provision --check says what is missing"
        yield Check(name="provision", state="warn", what="provisioning has not finished", hint=hint)
    else:
        release = done.get("release", "") if isinstance(done, dict) else ""
        yield Check(name="provision", state="ok", what=f"provisioned {release}".strip())
