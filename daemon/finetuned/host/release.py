"""Which interpreter runs stages: on a server the daemon has a small environment of its own, and the worker another."""

import os
import sys
from pathlib import Path


def stage_python(prefix: str = sys.prefix) -> str:
    """The worker environment's interpreter where it stands beside ours (releases/VERSION/{daemon,worker}), else ours.

    The path names the release itself, not the link `current`: a running job keeps the release that it was started with.
    """
    worker = Path(os.path.realpath(prefix)).parent / "worker" / "bin" / "python"
    return str(worker) if worker.exists() else sys.executable
