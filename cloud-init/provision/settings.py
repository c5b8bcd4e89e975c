"""/etc/finetuned/provision.json: what the user-data asked of this machine. It holds no secret."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields

from .machine import Machine, ProvisionFailed

PLACE = "/etc/finetuned/provision.json"


@dataclass(frozen=True)
class Settings:
    version: str
    """Of the release to install."""
    bundle: str = ""
    sha256: str = ""
    """Both are finetuned-bootstrap's; an image is baked from a bundle that is there already."""
    python: str | None = None
    """The interpreter of both environments; the system's own by default."""
    wheelhouse: str | None = None
    worker_site: str | None = None
    """A site directory that already holds torch and friends (a baked image)."""
    spool_disk: str | None = None
    """A block device for the spool; formatted once if blank, kept for ever after."""
    scratch_disks: tuple[str, ...] = ()
    """Globs of devices that this machine may wipe, beside those known by their model."""
    hook: str = "none"
    webhook: str | None = None
    grace_minutes: float = 15
    users: tuple[str, ...] = ()
    """Accounts for the finetuned group; empty: all accounts of people."""
    gpu: str = "auto"
    """auto: CPU-only where no GPU is on the bus; required: that is a failure; none: GPUs are let be."""
    driver_branch: int = 580
    driver_too_old: str = "fail"
    """fail, or upgrade: what becomes of a driver below the floor."""
    nvidia_repository: str = "https://developer.download.nvidia.com/compute/cuda/repos"


CHOICES = {"gpu": ("auto", "required", "none"), "driver_too_old": ("fail", "upgrade")}


def read_settings(machine: Machine) -> Settings:
    """Raises ProvisionFailed with every problem at once."""
    text = machine.read(PLACE)
    if not text:
        raise ProvisionFailed(
            f"{PLACE} is not there", "cloud-init writes it from a user-data made by cloud-init/render"
        )
    try:
        given = json.loads(text)
        if not isinstance(given, dict):
            raise ValueError("it is no object")
    except ValueError as error:
        raise ProvisionFailed(f"{PLACE} is not valid JSON: {error}") from error
    known = {field.name for field in fields(Settings)}
    problems = [f"{name} is not a known field" for name in sorted(given.keys() - known - {"format"})]
    problems += [
        f"{name} is {given[name]!r}; expected {', '.join(choices)}"
        for name, choices in CHOICES.items()
        if name in given and given[name] not in choices
    ]
    if not isinstance(given.get("version"), str):
        problems.append("version is missing")
    if not isinstance(given.get("driver_branch", 580), int):
        problems.append(f"driver_branch is {given['driver_branch']!r}; expected a number like 580")
    if problems:
        raise ProvisionFailed(f"{PLACE}: {'; '.join(problems)}")
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items() if name in known}
    return Settings(**given)
