"""`doctor`: is this machine, and this spool, fit to train? Each check says what it found and what to do."""

import ctypes
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import typer

import finetuned
from finetuned.core.record import Record
from finetuned.ctl.arguments import AsJson
from finetuned.ctl.exits import ExitCode
from finetuned.ctl.jobs import chosen_path, is_daemon_running
from finetuned.ctl.sight import look_at_job
from finetuned.ctl.words import in_words, print_json, printable, say, size
from finetuned.host import machine
from finetuned.host.settings import InvalidSettings, config_directory, read_settings
from finetuned.host.spool import Spool

_TORCH_SECONDS = 120
_LOW_DISK_BYTES, _NO_DISK_BYTES = 20 << 30, 1 << 30
_LONG_ARRIVING_SECONDS = 300
_LOOK_AT_TORCH = """
import json, torch
found = {"version": torch.__version__, "cuda": torch.version.cuda, "usable": torch.cuda.is_available(), "error": ""}
if found["usable"]:
    try:
        torch.ones(8, device="cuda").sum().item()
    except Exception as error:
        found |= {"usable": False, "error": str(error).splitlines()[0]}
print(json.dumps(found))
"""


class Check(Record):
    name: str
    state: Literal["ok", "warn", "fail"]
    what: str
    hint: str = ""


class Examination(Record):
    """`finetunectl doctor --json`."""

    ok: bool
    """Nothing failed; warnings may stand."""
    checks: tuple[Check, ...]


