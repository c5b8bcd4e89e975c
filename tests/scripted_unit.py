"""What the tests' units run, as host/unit.py does it, with the words of JOB/script in place of a real stage.

`python scripted_unit.py run|ended STAGE JOB`. FINETUNED_SPOOL names the spool.
"""

import os
import sys
from pathlib import Path

import scripted_worker
from finetuned.core.job import Launch, Stage
from finetuned.host import unit
from finetuned.host.jobdir import JobDir
from finetuned.host.spool import Spool

SYSTEMCTL = ("systemctl", "--user")


def command(job: JobDir, launch: Launch) -> list[str]:
    return scripted_worker.words(*(job.path / "script").read_text().split("\n"))(job, launch)


def main() -> None:
    verb, stage, job = sys.argv[1], Stage(sys.argv[2]), Spool(Path(os.environ["FINETUNED_SPOOL"])).get(sys.argv[3])
    assert job is not None
    if verb == "run":
        unit.run(stage, job, command)
    unit.ended(stage, job, os.environ, unit.was_asked_to_stop(unit.unit_name(stage, job.job), SYSTEMCTL))


if __name__ == "__main__":
    main()
