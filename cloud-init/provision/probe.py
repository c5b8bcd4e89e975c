"""Asks the driver what it really gives, and prints it as JSON. Its own process: these calls may hang for ever.

NVML tells of module and library; a CUDA context is what a job needs, and what `nvidia-smi` does not try.
"""

from __future__ import annotations

import ctypes
import json
from typing import Any

LIBRARY_NOT_FOUND = 12
"""NVML's own number for it."""
FABRIC_COMPLETED = 3


class FabricInfo(ctypes.Structure):
    _fields_ = (
        ("cluster", ctypes.c_ubyte * 16),
        ("status", ctypes.c_uint),
        ("clique", ctypes.c_uint),
        ("state", ctypes.c_ubyte),
    )


def ask_nvml() -> dict[str, Any]:
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return {"nvml": LIBRARY_NOT_FOUND}
    status = nvml.nvmlInit_v2()
    if status != 0:
        return {"nvml": status}
    text, count = ctypes.create_string_buffer(96), ctypes.c_uint()
    nvml.nvmlSystemGetDriverVersion(text, ctypes.c_uint(96))
    found: dict[str, Any] = {"nvml": 0, "driver": text.value.decode(), "gpus": [], "fabric": []}
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    for index in range(count.value):
        device, info = ctypes.c_void_p(), FabricInfo()
        nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device))
        nvml.nvmlDeviceGetName(device, text, ctypes.c_uint(96))
        found["gpus"].append(text.value.decode())
        if hasattr(nvml, "nvmlDeviceGetGpuFabricInfo"):
            asked = nvml.nvmlDeviceGetGpuFabricInfo(device, ctypes.byref(info))
            found["fabric"].append(info.state if asked == 0 and info.status == 0 else -1)
    return found


def ask_cuda() -> dict[str, Any]:
    """A context on every device, as the ranks of a run make one."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return {"cuda": -1}
    status = cuda.cuInit(ctypes.c_uint(0))
    count = ctypes.c_int()
    if status == 0:
        status = cuda.cuDeviceGetCount(ctypes.byref(count))
    for ordinal in range(count.value):
        device, context = ctypes.c_int(), ctypes.c_void_p()
        status = status or cuda.cuDeviceGet(ctypes.byref(device), ctypes.c_int(ordinal))
        status = status or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        status = status or cuda.cuDevicePrimaryCtxRelease_v2(device)
    return {"cuda": status, "cuda_devices": count.value}


if __name__ == "__main__":
    print(json.dumps({**ask_nvml(), **ask_cuda()}))
