"""Reading units/: what the tests of systemd's files have in common."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

UNITS = Path(__file__).parents[1] / "units"
STAGES = ("prepare", "rehearse", "train", "deliver")
ON_THE_GPU = ("rehearse", "train")
ON_THE_NETWORK = ("prepare", "deliver")

NAMES = sorted(path.name for suffix in ("service", "socket", "slice") for path in UNITS.glob(f"*.{suffix}"))


@dataclass(frozen=True)
class Setting:
    """One line NAME=VALUE of a unit, and the section it stands in."""

    section: str
    name: str
    value: str


def settings_of(path: Path) -> list[Setting]:
    found, section = [], ""
    for line in path.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            name, value = line.split("=", 1)
            found.append(Setting(section, name, value))
    return found


def values(unit: str, name: str) -> list[str]:
    """What each line of that name says, in their order."""
    return [setting.value for setting in settings_of(UNITS / unit) if setting.name == name]


def words(unit: str, name: str) -> set[str]:
    """What all lines of that name list together."""
    return {word for value in values(unit, name) for word in value.split()}


def stage_unit(stage: str) -> str:
    return f"finetuned-{stage}@.service"


def require_program(name: str, package: str) -> str:
    """Its path. Skips the test where it is missing."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name}: install the Debian package {package}")
    return found
