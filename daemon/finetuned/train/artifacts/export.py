"""What the submitter gets: weights, tokenizer, card, samples and report, written aside, proven, then named `artifacts`.

A directory of that name is whole and proven. An export that fails or is stopped leaves nothing else, and a kill at any
moment at most JOB/.export, which the next export removes first.
"""

import gc
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetuned.core.events import Exported, Progressed
from finetuned.core.job import Stage
from finetuned.core.plan import FreezeTuning, LoraTuning, RunPlan
from finetuned.host.files import rename_durably, sync_directory
from finetuned.host.journal import read_events
from finetuned.host.stage import StageRun, now
from finetuned.host.store import Store
from finetuned.train.artifacts.gguf import Gguf, convert
from finetuned.train.artifacts.probes import Probe, read_probes
from finetuned.train.artifacts.samples import Sample, answers_after, answers_before, in_pairs, stops_of
from finetuned.train.report.model_card import write_model_card
from finetuned.train.report.page import Report, write_page, write_report

if TYPE_CHECKING:
    import torch

    from finetuned.train.artifacts.proof import Task

_log = logging.getLogger(__name__)

_PARTS = 5
_ANSWERING_PROBE_TOKENS = 512
"""A longer probe is not asked of the exported model: it would only take time."""


@dataclass(frozen=True)
class _Folders:
    """JOB/.export and what is in it."""

    scratch: Path

    @property
    def artifacts(self) -> Path:
        """Renamed to JOB/artifacts when whole and proven."""
        return self.scratch / "artifacts"

    @property
    def outdated(self) -> Path:
        return self.scratch / "outdated"

    @classmethod
    def emptied(cls, scratch: Path) -> "_Folders":
        shutil.rmtree(scratch, ignore_errors=True)
        folders = cls(scratch)
        for folder in (scratch, folders.artifacts):
            folder.mkdir(mode=0o750)
        return folders


def export(run: StageRun, plan: RunPlan, model: Any, tokenizer: Any, step: int) -> str:
    """Write JOB/artifacts/ from `model`, which holds the final weights of `step`: a PeftModel for LoRA, else the model.

    `model` is used up: its memory is given back before a fresh process loads what was written and compares it (see
    verify.py). Only then the directory gets its name, and an older artifacts/ gives way. Says *Exported*. At the very
    end a GGUF file is added where the plan has one; that it could not be made is what is returned, else "".
    Raises StageFailed where a trained weight is not finite or the exported model is not the trained one (no retry), or
    where that could not be told; StopRequested; OSError on a full disk.
    """
    run.enter("exporting")
    folders = _Folders.emptied(run.job.path / ".export")
    try:
        return _exported_from(run, plan, model, tokenizer, step, folders)
    finally:
        # Whatever it holds, a whole model perhaps, no other attempt would go on from it.
        shutil.rmtree(folders.scratch, ignore_errors=True)


def _exported_from(run: StageRun, plan: RunPlan, model: Any, tokenizer: Any, step: int, folders: _Folders) -> str:
    prepared = Store(run.job.spool / "store").prepared_dir(plan.data.prepared)
    probes = read_probes(prepared / "probes.json")
    with _answering(plan, model):
        task = _written(plan, model, tokenizer, folders, probes)
        _part_done(run, 1)
        after = answers_after(run, plan, model, tokenizer, probes)
        before = answers_before(run, plan, model, tokenizer, probes)
    release(model)
    if before is None:
        with _answering(plan, None):
            before = answers_before(run, plan, None, tokenizer, probes)
    _part_done(run, 2)
    report = _proven(run, plan, task, step, in_pairs(probes, before or (), after))
    _part_done(run, 3)
    _describe(report, folders.artifacts)
    _copy_touched_rows(prepared, folders.artifacts)
    _part_done(run, 4)
    _publish(folders, run.job.artifacts)
    _part_done(run, _PARTS)
    run.say(_exported(report, run.job.artifacts))
    return _with_gguf(run, plan, task, folders, report).failure