def doctor(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Look at the machine and the spool, and say what is wrong; exit 1 when something is."""
    path = chosen_path(ctx)
    checks = []
    for check in _checks(path):
        checks.append(check)
        if not as_json:
            typer.echo(printable(f"{check.state:<4}  {check.name:<16}  {check.what}"))
            if check.hint:
                typer.echo(printable(f"{'':<24}hint: {check.hint}"))
    found = Examination(ok=not any(check.state == "fail" for check in checks), checks=tuple(checks))
    if as_json:
        print_json(found)
    if not found.ok:
        failed = sum(check.state == "fail" for check in checks)
        say(f"{failed} of {len(checks)} checks failed")
        raise typer.Exit(ExitCode.BAD_NEWS)


def _checks(path: Path) -> Iterator[Check]:
    yield _python()
    yield _settings()
    yield from _spool_checks(path)
    yield from _gpu_and_torch(path if path.is_dir() else Path("/"))
    yield _clock()
    yield _watches()
    yield from _unit()


def _python() -> Check:
    what = f"Python {platform.python_version()}, finetuned {finetuned.__version__} ({sys.executable})"
    return Check(name="python", state="ok", what=what)


def _settings() -> Check:
    place = config_directory() / "finetuned.yaml"
    try:
        read_settings(config_directory())
    except InvalidSettings as error:
        return Check(name="settings", state="fail", what=str(error), hint="the daemon does not start with this file")
    return Check(name="settings", state="ok", what=f"{place}" if place.exists() else f"all defaults (no {place})")


def _spool_checks(path: Path) -> Iterator[Check]:
    if not (path / "incoming").is_dir():
        hint = "start one with: finetuned run; or name another with --spool or FINETUNED_SPOOL"
        yield Check(name="spool", state="fail", what=f"there is no spool at {path}", hint=hint)
        return
    yield _doors(path)
    yield _daemon(path)
    yield _disk(path)
    yield from _arrivals(path)
    yield _jobs(path)


def _doors(path: Path) -> Check:
    closed = [door for door in ("incoming", "requests") if not os.access(path / door, os.W_OK | os.X_OK)]
    if not closed:
        return Check(name="spool", state="ok", what=f"{path}, open to you")
    group = _group_of(path)
    return Check(
        name="spool",
        state="fail",
        what=f"{path}: you may not write into {' and '.join(closed)}",
        hint=f"join the group and log in again: sudo usermod -aG {group} $USER",
    )


def _group_of(path: Path) -> str:
    try:
        return (path / "incoming").group()
    except KeyError:
        return str((path / "incoming").stat().st_gid)


def _daemon(path: Path) -> Check:
    running = is_daemon_running(path)
    if running:
        return Check(name="daemon", state="ok", what="running")
    if running is None:
        return Check(name="daemon", state="warn", what="you may not look whether it runs")
    hint = "sudo systemctl start finetuned, or: finetuned run"
    return Check(name="daemon", state="fail", what="no daemon is running on this spool", hint=hint)


def _disk(path: Path) -> Check:
    usage = shutil.disk_usage(path)
    what = f"{size(usage.free)} of {size(usage.total)} free"
    hint = "finetunectl prune shows what can go"
    if usage.free < _NO_DISK_BYTES:
        return Check(name="disk", state="fail", what=what, hint=hint)
    if usage.free < _LOW_DISK_BYTES:
        return Check(name="disk", state="warn", what=what, hint=hint)
    return Check(name="disk", state="ok", what=what)


def _arrivals(path: Path) -> Iterator[Check]:
    """What lies in incoming/ and is not claimed although a daemon runs."""
    try:
        waiting = [entry for entry in os.scandir(path / "incoming") if not entry.name.startswith(".")]
        old = [entry.name for entry in waiting if time.time() - _changed(entry) > _LONG_ARRIVING_SECONDS]
    except PermissionError:
        return
    if old and is_daemon_running(path):
        what = f"{len(old)} waiting in incoming/ for more than {in_words(_LONG_ARRIVING_SECONDS)}, e.g. {old[0]}"
        yield Check(name="incoming", state="warn", what=what, hint="the daemon's log says why each is not claimed")


def _changed(entry: "os.DirEntry[str]") -> float:
    try:
        return entry.stat(follow_symlinks=False).st_ctime
    except FileNotFoundError:
        return time.time()


def _jobs(path: Path) -> Check:
    try:
        jobs = Spool(path).jobs()
        unreadable = [job for job in jobs if not job.phase.is_terminal and look_at_job(job).unreadable]
    except PermissionError as error:
        hint = f"join the group and log in again: sudo usermod -aG {_group_of(path)} $USER"
        return Check(name="jobs", state="fail", what=f"you may not read {error.filename}", hint=hint)
    if unreadable:
        what = f"{len(unreadable)} of {len(jobs)} cannot be read: {', '.join(job.job for job in unreadable[:3])}"
        hint = f"finetunectl status {unreadable[0].job} says which file; mend it, or move the folder out of the spool"
        return Check(name="jobs", state="fail", what=what, hint=hint)
    return Check(name="jobs", state="ok", what=f"{len(jobs)}, all readable")


def _gpu_and_torch(place: Path) -> Iterator[Check]:
    found = machine.look_at(place)
    torch = _ask_torch()
    has_driver = found.has_gpu or Path("/proc/driver/nvidia/version").exists()
    yield _gpu(has_driver, found.driver_version, [device.name for device in found.devices] if found.has_gpu else [])
    if isinstance(torch, str):
        hint = "install the worker's parts: pip install 'finetuned[train]'"
        yield Check(name="torch", state="fail", what=f"{sys.executable} cannot import torch: {torch}", hint=hint)
        return
    what = f"torch {torch['version']}, CUDA {torch['cuda']}" if torch["cuda"] else f"torch {torch['version']} for CPUs"
    if has_driver and not torch["usable"]:
        needed = f"needs a driver for CUDA {torch['cuda']}" if torch["cuda"] else "is a build without CUDA"
        yield Check(
            name="torch",
            state="fail",
            what=f"{what} cannot use the GPU; the driver found is {found.driver_version or 'not answering'} "
            f"{torch['error']}".rstrip(),
            hint=f"this torch {needed}: update the driver, or install the torch that fits it",
        )
        return
    yield Check(name="torch", state="ok", what=what + (", the GPU works" if torch["usable"] else ""))


def _gpu(has_driver: bool, driver: str | None, names: list[str]) -> Check:
    if names:
        return Check(name="gpu", state="ok", what=f"{', '.join(names)} (driver {driver})")
    if has_driver:
        hint = "nvidia-smi says more; after a driver update, reboot"
        return Check(name="gpu", state="fail", what="the NVIDIA driver is loaded and does not answer", hint=hint)
    return Check(name="gpu", state="warn", what="no NVIDIA GPU; jobs run on the CPU, which suits small models only")


def _ask_torch() -> dict[str, str] | str:
    """What torch says of itself, asked in a process of its own; or why it cannot be asked."""
    command = [sys.executable, "-c", _LOOK_AT_TORCH]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_TORCH_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer in {_TORCH_SECONDS} s"
    if answer.returncode != 0:
        return (answer.stderr.strip().splitlines() or [f"exit status {answer.returncode}"])[-1]
    found: dict[str, str] = json.loads(answer.stdout.splitlines()[-1])
    return found


# adjtimex(2): `status` stands behind modes, offset, freq, maxerror and esterror; this bit says: not synchronized.
_STATUS_OFFSET, _STA_UNSYNC = 40, 0x40


def _clock() -> Check:
    timex = ctypes.create_string_buffer(256)
    if ctypes.CDLL(None, use_errno=True).adjtimex(timex) < 0:
        return Check(name="clock", state="ok", what="set; whether it is synchronized cannot be told here")
    status = int.from_bytes(timex.raw[_STATUS_OFFSET : _STATUS_OFFSET + 4], sys.byteorder)
    if status & _STA_UNSYNC:
        hint = "sudo timedatectl set-ntp true"
        return Check(name="clock", state="warn", what="not synchronized; times in lists may be wrong", hint=hint)
    return Check(name="clock", state="ok", what="synchronized")


def _watches() -> Check:
    limits = {}
    for name, least in (("max_user_instances", 16), ("max_user_watches", 1024)):
        try:
            limits[name] = (int(Path("/proc/sys/fs/inotify", name).read_text()), least)
        except (OSError, ValueError):
            continue
    low = [name for name, (limit, least) in limits.items() if limit < least]
    if low:
        hint = f"sudo sysctl fs.inotify.{low[0]}=8192; until then drops are found by scanning, a little later"
        return Check(name="inotify", state="warn", what=f"{low[0]} is {limits[low[0]][0]}", hint=hint)
    return Check(name="inotify", state="ok", what=", ".join(f"{name} {limit}" for name, (limit, _) in limits.items()))


def _unit() -> Iterator[Check]:
    """Nothing where systemd does not run or no unit is installed: then the daemon is run by hand."""
    if not Path("/run/systemd/system").is_dir():
        return
    command = ["systemctl", "show", "finetuned.service", "--property=LoadState,ActiveState,Result"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return
    said = dict(line.split("=", 1) for line in answer.splitlines() if "=" in line)
    if said.get("LoadState") != "loaded":
        return
    active = said.get("ActiveState", "unknown")
    if active == "failed":
        hint = "journalctl -u finetuned -n 50"
        yield Check(name="unit", state="fail", what=f"finetuned.service failed ({said.get('Result')})", hint=hint)
    else:
        yield Check(name="unit", state="ok" if active == "active" else "warn", what=f"finetuned.service is {active}")
