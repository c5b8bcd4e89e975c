"""What `doctor` looks at on the machine: Python, settings, GPU and torch, clock, watches."""

import ctypes
import json
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import finetuned
from finetuned.core.plan import Machine
from finetuned.ctl.facts import Check
from finetuned.host import machine
from finetuned.host.converter import GgufPrograms, NoProgram
from finetuned.host.release import stage_python
from finetuned.host.settings import InvalidSettings, Settings, config_directory, read_settings

_TORCH_SECONDS = 120
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


def check_machine(place: Path) -> Iterator[Check]:
    """`place`: a directory on the disk that matters."""
    yield _python()
    yield _settings()
    yield _gguf()
    yield from _gpu_and_torch(place)
    yield _clock()
    yield _watches()


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


def _gguf() -> Check:
    """Whether `export: {gguf: …}` can be had; a machine without it is as good as any for all other jobs."""
    try:
        settings = read_settings(config_directory())
    except InvalidSettings:
        settings = Settings()
    is_asked = settings.gguf_converter is not None or settings.gguf_quantizer is not None
    try:
        found = GgufPrograms.find("q4_k_m", settings)
    except NoProgram as error:
        what = str(error) if is_asked else "no llama.cpp here; jobs that ask for export.gguf are refused"
        return Check(name="gguf", state="warn" if is_asked else "ok", what=what, hint=error.hint if is_asked else "")
    return Check(name="gguf", state="ok", what=f"{found.converter[-1]} and {(found.quantizer or ('',))[-1]}")


def _gpu_and_torch(place: Path) -> Iterator[Check]:
    found = machine.look_at(place)
    torch = _ask_torch()
    has_card = found.has_gpu or bool(found.trouble)
    yield _gpu(found)
    if isinstance(torch, str):
        hint = "install the worker's parts: pip install 'finetuned[train]'"
        yield Check(name="torch", state="fail", what=f"{stage_python()} cannot import torch: {torch}", hint=hint)
        return
    what = f"torch {torch['version']}, CUDA {torch['cuda']}" if torch["cuda"] else f"torch {torch['version']} for CPUs"
    if has_card and not torch["usable"]:
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


def _gpu(found: Machine) -> Check:
    if found.trouble:
        hint = "nvidia-smi says more; after a driver update, reboot. Runs wait until it answers"
        return Check(name="gpu", state="fail", what=found.trouble, hint=hint)
    if found.has_gpu:
        names = ", ".join(device.name for device in found.devices)
        return Check(name="gpu", state="ok", what=f"{names} (driver {found.driver_version})")
    return Check(name="gpu", state="warn", what="no NVIDIA GPU; jobs run on the CPU, which suits small models only")


def _ask_torch() -> dict[str, str] | str:
    """What torch says of itself, asked in a process of its own; or why it cannot be asked."""
    command = [stage_python(), "-c", _LOOK_AT_TORCH]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_TORCH_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer in {_TORCH_SECONDS} s"
    except OSError as error:
        return f"it cannot be run: {error.strerror}"
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
