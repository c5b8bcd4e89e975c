"""The worker: `python -m finetuned.train JOB_DIRECTORY LAUNCH`. A recipe; torch is imported only after *Started*."""

import os

from finetuned.core.events import Ending, Finished
from finetuned.core.job import Stage
from finetuned.core.plan import RunPlan
from finetuned.core.problems import StageFailed
from finetuned.host.jobdir import Unreadable
from finetuned.host.stage import StageRun, now, run_stage
from finetuned.train.noise import drop_known_noise

_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "MPLBACKEND": "Agg",
    # Threads that wait without sleeping took 2.5 times the CPU time where the machine was busy otherwise.
    "OMP_WAIT_POLICY": "passive",
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",  # What torch before 2.12 reads.
}


def main() -> None:
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    run_stage(Stage.TRAIN, train)


def train(run: StageRun) -> Ending:
    """Train what plan.json says and export it. Raises StageFailed, StopRequested and OSError: endings of the stage."""
    plan = read_plan(run)
    run.enter("loading")
    drop_known_noise()

    from finetuned.train.artifacts.export import export
    from finetuned.train.fit import fit
    from finetuned.train.memory import explained_memory_errors
    from finetuned.train.model.load import load_tokenizer

    with explained_memory_errors(plan):
        fitted = fit(run, plan)
        shortfall = export(run, plan, fitted.model.network, load_tokenizer(plan), fitted.weights_step)
    return Finished(time=now(), step=fitted.position.step, early_end=fitted.position.early_end, shortfall=shortfall)


def read_plan(run: StageRun) -> RunPlan:
    resubmit = f"finetunectl resubmit {run.job.job}"
    try:
        plan = run.job.read_plan()
    except Unreadable as error:
        raise StageFailed(str(error), retry=False, hint=resubmit) from error
    if plan is None:
        raise StageFailed(f"{run.job.plan_file} is missing", retry=False, hint=resubmit)
    if plan.schedule.total_steps < 1:
        raise StageFailed(
            f"the plan has {plan.schedule.total_steps} steps; there is nothing to train",
            retry=False,
            hint="raise num_train_epochs or max_steps, or give more rows",
        )
    return plan