def release(model: Any) -> None:
    """Give back the memory of a model's weights, whoever else still names it; it cannot be used afterwards."""
    import torch

    for weight in model.parameters():
        weight.grad = None
        weight.data = weight.data.new_empty(0)
    for module in list(model.modules()):
        vars(module).clear()  # Buffers, and what quantized layers keep beside their weights.
        torch.nn.Module.__init__(module)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _written(plan: RunPlan, model: Any, tokenizer: Any, folders: _Folders, probes: Sequence[Probe]) -> "Task":
    """Save the trained weights, and measure what a process that loads them must find."""
    from finetuned.train.artifacts.proof import digests_of, logits_of, require_finite, write_logits
    from finetuned.train.artifacts.save import adapter_weights, save_adapter, save_model, save_tokenizer

    dtype = _weights_dtype(plan)
    if isinstance(plan.tuning, LoraTuning):
        weights = adapter_weights(model)
        require_finite(weights)
        folder = folders.artifacts / "adapter"
        save_adapter(plan, model, folder)
        digests = {
            name: digest for each in weights.items() for name, digest in digests_of([each], each[1].dtype).items()
        }
    else:
        folder = folders.artifacts / "model"
        digests = save_model(plan, model, tokenizer, folder, dtype)
    save_tokenizer(plan, model, tokenizer, folder)
    rows = [probe.row(tokenizer) for probe in probes]
    write_logits(logits_of(model, rows), folders.scratch)
    return _task(plan, tokenizer, folders, probes, rows, digests, dtype)


def _task(
    plan: RunPlan,
    tokenizer: Any,
    folders: _Folders,
    probes: Sequence[Probe],
    rows: Sequence[Sequence[int]],
    digests: dict[str, str],
    dtype: "torch.dtype",
) -> "Task":
    from finetuned.train.artifacts.proof import EXACT, ROUNDED, Chat, Task, Text

    is_adapter = isinstance(plan.tuning, LoraTuning)
    # A whole model was trained in fp32 and computes in it; what stays frozen was held in the plan's precision.
    computes_in_bf16 = plan.precision == "bf16" and plan.tuning.kind != "full"
    is_rounded = computes_in_bf16 or not (is_adapter or _name_of(dtype) == "float32")
    texts = [tokenizer.decode(probe.prompt_ids, skip_special_tokens=False) for probe in probes]
    return Task(
        plan=plan,
        artifacts=str(folders.artifacts),
        scratch=str(folders.scratch),
        proves="adapter" if is_adapter else "model",
        merges_into=str(folders.artifacts / "merged") if is_adapter and plan.exports.merge else None,
        weights=digests,
        compute_dtype="bfloat16" if computes_in_bf16 else "float32",
        tolerance=ROUNDED if is_rounded else EXACT,
        rows=tuple(tuple(row) for row in rows),
        prompt=next((probe.prompt_ids for probe in probes if len(probe.prompt_ids) <= _ANSWERING_PROBE_TOKENS), ()),
        chats=tuple(
            Chat(messages=probe.messages, tools=probe.tools, ids=probe.prompt_ids, chat_template=probe.chat_template)
            for probe in probes
            if probe.messages is not None
        ),
        texts=tuple(Text(text=text, ids=tokenizer.encode(text, add_special_tokens=False)) for text in texts),
        stops=tuple(stops_of(plan, tokenizer)),
    )


def _proven(run: StageRun, plan: RunPlan, task: "Task", step: int, samples: tuple[Sample, ...]) -> Report:
    from finetuned.train.artifacts.fresh import prove

    proofs = prove(run, task)
    merged = next((proof for proof in proofs if proof.folder == "merged"), None)
    if merged is not None and merged.tolerance is None:
        run.notice(
            f"merged/ is merged into the 16-bit base, and the adapter was trained on a quantized one: logits differ by "
            f"{merged.relative_difference:.2g} of the largest, mean KL divergence {merged.mean_kl:.2g} nats"
        )
    return Report(
        job=run.job.job,
        plan=plan,
        step=step,
        events=tuple(read_events(run.job.events_file(Stage.TRAIN))),
        samples=samples,
        proofs=proofs,
        written=now(),
    )


