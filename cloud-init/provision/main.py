"""finetuned-provision: stages in order, each stamped; a reboot in between if need be; loud when it fails.

Exit status: 0 whole or rebooting, 1 failed (or, with --check, something is missing), 3 an image needs a reboot first.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from . import apt
from .driver_stage import Driver
from .fabric import Fabric
from .holds import Holds
from .machine import Machine, ProvisionFailed
from .preflight import Preflight
from .scratch import Scratch
from .settings import Settings, read_settings
from .software import BUNDLE, Software
from .stages import STAMPS, NeedsReboot, Stage, Stamps, carry_out, reboot, what_is_missing
from .verify import Verify, open_for_work

OK, FAILED, REBOOT_FIRST = 0, 1, 3


def stages_for(machine: Machine, settings: Settings, bundle: Path = BUNDLE) -> list[Stage]:
    """Driver before release: what the GPU needs may need a reboot, and nothing has to be made twice."""
    return [
        Preflight(machine, settings),
        apt.Apt(machine, settings),
        Driver(machine, settings),
        Fabric(machine, settings),
        Holds(machine, settings),
        Scratch(machine, settings),
        Software(machine, settings, bundle),
        Verify(machine, settings),
    ]


def provision(machine: Machine, settings: Settings, bundle: Path = BUNDLE) -> int:
    """Raises ProvisionFailed, with failure.json written."""
    stamps = Stamps(machine, settings.version)
    # That of an earlier try would be told as the reason of one that is killed.
    machine.path(f"{STAMPS}/failure.json").unlink(missing_ok=True)
    timers: list[str] = []
    name = "start"
    try:
        timers = apt.quiet_timers(machine)
        for stage in stages_for(machine, settings, bundle):
            name = stage.name
            carry_out(stage, stamps)
        name = "start"
        if not machine.baking and not stamps.read("done"):
            open_for_work(machine, settings, stamps)
    except NeedsReboot as need:
        if machine.baking:
            print(f"reboot this machine and run finetuned-provision --bake again: {need}", flush=True)
            return REBOOT_FIRST
        try:
            reboot(machine, stamps, str(need))
        except ProvisionFailed as failed:
            record(stamps, name, failed)
            raise
        return OK
    except ProvisionFailed as failed:
        apt.restart_timers(machine, timers)
        record(stamps, name, failed)
        raise
    apt.restart_timers(machine, timers)
    tell_the_end(machine, stamps)
    return OK


def record(stamps: Stamps, stage: str, failed: ProvisionFailed) -> None:
    stamps.write("failure.json", {"stage": stage, "reason": str(failed), "hint": failed.hint})


def tell_the_end(machine: Machine, stamps: Stamps) -> None:
    if machine.baking:
        forget(machine)
        print("baked: the stamps are gone; now `cloud-init clean --logs --machine-id`, and take the image", flush=True)
        return
    done = stamps.read("done")
    gpus = done.get("gpus", [])
    what = f"driver {done['driver']}, {', '.join(gpus)}" if gpus else "CPU only"
    print(
        f"provisioned: release {stamps.release} on {done.get('system')}, kernel {done.get('kernel')}; {what}",
        flush=True,
    )


def forget(machine: Machine) -> None:
    """What an image must not carry into its instances: they prove for themselves that they are whole."""
    places = machine.path(STAMPS)
    for stamp in places.iterdir() if places.is_dir() else ():
        stamp.unlink()
    machine.path("/var/lib/systemd/credential.secret").unlink(missing_ok=True)


def check(machine: Machine, settings: Settings, bundle: Path = BUNDLE) -> int:
    found = what_is_missing(stages_for(machine, settings, bundle))
    for stage, missing in found.items():
        for problem in missing:
            print(f"missing  {stage:<10} {problem}")
    if not found and not machine.baking and not Stamps(machine, settings.version).read("done"):
        found = {"start": ["not stamped as done"]}
        print("missing  start      the stamp `done`, which lets the daemon start")
    if not found:
        print(f"whole: release {settings.version}")
    return FAILED if found else OK


def mount_scratch(machine: Machine, settings: Settings) -> int:
    """At each boot, before the daemon: local disks come back empty, and the spool's has to be there."""
    stage = Scratch(machine, settings)
    if stage.missing():
        stage.act()
    return OK


def fail_loudly(root: Path) -> int:
    """The program that came with the user-data does it, also where this one never arrived: one way to fail."""
    program = BUNDLE / "cloud-init" / "finetuned-bootstrap"
    os.execv(program, [str(program), "--failed", "--root", str(root)])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="finetuned-provision", description=__doc__)
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--check", action="store_true", help="print what is missing and change nothing; exit 1 if anything is"
    )
    what.add_argument("--scratch", action="store_true", help="only find and mount the disks, as at each boot")
    what.add_argument("--failed", action="store_true", help="tell everybody that it failed, wait, stop paying")
    what.add_argument("--bake", action="store_true", help="for an image: leave out what belongs to one instance")
    what.add_argument("--settings", action="store_true", help="print the settings in force")
    parser.add_argument("--root", type=Path, default=Path("/"), help="another root directory (for tests)")
    asked = parser.parse_args(arguments)
    if asked.failed:
        return fail_loudly(asked.root)
    machine = Machine(asked.root, baking=asked.bake)
    try:
        if os.geteuid() != 0 and asked.root == Path("/"):
            raise ProvisionFailed("only root can see and do all of this", "sudo finetuned-provision")
        settings = read_settings(machine)
        if asked.settings:
            print("\n".join(f"{name}: {value}" for name, value in asdict(settings).items()))
            return OK
        if asked.check:
            return check(machine, settings)
        return mount_scratch(machine, settings) if asked.scratch else provision(machine, settings)
    except ProvisionFailed as failed:
        print(f"FAILED: {failed}{f'. hint: {failed.hint}' if failed.hint else ''}", file=sys.stderr, flush=True)
        return FAILED
