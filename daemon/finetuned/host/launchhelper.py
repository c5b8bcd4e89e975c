"""Starts and stops the units of stages for the daemon's user, as root: `python -m finetuned.host.launchhelper`.

For Ubuntu 22.04, whose polkit cannot allow that by a rule. systemd starts one for each connection to
/run/finetuned-launch.sock, which only that user may open. It reads one line, `start|stop STAGE JOB`, and answers `ok`
or one line that says why not. Nothing but these two verbs on the units of known stages can be asked for.
"""

import sys
from collections.abc import Sequence

from finetuned.core.job import Stage
from finetuned.host.unit import is_job_id, unit_name
from finetuned.host.unitlauncher import SYSTEMCTL, run_systemctl

_VERBS = ("start", "stop")
_LINE_BYTES = 256


def main() -> None:
    print(answer_to(sys.stdin.buffer.readline(_LINE_BYTES)), flush=True)


def answer_to(line: bytes, systemctl: Sequence[str] = SYSTEMCTL) -> str:
    """Do what the line asks, if it may be asked."""
    try:
        words = line.decode("ascii").removesuffix("\n").split(" ")
    except UnicodeDecodeError:
        words = []
    stages = [stage.value for stage in Stage]
    if not line.endswith(b"\n") or len(words) != 3 or words[0] not in _VERBS or words[1] not in stages:
        return f"not understood; one line is expected: start|stop {'|'.join(stages)} JOB"
    if not is_job_id(words[2]):
        return "not understood; the id of a job is made of a-z, 0-9 and -"
    return run_systemctl(systemctl, words[0], unit_name(Stage(words[1]), words[2])) or "ok"


if __name__ == "__main__":
    main()
