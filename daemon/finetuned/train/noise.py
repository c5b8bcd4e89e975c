"""Lines of libraries that say nothing to anybody and would fill a job's log."""

import logging

_NOTHING_TO_SAY = {
    # Once for each multiplication with 8-bit weights: 308 lines in a run of ten steps.
    "bitsandbytes.autograd._functions": "MatMul8bitLt: inputs will be cast",
    # A faster kernel that would have to come from the hub, while the worker runs.
    "bitsandbytes.backends.cpu.ops": "Failed to load CPU gemm_4bit_forward from kernels-community",
}


def drop_known_noise() -> None:
    """Drop these lines from now on; whatever else the same libraries have to say stays."""
    for name, beginning in _NOTHING_TO_SAY.items():
        logging.getLogger(name).addFilter(_NotBeginningWith(beginning))


class _NotBeginningWith(logging.Filter):
    def __init__(self, beginning: str):
        super().__init__()
        self._beginning = beginning

    def filter(self, record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(self._beginning)
