"""The release itself, by the installer of its bundle; and the gate that keeps the daemon off until all is well."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .hardware import find_gpus
from .machine import Machine, ProvisionFailed
from .scratch import SPOOL
from .settings import Settings
from .stages import STAMPS, Stamps

BUNDLE = Path(__file__).resolve().parents[2]
"""This file lies in BUNDLE/cloud-init/provision/."""
GATE = "/etc/systemd/system/finetuned.service.d/10-provisioned.conf"
GATE_TEXT = f"""# No job before the machine is whole. Written by finetuned-provision.
[Unit]
ConditionPathExists={STAMPS}/done
"""
CURRENT = "/opt/finetuned/current"


@dataclass(frozen=True)
class Software:
    machine: Machine
    settings: Settings
    bundle: Path = BUNDLE
    name: str = "software"

    def missing(self) -> list[str]:
        problems = [] if self.machine.read(GATE) == self.gate() else [f"{GATE} to write"]
        if self.installed() is None:
            problems.append(f"release {self.settings.version} to install")
        elif not self.was_installed_once():
            checked = self.machine.ask(self.installer(), "--check", *self.options(), timeout_seconds=300)
            if checked.status != 0:
                last = (checked.output.strip().splitlines() or ["no word"])[-1]
                problems.append(f"release {self.settings.version} to install: {last}")
        return problems

    def act(self) -> None:
        if self.machine.read(GATE) != self.gate():
            self.machine.write(GATE, self.gate())
            self.machine.do("systemctl", "daemon-reload")
        self.machine.do(self.installer(), *self.options())

    def gate(self) -> str:
        """With a disk for the spool, also no daemon on the empty folder below its mount point."""
        return GATE_TEXT + (f"ConditionPathIsMountPoint={SPOOL}\n" if self.settings.spool_disk else "")

    def installer(self) -> str:
        program = self.bundle / "deploy" / "install"
        if not program.is_file():
            raise ProvisionFailed(f"{program} is not there", "build the bundle with deploy/build")
        return str(program)

    def versions(self) -> dict[str, Any]:
        return {"release": self.installed()}

    def options(self) -> list[str]:
        settings = self.settings
        given = {
            "--python": settings.python,
            "--wheelhouse": settings.wheelhouse,
            "--worker-site": settings.worker_site,
        }
        options = [word for option, value in given.items() if value for word in (option, value)]
        if not (find_gpus(self.machine) or settings.gpu == "required") or settings.gpu == "none":
            options.append("--cpu")
        for user in settings.users or self.people():
            options += ["--user", user]
        return options if self.machine.root == Path("/") else [*options, "--root", str(self.machine.root)]

    def people(self) -> list[str]:
        """Accounts that persons log in to, as Debian numbers them."""
        rows = (line.split(":") for line in self.machine.read("/etc/passwd").splitlines())
        return [row[0] for row in rows if len(row) == 7 and 1000 <= int(row[2]) < 60000]

    def installed(self) -> str | None:
        """The release that `current` points to, if its environments are there."""
        current = self.machine.path(CURRENT)
        whole = all((current / part / "bin" / "python").exists() for part in ("daemon", "worker"))
        return os.path.basename(os.readlink(current)) if whole and current.is_symlink() else None

    def was_installed_once(self) -> bool:
        """Then whatever is there now, another release too, is what somebody wanted."""
        return Stamps(self.machine, self.settings.version).read("software.json").get("release") == self.settings.version
