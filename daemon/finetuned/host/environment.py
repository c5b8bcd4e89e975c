"""What a stage finds in its environment: the devices of its launch, and nothing that was meant for its supervisor."""

from collections.abc import Mapping

from finetuned.core.job import Launch, Stage
from finetuned.host.settings import Settings

_MEANT_FOR_THE_DAEMON = (
    *("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "MAINPID"),
    *("INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID", "MEMORY_PRESSURE_WATCH", "MEMORY_PRESSURE_WRITE"),
)
"""A stage that took these for its own would say that the daemon is ready, or write its log under the daemon's name."""


def of_launch(launch: Launch, settings: Settings) -> dict[str, str]:
    """What is set for a stage, whoever starts it."""
    gpus = [device.removeprefix("cuda:") for device in launch.devices if device.startswith("cuda:")]
    # NVML, which named the devices, counts by bus; CUDA counts the fastest first unless told otherwise.
    chosen = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(gpus)}
    if settings.cpu_threads is not None:
        chosen["OMP_NUM_THREADS"] = str(settings.cpu_threads)
    return chosen


def inherited(stage: Stage, daemons: Mapping[str, str]) -> dict[str, str]:
    """What a stage that the daemon itself starts gets of the daemon's environment; credentials only to prepare."""
    left_out = set(_MEANT_FOR_THE_DAEMON)
    if stage is not Stage.PREPARE:
        left_out.add("CREDENTIALS_DIRECTORY")
    return {name: value for name, value in daemons.items() if name not in left_out}
