"""One release in /opt/finetuned/releases: its two virtual environments, built in place and marked whole at the end."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from installer.interpreter import Interpreter
from installer.places import Places
from installer.programs import Programs, Trouble
from installer.source import Source
from installer.writing import replace_link, write_whole

CPU_WHEELS = "https://download.pytorch.org/whl/cpu"
"""A CPU build of torch is a tenth of the CUDA build's download."""

_PIP_TRIES = 2
_ROOM = {"site": 1_000_000_000, "cpu": 4_000_000_000, "cuda": 14_000_000_000}
"""Both environments, pip's cache and what it unpacks meanwhile. Measured: 0.1 GB where the worker's packages lie
elsewhere, 2 GB with a CPU build of torch; a CUDA build is an estimate, 9 GB. Rounded up by half."""


@dataclass(frozen=True)
class Recipe:
    """What a release is made of beside its source; another recipe makes another release."""

    interpreter: Interpreter
    torch: str
    """cpu or cuda."""
    worker_site: str | None = None
    wheelhouse: str | None = None

    @property
    def needed_bytes(self) -> int:
        return _ROOM["site" if self.worker_site else self.torch]

    @property
    def identity(self) -> str:
        """Where wheels come from is no part of it: they are pinned."""
        build = self.worker_site or self.torch
        return f"{self.interpreter.path} {self.interpreter.name} {build}"

    def __str__(self) -> str:
        torch = f"worker packages of {self.worker_site}" if self.worker_site else f"torch for {_DEVICE[self.torch]}"
        return f"{self.interpreter.name} ({self.interpreter.path}), {torch}"


_DEVICE = {"cpu": "the CPU", "cuda": "NVIDIA GPUs"}


PACKAGED = "packaged"
"""Stands in release.json, in the worker's place, where the Debian package brought the daemon half."""


