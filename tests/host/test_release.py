"""Which interpreter runs stages."""

import sys
from pathlib import Path

from finetuned.host.release import stage_python


def test_stages_run_in_the_worker_environment_that_stands_beside_the_daemons(tmp_path: Path):
    release = tmp_path / "releases" / "1.2.3"
    for name in ("daemon", "worker"):
        (release / name / "bin").mkdir(parents=True)
        (release / name / "bin" / "python").touch()
    (tmp_path / "current").symlink_to("releases/1.2.3")
    through_the_link = stage_python(str(tmp_path / "current" / "daemon"))
    assert through_the_link == str(release / "worker" / "bin" / "python")


def test_where_there_is_one_environment_it_runs_stages_too(tmp_path: Path):
    assert stage_python(str(tmp_path / "venv")) == sys.executable
