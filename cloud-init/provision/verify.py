"""The last look: what a job will need, tried. `nvidia-smi` is not asked, for it works where CUDA does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .driver import Probe, ask_driver
from .hardware import find_gpus
from .machine import Machine, ProvisionFailed
from .settings import Settings
from .stages import STAMPS, Stamps

DAEMON = "finetuned.service"
CTL = "/usr/local/bin/finetunectl"
TRIES, PAUSE_SECONDS = 12, 5
"""The daemon's first turn, and device nodes that come late: a minute in all."""


@dataclass(frozen=True)
class Verify:
    machine: Machine
    settings: Settings
    name: str = "verify"

    def missing(self) -> list[str]:
        if self.machine.baking or self.settings.gpu == "none":
            return []
        gpus = find_gpus(self.machine)
        probe = ask_driver(self.machine) if gpus else None
        if probe and (probe.cuda != 0 or probe.cuda_devices < len(gpus)):
            return [f"a CUDA context on {len(gpus)} GPUs: CUDA says {probe.cuda}, and has {probe.cuda_devices}"]
        return []

    def act(self) -> None:
        for _ in range(TRIES):
            if not self.missing():
                return
            self.machine.sleep(PAUSE_SECONDS)

    def versions(self) -> dict[str, Any]:
        probe = ask_driver(self.machine) if find_gpus(self.machine) and self.settings.gpu != "none" else Probe()
        driver = {"driver": probe.driver} if probe.driver else {}
        return {"gpus": list(probe.gpus), **driver, "mode": "gpu" if probe.gpus else "cpu-only"}


def open_for_work(machine: Machine, settings: Settings, stamps: Stamps) -> None:
    """The stamp that lets the daemon start, the start, and the doctor's word; the stamp goes again if that is bad."""
    verified = stamps.read("verify.json").get("versions", {})
    stamps.write(
        "done", {"system": str(machine.system), "kernel": machine.kernel, "reboots": stamps.reboots, **verified}
    )
    try:
        machine.do("systemctl", "start", DAEMON)
        for _ in range(TRIES):
            doctor = machine.ask(str(machine.path(CTL)), "doctor")
            if doctor.status == 0:
                return
            machine.sleep(PAUSE_SECONDS)
        raise ProvisionFailed(f"finetunectl doctor: {' / '.join(doctor.output.strip().splitlines()[-12:])}")
    except ProvisionFailed:
        machine.path(f"{STAMPS}/done").unlink()
        machine.ask("systemctl", "stop", DAEMON)
        raise
