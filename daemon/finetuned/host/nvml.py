"""What NVML says of this machine's GPUs, asked in a process of its own: `python -m finetuned.host.nvml`.

A call about a card that fell off the bus may stay in the kernel for ever, where nothing can end it; so nobody who has
other work makes one. The program imports nothing heavy and prints one line of JSON, an `Answer`.
"""

import ctypes
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pynvml

_LIBRARY = "libnvidia-ml.so.1"
_SECONDS = 20.0
"""NVML on a machine with eight cards and no persistence daemon takes some seconds to wake them."""


@dataclass(frozen=True)
class Gpu:
    index: int
    name: str
    memory_bytes: int
    has_bf16: bool


@dataclass(frozen=True)
class Answer:
    """What NVML said.

    `absent`: why there is no NVML to talk to, empty when there is; a machine without a driver is in order without one.
    `troubles`: what is wrong with a driver that is there, or with single cards.
    """

    gpus: tuple[Gpu, ...] = ()
    driver_version: str | None = None
    absent: str = ""
    troubles: tuple[str, ...] = ()


class Driver:
    """Asks NVML, one process at a time; one that never returned is not joined by others."""

    def __init__(
        self, command: Sequence[str] = (sys.executable, "-m", "finetuned.host.nvml"), seconds: float = _SECONDS
    ):
        self._command, self._seconds = list(command), seconds
        self._unanswered: subprocess.Popen[str] | None = None

    def ask(self) -> Answer:
        if self._unanswered is not None and self._unanswered.poll() is None:
            return _trouble(f"process {self._unanswered.pid} has asked it and still waits")
        asking = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/"
        )
        try:
            said, complaint = asking.communicate(timeout=self._seconds)
        except subprocess.TimeoutExpired:
            asking.kill()
            self._unanswered = asking  # Not waited for: where the kernel holds it, that would be for ever.
            return _trouble(f"no answer in {self._seconds:g} s")
        if asking.returncode != 0:
            last = (complaint.strip().splitlines() or [f"status {asking.returncode}"])[-1]
            return _trouble(f"asking it failed: {last}")
        return _parsed(said)


def has_library() -> bool:
    """Whether there is an NVIDIA driver to ask."""
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError:
        return False
    return True


def answer(nvml: Any = pynvml) -> Answer:
    """Ask NVML in this very process."""
    try:
        nvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Answer(absent=str(error))
    gpus, troubles = [], []
    try:
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                gpus.append(_gpu(nvml, index))
            except pynvml.NVMLError as error:
                troubles.append(f"GPU {index} does not answer ({error})")
        return Answer(tuple(gpus), nvml.nvmlSystemGetDriverVersion(), troubles=tuple(troubles))
    except pynvml.NVMLError as error:
        return _trouble(str(error))
    finally:
        nvml.nvmlShutdown()


def _gpu(nvml: Any, index: int) -> Gpu:
    """bf16 needs compute capability 8.0 (Ampere)."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    major, _minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    memory_bytes = nvml.nvmlDeviceGetMemoryInfo(handle).total
    return Gpu(index, nvml.nvmlDeviceGetName(handle), memory_bytes, has_bf16=major >= 8)


def _parsed(said: str) -> Answer:
    try:
        fields = json.loads(said)
        gpus = tuple(Gpu(**gpu) for gpu in fields["gpus"])
        return Answer(gpus, fields["driver_version"], fields["absent"], tuple(fields["troubles"]))
    except (ValueError, KeyError, TypeError) as error:
        return _trouble(f"asked, it said {said[:80]!r} ({error})")


def _trouble(what: str) -> Answer:
    return Answer(troubles=(f"the NVIDIA driver does not answer ({what})",))


if __name__ == "__main__":
    print(json.dumps(asdict(answer())))