def _exported(report: Report, artifacts: Path) -> Exported:
    files = sorted(str(path.relative_to(artifacts)) for path in artifacts.rglob("*") if path.is_file())
    merged = report.merged
    return Exported(
        time=now(),
        step=report.step,
        files=tuple(files),
        largest_logit_difference=report.proof.largest_logit_difference,
        merge_drift=None if merged is None else merged.relative_difference,
    )


def _with_gguf(run: StageRun, plan: RunPlan, task: "Task", folders: _Folders, report: Report) -> Gguf:
    """The last step: nothing in it can hurt what is published. Raises StopRequested alone."""
    if plan.exports.gguf == "none":
        return Gguf()
    gguf = convert(run, plan, task, run.job.artifacts, folders.scratch / "gguf")
    run.notice(gguf.notice)
    try:
        write_page(replace(report, gguf=gguf), run.job.artifacts)
    except OSError:
        _log.exception("report.html does not tell of the GGUF file")
    return gguf


def _describe(report: Report, artifacts: Path) -> None:
    write_report(report, artifacts)
    for proof in report.proofs:
        write_model_card(report, artifacts / proof.folder, proof)


def _copy_touched_rows(prepared: Path, artifacts: Path) -> None:
    """The list of every row that was dropped or cut, where there is one."""
    touched = prepared / "touched.jsonl"
    if touched.is_file() and touched.stat().st_size:
        shutil.copyfile(touched, artifacts / "touched-rows.jsonl")


def _weights_dtype(plan: RunPlan) -> "torch.dtype":
    """How the trained weights are stored: an adapter in fp32, as trained; a whole model in its base's own type."""
    import torch
    from transformers import AutoConfig

    if isinstance(plan.tuning, LoraTuning):
        return torch.float32
    dtype = AutoConfig.from_pretrained(plan.model.path).dtype
    return dtype if isinstance(dtype, torch.dtype) and dtype.is_floating_point else torch.float32


def _name_of(dtype: "torch.dtype") -> str:
    return str(dtype).removeprefix("torch.")


@contextmanager
def _answering(plan: RunPlan, model: Any) -> Iterator[None]:
    """While open, `model` is in evaluation mode, records no gradients, and computes as it was trained."""
    import torch

    if model is not None:
        model.eval()
    with torch.no_grad(), _in_mixed_types(plan, model):
        yield


def _in_mixed_types(plan: RunPlan, model: Any) -> AbstractContextManager[Any]:
    """Parts of a bf16 base that were trained whole are fp32, and only autocast lets one feed the other."""
    import torch

    has_whole_parts = isinstance(plan.tuning, FreezeTuning) or (
        model is not None and any("modules_to_save" in name for name, _ in model.named_parameters())
    )
    if plan.precision == "fp32" or not has_whole_parts:
        return nullcontext()
    return torch.autocast(plan.device, dtype=torch.bfloat16)


def _part_done(run: StageRun, number: int) -> None:
    run.say(Progressed(time=now(), activity="exporting", done=number, total=_PARTS, unit="parts"))
    run.stop.raise_if_set()


def _publish(folders: _Folders, artifacts: Path) -> None:
    """Make what was written durable and name it `artifacts`; what had that name is removed after."""
    for folder, _folders, files in os.walk(folders.artifacts):
        for name in files:
            _sync_file(Path(folder, name))
        sync_directory(Path(folder))
    if artifacts.exists():
        os.rename(artifacts, folders.outdated)
    rename_durably(folders.artifacts, artifacts)
    shutil.rmtree(folders.outdated, ignore_errors=True)


def _sync_file(path: Path) -> None:
    """On disk, and readable by the group whatever mode a library created it with."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fchmod(descriptor, 0o640)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