@dataclass(frozen=True)
class Release:
    places: Places
    name: str

    @property
    def path(self) -> Path:
        return self.places.releases / self.name

    @property
    def units(self) -> Path:
        return self.path / "units"

    @property
    def mark(self) -> Path:
        """Written last: a release that has it is whole."""
        return self.path / "release.json"

    @property
    def is_whole(self) -> bool:
        return self.mark.is_file()

    def answers(self, programs: Programs) -> bool:
        """Whether its Python still is the one it was built for; an upgrade of the distribution takes it away."""
        halves = [self.python(half) for half in ("daemon", "worker")]
        return all(programs.attempt(python, "-I", "-c", "import finetuned").returncode == 0 for python in halves)

    def python(self, half: str) -> Path:
        return self.path / half / "bin/python"

    def build(self, source: Source, recipe: Recipe, programs: Programs) -> None:
        """Make it, whatever is left of an earlier try. Raises Trouble; then nothing that looks whole is left."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(parents=True)
        source.copy_parts(self.path)
        pip = _Pip(self, source, recipe, programs, home="daemon")
        self._make_venv("daemon", recipe, programs)
        wheel = source.bring_wheel(self.path, self.python("daemon"), programs, pip.origin)
        systemd = pip.build_systemd_python()
        pip.install("daemon", f"{wheel}[systemd]", systemd)
        self._require(programs, "daemon", "finetuned.service.main", "finetuned.ctl.main", "systemd.journal")
        self._make_venv("worker", recipe, programs, "--without-pip")  # The daemon's serves both.
        self._fill_worker(wheel, systemd, recipe, pip, programs)
        self._finish(source, recipe, pip)

    def _fill_worker(self, wheel: Path, systemd: Path, recipe: Recipe, pip: _Pip, programs: Programs) -> None:
        if recipe.worker_site:
            pip.install("worker", f"{wheel}[systemd]", systemd)
            # After ours on sys.path: what the daemon needs too comes from the environment itself.
            site = next((self.path / "worker/lib").glob("python3.*")) / "site-packages"
            (site / "finetuned-worker-site.pth").write_text(f"{recipe.worker_site}\n")
        else:
            pip.install_torch()
            pip.install("worker", f"{wheel}[train,systemd]", systemd)
        packages = ("torch", "transformers", "peft", "finetuned.train.main", "systemd.journal")
        self._require(programs, "worker", *packages)
        # A worker starts three times as fast with its modules compiled, and its user cannot write here.
        programs.attempt(
            self.python("worker"),
            self.path / "deploy/warm_up.py",
            env={"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "HOME": str(pip.scratch)},
        )

    def _finish(self, source: Source, recipe: Recipe, pip: _Pip) -> None:
        shutil.rmtree(pip.scratch)
        os.sync()  # After a power cut there is no mark on an environment whose files never reached the disk.
        write_mark(self.mark, source, recipe.interpreter, recipe.worker_site or recipe.torch)

    def _make_venv(self, half: str, recipe: Recipe, programs: Programs, *options: str) -> None:
        programs.run(recipe.interpreter.path, "-m", "venv", *options, self.path / half)

    def _require(self, programs: Programs, half: str, *modules: str) -> None:
        ended = programs.attempt(self.python(half), "-I", "-c", f"import {', '.join(modules)}")
        if ended.returncode != 0:
            said = (ended.stderr.strip().splitlines() or [f"exit status {ended.returncode}"])[-1]
            raise Trouble(f"the {half} environment of {self.name} cannot import what it needs: {said}")


class PackagedRelease(Release):
    """One whose daemon half dpkg has put there; what is built here is its worker."""

    @property
    def mark(self) -> Path:
        return self.path / "worker.json"

    def build(self, source: Source, recipe: Recipe, programs: Programs) -> None:
        shutil.rmtree(self.path / "worker", ignore_errors=True)
        pip = _Pip(self, source, recipe, programs, home="worker")
        self._make_venv("worker", recipe, programs)
        systemd = next(self.path.glob("systemd_python-*.whl"))
        self._fill_worker(source.wheel(), systemd, recipe, pip, programs)
        self._finish(source, recipe, pip)


class _Pip:
    """pip for one release: pinned, from a wheelhouse or from the configured index."""

    def __init__(self, release: Release, source: Source, recipe: Recipe, programs: Programs, home: str):
        """`home`: the environment whose pip serves both."""
        self._release, self._source, self._recipe, self._programs = release, source, recipe, programs
        self._python = release.python(home)
        self.scratch = release.path / ".building"
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir()

    @property
    def origin(self) -> tuple[str, ...]:
        return ("--no-index", "--find-links", self._recipe.wheelhouse) if self._recipe.wheelhouse else ()

    def install(self, half: str, *what: str | Path) -> None:
        # Thousands of the worker's modules are never imported; warm_up.py compiles those that are.
        compiling = ("--no-compile",) if half == "worker" else ()
        self._run(half, "install", *compiling, "--constraint", self._source.constraints, *what)

    def install_torch(self) -> None:
        version = pinned_version(self._source.constraints, "torch")
        index: tuple[str, ...] = ()
        if self._recipe.torch == "cpu" and not self._recipe.wheelhouse and self._answers(f"{CPU_WHEELS}/torch/"):
            index = ("--extra-index-url", CPU_WHEELS)
        self._run(
            "worker", "install", "--no-compile", "--constraint", self._source.constraints, *index, f"torch=={version}"
        )

    def build_systemd_python(self) -> Path:
        """Its wheel, compiled once on this machine for both environments: none can be downloaded."""
        wheels = self.scratch / "wheels"
        try:
            pinned = ("--constraint", self._source.constraints)
            # Debian 12's pip would else build it without `wheel`, which its environments lack.
            self._run("daemon", "wheel", "--no-deps", "--use-pep517", *pinned, "-w", wheels, "systemd-python")
        except Trouble as error:
            raise Trouble(
                f"systemd-python cannot be built here, and the service needs it:\n    {error}\n"
                "hint: it needs gcc, pkg-config, libsystemd-dev and the headers of this Python (python3-dev)"
            ) from error
        return next(wheels.glob("systemd_python-*.whl"))

    def _run(self, half: str, verb: str, *arguments: str | Path) -> None:
        pip = (self._python, "-m", "pip", "--python", self._release.python(half), verb)
        quiet = ("--quiet", "--no-input", "--disable-pip-version-check")
        command = (*pip, *quiet, "--cache-dir", self._release.places.pip_cache, *self.origin, *arguments)
        # /tmp may be small, or memory.
        env = {"TMPDIR": str(self.scratch)}
        for _ in range(_PIP_TRIES - 1):
            if self._programs.attempt(*command, env=env).returncode == 0:
                return
        self._programs.run(*command, env=env)

    def _answers(self, address: str) -> bool:
        ask = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=10)"
        return self._programs.attempt(self._python, "-c", ask, address, timeout=30).returncode == 0


def write_mark(path: Path, source: Source, interpreter: Interpreter, worker: str) -> None:
    """What a whole environment was made of, for people who ask."""
    said = {
        "format": 1,
        "version": source.version,
        "source": source.digest(),
        "python": f"{interpreter.name} ({interpreter.path})",
        "worker": worker,
    }
    write_whole(path, json.dumps(said, indent=2) + "\n")


def is_packaged(folder: Path) -> bool:
    """Whether this folder is the release that the Debian package brings."""
    try:
        return bool(json.loads((folder / "release.json").read_text())["worker"] == PACKAGED)
    except FileNotFoundError:
        return False


def release_name(source: Source, recipe: Recipe) -> str:
    """VERSION-HASH8: a rebuilt wheel of the same version, or other units, or another Python, is another release."""
    digest = hashlib.sha256(f"{source.digest()} {recipe.identity}".encode()).hexdigest()
    return f"{source.version}-{digest[:8]}"


def pinned_version(constraints: Path, package: str) -> str:
    found = re.search(rf"^{re.escape(package)}==(\S+)$", constraints.read_text(), re.MULTILINE)
    if found is None:
        raise Trouble(f"{constraints} does not pin {package}")
    return found[1]


def linked(link: Path, places: Places) -> Release | None:
    """The release that `current` or `previous` names; None when there is none, or what it names is not whole."""
    try:
        release = Release(places, Path(os.readlink(link)).name)
    except OSError:
        return None
    return release if release.is_whole else None


def link_to(link: Path, release: Release) -> None:
    replace_link(link, f"releases/{release.name}")
