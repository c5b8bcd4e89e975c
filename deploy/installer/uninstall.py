"""Taking finetuned off a machine. What people made, their jobs, models and data, is never removed here."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from installer import service
from installer.files import installed_files, remove_file, rules_first
from installer.machine import gigabytes
from installer.places import Places
from installer.programs import Programs, Trouble
from installer.steps import tell


@dataclass(frozen=True)
class Removal:
    places: Places
    programs: Programs
    stops_jobs: bool = False
    """Stop what runs, each stage with the checkpoint that it writes when asked to stop."""
    takes_settings: bool = False

    def carry_out(self) -> None:
        """Raises Trouble, having changed nothing, when jobs run and may not be stopped."""
        stages = service.living_stages(self.programs)
        if stages and not self.stops_jobs:
            shown = "\n    ".join(stages)
            raise Trouble(
                f"{len(stages)} stages of jobs are running:\n    {shown}\n"
                "hint: wait for them, hold the jobs (finetunectl hold JOB), or stop them with --uninstall --force"
            )
        files = installed_files(self.places)
        self._stop([service.UNIT, service.SOCKET], stages, files)
        for path in rules_first(files):
            remove_file(path)
        tell("done", "files", f"{len(files)} files of units, users and rules removed")
        if self.takes_settings:
            self._remove_gate()
        self.programs.run("systemctl", "daemon-reload")
        self.programs.run("journalctl", "--update-catalog")
        self._remove_releases()
        if self.takes_settings:
            self._remove_settings()
        self._say_what_stays()

    def _stop(self, ours: list[str], stages: list[str], files: list[Path]) -> None:
        units = [unit for unit in ours if self.places.units / unit in files]
        if units:
            # The daemon first: it would start again what is stopped.
            self.programs.run("systemctl", "disable", "--quiet", "--now", *units)
        # Those that others enabled, as cloud-init does, are not stopped: one of them holds a disk.
        others = [path.name for path in files if path.suffix == ".service" and "@" not in path.name]
        if enabled := [unit for unit in others if unit not in ours]:
            self.programs.run("systemctl", "disable", "--quiet", *enabled)
        for unit in stages:
            self.programs.run("systemctl", "stop", unit)
        tell("done", "service", f"{', '.join([*units, *stages]) or 'nothing'} stopped")

    def _remove_releases(self) -> None:
        if self.places.command.is_symlink():
            self.places.command.unlink()
        for link in (self.places.current, self.places.previous, self.places.restart_due):
            link.unlink(missing_ok=True)
        for folder in (self.places.releases, self.places.pip_cache):
            shutil.rmtree(folder, ignore_errors=True)
        self.places.installed_files.unlink(missing_ok=True)
        tell("done", "releases", f"all of {self.places.releases} removed")
        self.places.lock.unlink(missing_ok=True)
        if self.places.home.is_dir() and not any(self.places.home.iterdir()):
            self.places.home.rmdir()

    def _remove_gate(self) -> None:
        """Its stamp goes too, and it would shut out whatever is installed here later."""
        if self.places.provisioning_gate.is_file():
            remove_file(self.places.provisioning_gate)
            tell("done", "purge", f"{self.places.provisioning_gate} removed")

    def _remove_settings(self) -> None:
        for folder in (self.places.settings, self.places.state, self.places.cache):
            if folder.is_dir():
                shutil.rmtree(folder)
                tell("done", "purge", f"{folder} removed")

    def _say_what_stays(self) -> None:
        settings = (self.places.home, self.places.settings, self.places.state, self.places.cache)
        for folder in settings:
            if folder.is_dir():
                tell("kept", "settings", f"{folder}")
        for folder in (self.places.spool, self.places.files_of_people):
            if folder.is_dir():
                files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
                size = gigabytes(sum(path.stat().st_size for path in files))
                tell("kept", "people's", f"{folder}: {len(files)} files, {size}; to remove it: rm -r {folder}")
        tell("kept", "user", "finetuned, who owns those files; to remove it: deluser --system finetuned")
