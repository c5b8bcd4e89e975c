"""Bringing a machine to a release: the steps in their order, the swap, and the way back when it is not well."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from installer import service
from installer.files import Arrangement, arrange, arrange_credentials
from installer.jobs import Unknown, releases_in_use
from installer.machine import Machine, require_room
from installer.packages import has_systemd_python, install_packages, missing_packages
from installer.places import Places
from installer.programs import Programs, Trouble
from installer.release import PackagedRelease, Recipe, Release, link_to, linked
from installer.source import Source
from installer.steps import Step, tell
from installer.writing import replace_link, write_whole


@dataclass(frozen=True)
class Installation:
    """Of one release on this machine."""

    places: Places
    programs: Programs
    machine: Machine
    target: Release
    gate_seconds: float
    users: tuple[str, ...] = ()
    always_restart: bool = False
    """Write the units again and restart even where nothing differs: --upgrade, --rollback."""

    def steps(self, source: Source, recipe: Recipe) -> list[Step]:
        """From a bare machine to a running daemon. Each can be done again."""
        return [
            self._packages(source, recipe),
            self._build(source, recipe),
            *self.swap_steps(),
            Step("group", self._users_outside, self._add_users, in_place=self._said_of_users()),
            Step("old", self._said_of_old, self._remove_old, in_place="no release that is not needed any more"),
        ]

    def swap_steps(self) -> list[Step]:
        """From a release that is whole to one that runs and is well."""
        return [
            Step("files", self._files_missing, self._install_files, in_place=f"those of {self.target.name}"),
            Step(
                "folders", self._folders_missing, self._make_folders, in_place="spool, settings, caches, /srv/finetuned"
            ),
            Step("service", self._service_missing, self._swap_and_prove, in_place=f"{self.target.name} runs"),
        ]

    def _packages(self, source: Source, recipe: Recipe) -> Step:
        def packages() -> list[str]:
            if self.target.is_whole:
                return missing_packages(self.machine, self.programs)
            has_wheel = has_systemd_python(source.path, recipe) or has_systemd_python(recipe.wheelhouse, recipe)
            return missing_packages(self.machine, self.programs, builds=True, compiles=not has_wheel)

        return Step(
            "packages",
            lambda: (" ".join(["apt-get install", *packages()])) if packages() else "",
            lambda: install_packages(packages(), self.machine, source, self.programs),
            in_place="all that is needed is installed",
        )

    def _build(self, source: Source, recipe: Recipe) -> Step:
        def build() -> None:
            require_room(self.places, recipe.needed_bytes, f"building {self.target.name}")
            self.target.build(source, recipe, self.programs)

        return Step(
            "release",
            lambda: "" if self.target.is_whole else f"build {self.target.path} with {recipe}; this takes minutes",
            build,
            in_place=f"{self.target.name} is built",
        )

    # The files outside the release's folder.

    @property
    def _arrangement(self) -> Arrangement:
        return self._arranged(self.target)

    def _arranged(self, release: Release) -> Arrangement:
        if isinstance(release, PackagedRelease):
            return arrange_credentials(release.units, self.places)
        return arrange(release.units, self.machine.systemd, self.machine.needs_launch_helper, self.places)

    def _files_missing(self) -> str:
        if not self.target.is_whole:
            return f"those of {self.target.name}"
        differing, superfluous = self._arrangement.differing(), self._arrangement.superfluous()
        if not differing and not superfluous and not self.always_restart:
            return ""
        if not differing and not superfluous:
            return f"all {len(self._arrangement.content)} again"
        names = [path.name for path in differing]
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        gone = f"; {len(superfluous)} go" if superfluous else ""
        return f"{len(names)} of {len(self._arrangement.content)} differ{': ' if shown else ''}{shown}{gone}"

    def _install_files(self) -> None:
        self._note_that_a_restart_is_due()
        self._put_files(self.target)

    def _put_files(self, release: Release) -> None:
        arrangement = self._arranged(release)
        superfluous = arrangement.superfluous()
        changed = {*arrangement.differing(), *superfluous}
        arrangement.place()
        self.programs.run("systemd-sysusers", self.places.sysusers)
        self.programs.run("systemd-tmpfiles", "--create", self.places.tmpfiles)
        if any(path.parent == self.places.catalog for path in changed):
            self.programs.run("journalctl", "--update-catalog")
        if self.places.journald in changed:
            self.programs.run("systemctl", "restart", "systemd-journald.service")
        self.programs.run("systemctl", "daemon-reload")
        arrangement.finish()
        if superfluous:
            self.programs.run("systemctl", "daemon-reload")

    # Users and folders.

    def _folders_missing(self) -> str:
        if not self.places.tmpfiles.is_file():
            return "spool, settings, caches, /srv/finetuned/{models,data}"
        rows = [line.split() for line in self.places.tmpfiles.read_text().splitlines()]
        folders = [self.places.root / row[1].lstrip("/") for row in rows if len(row) > 1 and row[0] == "d"]
        return ", ".join(str(folder) for folder in folders if not folder.is_dir())

    def _make_folders(self) -> None:
        self.programs.run("systemd-sysusers", self.places.sysusers)
        self.programs.run("systemd-tmpfiles", "--create", self.places.tmpfiles)

    def require_users(self) -> None:
        """Raises Trouble naming those who do not exist."""
        if unknown := [user for user in self.users if self._groups_of(user) is None]:
            raise Trouble(f"--user: there is no user {', '.join(unknown)} on this machine")

    def _outside(self) -> list[str]:
        return [user for user in self.users if "finetuned" not in (self._groups_of(user) or ())]

    def _groups_of(self, user: str) -> list[str] | None:
        answer = self.programs.attempt("id", "-nG", user)
        return answer.stdout.split() if answer.returncode == 0 else None

    def _users_outside(self) -> str:
        outside = self._outside()
        return f"{', '.join(outside)} into the group finetuned; this counts from the next login" if outside else ""

    def _said_of_users(self) -> str:
        return f"{', '.join(self.users)} may drop jobs" if self.users else "nobody to add; --user NAME adds somebody"

    def _add_users(self) -> None:
        for user in self._outside():
            self.programs.run("usermod", "-aG", "finetuned", user)
            tell("", "", f"{user} has to log out and in again before dropping a job (or: newgrp finetuned)")

    # What runs.

    @property
    def _units_to_enable(self) -> list[str]:
        return [service.UNIT, *([service.SOCKET] if self.machine.needs_launch_helper else [])]

    def _service_missing(self) -> str:
        current = linked(self.places.current, self.places)
        if current is None or current.name != self.target.name:
            return f"{current.name if current else 'nothing'} → {self.target.name}, then prove that it is well"
        if self.places.restart_due.exists():
            return f"restart {self.target.name} and prove that it is well"
        if not self.places.command.is_symlink():
            return f"{self.places.command}"
        said = service.show(self.programs)
        if any(not service.is_enabled(self.programs, unit) for unit in self._units_to_enable):
            return f"enable {' '.join(self._units_to_enable)}"
        if said.get("ActiveState") == "active" or service.is_held_back(said):
            return ""
        return f"start {service.UNIT}, which is {said.get('ActiveState', 'unknown')}"

    def _swap_and_prove(self) -> None:
        """Raises Trouble when the release is not well; then the one before it runs again, if there was one."""
        before, before_that = self._linked("current"), self._linked("previous")
        self._note_that_a_restart_is_due()
        if not isinstance(self.target, PackagedRelease):
            self._point_at(self.target, previous=before)
        self.programs.run("systemctl", "enable", "--quiet", *self._units_to_enable)
        if self.machine.needs_launch_helper:
            self.programs.run("systemctl", "start", service.SOCKET)
        health = service.restart_and_prove(self.programs, self.places, self.gate_seconds)
        if health.is_well:
            self.places.restart_due.unlink(missing_ok=True)
            tell("", "", health.what)
            return
        back = before if before and before.name != self.target.name else before_that
        if back is None or back.name == self.target.name:
            raise Trouble(
                f"{self.target.name} is installed and not well: {health.what}\n"
                "hint: there is no earlier release to go back to; journalctl -u finetuned -n 50 says more. "
                "Once it is mended, run this again"
            )
        raise Trouble(f"{self.target.name} is not well: {health.what}\n{self._go_back(back, before_that)}")

    def _go_back(self, release: Release, before_that: Release | None) -> str:
        """What became of it, in a sentence. The failed release stays on disk, to be looked at or tried again."""
        self._put_files(release)
        link_to(self.places.current, release)
        if before_that is not None and before_that.name != release.name:
            link_to(self.places.previous, before_that)
        else:
            self.places.previous.unlink(missing_ok=True)
        health = service.restart_and_prove(self.programs, self.places, self.gate_seconds)
        self.places.restart_due.unlink(missing_ok=True)
        if health.is_well:
            return f"went back to {release.name}, which is well again; running jobs were not touched"
        return f"went back to {release.name}, which is not well either: {health.what}"

    def _point_at(self, release: Release, previous: Release | None) -> None:
        # In this order: a crash between the two leaves a `current` that is whole, as it was.
        if previous is not None and previous.name != release.name:
            link_to(self.places.previous, previous)
        link_to(self.places.current, release)
        self.places.command.parent.mkdir(parents=True, exist_ok=True)
        replace_link(self.places.command, str(Path("/") / self.places.current.relative_to(self.places.root) / _CTL))

    def _note_that_a_restart_is_due(self) -> None:
        write_whole(self.places.restart_due, f"{self.target.name}\n")

    # Releases of the past.

    def _old(self) -> list[Release]:
        """Whole or not; neither linked nor needed by a job or a process. Empty when nobody can tell."""
        if not self.places.releases.is_dir():
            return []
        kept = {release.name for release in (self.target, *map(self._linked, ("current", "previous"))) if release}
        others = sorted(path.name for path in self.places.releases.iterdir() if path.name not in kept)
        if not others:
            return []
        try:
            used = releases_in_use(self.places)
        except Unknown as error:
            tell("", "old", f"kept {', '.join(others)}: {error}")
            return []
        return [Release(self.places, name) for name in others if name not in used]

    def _linked(self, name: str) -> Release | None:
        return linked(self.places.home / name, self.places)

    def _said_of_old(self) -> str:
        old = self._old()
        return f"remove {', '.join(release.name for release in old)}, which nothing needs any more" if old else ""

    def _remove_old(self) -> None:
        for release in self._old():
            release.mark.unlink(missing_ok=True)  # Half removed it must not look whole.
            shutil.rmtree(release.path)


_CTL = "daemon/bin/finetunectl"
