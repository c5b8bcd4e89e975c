"""Arguments and options that several verbs share."""

from typing import Annotated

import typer

from finetuned.core.job import Stage
from finetuned.ctl.jobs import complete_job

JobText = Annotated[
    str, typer.Argument(metavar="JOB", help="Any unambiguous part of a job's id or name.", autocompletion=complete_job)
]
JobTexts = Annotated[
    list[str],
    typer.Argument(metavar="JOB...", help="Any unambiguous part of a job's id or name.", autocompletion=complete_job),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on stdout, in the shape that docs/finetunectl.md gives.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")]
OfStage = Annotated[Stage | None, typer.Option("--stage", help="Of this stage.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a field, as in seed=7 or datasets.0.path=…; repeatable."),
]
JobName = Annotated[str | None, typer.Option("--name", help="The job's name, instead of the file's.")]
Wait = Annotated[bool, typer.Option("--wait", help="Follow the job to its end; exit 1 unless it succeeds.")]
