"""Units and what belongs to them: which file of a release goes where on this machine, and putting it there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from installer.places import Places
from installer.writing import write_whole

_UNIT_KINDS = (".service", ".socket", ".slice", ".target", ".timer", ".path")
_LAUNCH_HELPER = ("finetuned-launch.socket", "finetuned-launch@.service")
_UNIT_NAME = re.compile(r"finetuned[a-z-]*@?\.(?:service|socket)")


@dataclass(frozen=True)
class Arrangement:
    """All files of a release outside its folder, on this machine with the credentials that it has now."""

    places: Places
    content: dict[Path, bytes]

    def differing(self) -> list[Path]:
        return [path for path, content in self.content.items() if _content_of(path) != content]

    def superfluous(self) -> list[Path]:
        """What an earlier release or another machine's state brought, and this arrangement has no place for."""
        return [path for path in installed_files(self.places) if path not in self.content and path.exists()]

    def place(self) -> None:
        """All but the rules, and nothing goes yet; then systemd has to read the units. `finish` does the rest.

        Idempotent, and a crash in between leaves no file that nobody knows of.
        """
        _write_list(self.places, {*installed_files(self.places), *self.content})
        self._write(path for path in self.content if not _is_rule(path))

    def finish(self) -> None:
        # systemd after 255 tells polkit the name of a transient unit too. With a rule for a name that has no unit file,
        # the daemon's user could run anything as root under it; with the file there, no transient unit can have it.
        self._write(path for path in self.content if _is_rule(path))
        for path in rules_first(self.superfluous()):
            remove_file(path)
        _write_list(self.places, set(self.content))

    def _write(self, paths: Iterable[Path]) -> None:
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, self.content[path])


def arrange(folder: Path, systemd: int, needs_launch_helper: bool, places: Places) -> Arrangement:
    """The units/ of a release in `folder`, for systemd of that version."""
    content: dict[Path, bytes] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix in _UNIT_KINDS and (path.name not in _LAUNCH_HELPER or needs_launch_helper):
            content[places.units / path.name] = path.read_bytes()
        elif path.suffix == ".rules" and not needs_launch_helper:
            content[places.polkit_rules / path.name] = path.read_bytes()
        elif path.suffix == ".catalog":
            content[places.catalog / path.name] = path.read_bytes()
    for name, place in (
        ("finetuned.sysusers", places.sysusers),
        ("finetuned.tmpfiles", places.tmpfiles),
        ("journald-finetuned.conf", places.journald),
    ):
        if (folder / name).is_file():
            content[place] = (folder / name).read_bytes()
    content.update(_newer_directives(folder, systemd, places))
    content.update(_credentials(folder, places))
    return Arrangement(places, content)


def arrange_credentials(folder: Path, places: Places) -> Arrangement:
    """What is left where a package brings everything else."""
    return Arrangement(places, _credentials(folder, places))


def _newer_directives(folder: Path, systemd: int, places: Places) -> dict[Path, bytes]:
    """dropins/vNNN/UNIT.d/*.conf, where this systemd is version NNN or newer."""
    return {
        places.units / path.parent.name / path.name: path.read_bytes()
        for path in sorted(folder.glob("dropins/v*/*.d/*.conf"))
        if systemd >= int(path.parents[1].name[1:])
    }


def _credentials(folder: Path, places: Places) -> dict[Path, bytes]:
    """dropins/credentials/NAME.conf, for the units that its first line names, where that secret is here.

    systemd does not start a unit whose credential is missing.
    """
    return {
        places.own_units / f"{unit}.d" / f"credential-{path.stem}.conf": path.read_bytes()
        for path in sorted(folder.glob("dropins/credentials/*.conf"))
        if (places.credentials / path.stem).is_file()
        for unit in _UNIT_NAME.findall(path.read_text().partition("\n")[0])
    }


def installed_files(places: Places) -> list[Path]:
    """What the last install put on this machine; empty when there was none."""
    try:
        names = json.loads(places.installed_files.read_text())["files"]
    except FileNotFoundError:
        return []
    return [places.root / name for name in names]


def rules_first(files: Iterable[Path]) -> list[Path]:
    """In the order in which they may go: no rule outlives a unit that it names."""
    return sorted(files, key=lambda path: not _is_rule(path))


def _is_rule(path: Path) -> bool:
    return path.suffix == ".rules"


def remove_file(path: Path) -> None:
    """And its folder, if that was a drop-in folder and is empty now."""
    path.unlink(missing_ok=True)
    if path.parent.suffix == ".d" and path.parent.name.startswith("finetuned") and not any(path.parent.iterdir()):
        path.parent.rmdir()


def _content_of(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _write_list(places: Places, files: set[Path]) -> None:
    names = sorted(str(path.relative_to(places.root)) for path in files)
    write_whole(places.installed_files, json.dumps({"format": 1, "files": names}, indent=2) + "\n")
