"""What the submitter gets: weights, tokenizer, card, samples and report, written aside, proven, then named `artifacts`.

A directory of that name is whole and proven. A kill at any moment leaves at most the directories that the next export
removes first.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetuned.core.events import Exported, Progressed
from finetuned.core.job import Stage
from finetuned.core.plan import LoraTuning, RunPlan
from finetuned.host.files import rename_durably, sync_directory
from finetuned.host.journal import read_events
from finetuned.host.stage import StageRun, now
from finetuned.host.store import Store
from finetuned.train.model_card import hub_name, write_model_card
from finetuned.train.probes import Probe, read_probes
from finetuned.train.report import Report, write_report
from finetuned.train.samples import before_and_after, pad_of, stops_of

if TYPE_CHECKING:
    import torch

    from finetuned.train.proof import Proof

_PARTS = 4
_SHARD_SIZE = "5GB"


def export(run: StageRun, plan: RunPlan, model: Any, tokenizer: Any, step: int) -> None:
    """Write JOB/artifacts/ from `model`, which holds the final weights of `step`: a PeftModel for LoRA, else the model.

    The weights are loaded from disk again and compared (see proof.py) before the directory gets its name; an older
    artifacts/ gives way only then. Says *Exported*. `model` is as it was afterwards, and so is torch's randomness.
    Raises StageFailed (no retry) when a trained weight is not finite or the exported model is not the trained one,
    StopRequested between the parts, OSError on a full disk.
    """
    run.enter("exporting")
    partial = _emptied(run.job.path / ".artifacts.partial")
    probes = read_probes(Store(run.job.spool / "store").prepared_dir(plan.data.prepared) / "probes.json")
    with _answering(model):
        dtype = _weights_dtype(plan)
        folder = _save(plan, model, tokenizer, partial, dtype)
        _part_done(run, 1)
        proof = _prove(plan, model, tokenizer, folder, probes, dtype)
        _part_done(run, 2)
        samples = before_and_after(run, plan, model, tokenizer, probes)
        _part_done(run, 3)
    report = Report(
        job=run.job.job,
        plan=plan,
        step=step,
        events=tuple(read_events(run.job.events_file(Stage.TRAIN))),
        samples=samples,
        proof=proof,
        weights_dtype=str(dtype).removeprefix("torch."),
        written=now(),
    )
    write_report(report, partial)
    write_model_card(report, folder)
    _part_done(run, 4)
    _publish(partial, run.job.artifacts)
    files = sorted(str(path.relative_to(run.job.artifacts)) for path in run.job.artifacts.rglob("*") if path.is_file())
    run.say(
        Exported(time=now(), step=step, files=tuple(files), largest_logit_difference=proof.largest_logit_difference)
    )


def _save(plan: RunPlan, model: Any, tokenizer: Any, into: Path, dtype: "torch.dtype") -> Path:
    """Write weights, configuration, tokenizer and generation settings to one folder that loads by itself."""
    if isinstance(plan.tuning, LoraTuning):
        folder = into / "adapter"
        _save_adapter(plan, model, folder)
    else:
        folder = into / "model"
        _save_model(plan, model, folder, dtype)
    template = plan.data.chat_template or tokenizer.chat_template
    tokenizer = deepcopy(tokenizer)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    _generation_settings(plan, model, tokenizer).save_pretrained(folder)
    return folder


def _save_adapter(plan: RunPlan, model: Any, folder: Path) -> None:
    from peft import PeftConfig, get_peft_model_state_dict

    from finetuned.train.proof import require_finite

    require_finite(get_peft_model_state_dict(model))
    # While saving, PEFT looks at the base's config: it must find the local folder, not ask the hub.
    model.peft_config[model.active_adapter].base_model_name_or_path = plan.model.path
    model.save_pretrained(str(folder))
    config = PeftConfig.from_pretrained(str(folder))
    config.base_model_name_or_path = hub_name(plan.model) or plan.model.path
    config.revision = plan.model.revision
    config.save_pretrained(str(folder))


def _save_model(plan: RunPlan, model: Any, folder: Path, dtype: "torch.dtype") -> None:
    from transformers import AutoConfig

    from finetuned.train.proof import require_finite

    weights = {name: weight.detach().to("cpu", dtype) for name, weight in model.state_dict().items()}
    require_finite(weights)
    model.save_pretrained(folder, state_dict=weights, max_shard_size=_SHARD_SIZE)
    # The base's own configuration: what training changed in memory (cache, dtype) is none of the user's business.
    config = AutoConfig.from_pretrained(plan.model.path)
    config.dtype = dtype
    config.save_pretrained(folder)


def _weights_dtype(plan: RunPlan) -> "torch.dtype":
    """How the trained weights are stored: an adapter in fp32, as trained; a whole model in its base's own type."""
    import torch
    from transformers import AutoConfig

    if isinstance(plan.tuning, LoraTuning):
        return torch.float32
    dtype = AutoConfig.from_pretrained(plan.model.path).dtype
    return dtype if isinstance(dtype, torch.dtype) and dtype.is_floating_point else torch.float32


def _generation_settings(plan: RunPlan, model: Any, tokenizer: Any) -> Any:
    settings = deepcopy(model.generation_config)
    settings.eos_token_id = stops_of(plan, tokenizer) or None
    settings.pad_token_id = pad_of(plan, tokenizer)
    # Else a loader may take them for a copy of the model's configuration and derive them anew, without these stops.
    settings._from_model_config = False
    return settings


def _prove(
    plan: RunPlan, model: Any, tokenizer: Any, folder: Path, probes: tuple[Probe, ...], dtype: "torch.dtype"
) -> "Proof":
    from finetuned.train.proof import prove_adapter, prove_model, prove_tokenizer

    prove_tokenizer(folder, tokenizer, plan.data.chat_template, [probe.prompt_ids for probe in probes])
    rows = [probe.row(tokenizer) for probe in probes]
    if isinstance(plan.tuning, LoraTuning):
        return prove_adapter(folder, model, rows, computes_in_bf16=plan.precision == "bf16")
    return prove_model(folder, model, rows, dtype)


@contextmanager
def _answering(model: Any) -> Iterator[None]:
    """While open, `model` is in evaluation mode and records no gradients; torch's randomness is given back after."""
    import torch

    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng():
            yield
    finally:
        model.train(was_training)


def _part_done(run: StageRun, number: int) -> None:
    run.say(Progressed(time=now(), activity="exporting", done=number, total=_PARTS, unit="parts"))
    run.stop.raise_if_set()


def _emptied(directory: Path) -> Path:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=0o750)
    return directory


def _publish(partial: Path, artifacts: Path) -> None:
    """Make `partial` durable and name it `artifacts`; what had that name is removed after."""
    for folder, _folders, files in os.walk(partial):
        for name in files:
            _sync_file(Path(folder, name))
        sync_directory(Path(folder))
    outdated = artifacts.with_name(".artifacts.outdated")
    shutil.rmtree(outdated, ignore_errors=True)
    if artifacts.exists():
        os.rename(artifacts, outdated)
    rename_durably(partial, artifacts)
    shutil.rmtree(outdated, ignore_errors=True)


def _sync_file(path: Path) -> None:
    """On disk, and readable by the group whatever mode a library created it with."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fchmod(descriptor, 0o640)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
