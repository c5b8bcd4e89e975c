"""A plan, prepared rows and an opened attempt, built directly: what the tests of the worker start from."""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from finetuned.core.events import Event, Started
from finetuned.core.job import Launch, Stage
from finetuned.core.plan import (
    Batches,
    Cadence,
    DataFacts,
    DataSource,
    FreezeTuning,
    FullTuning,
    LoraTuning,
    ModelFacts,
    Optimizer,
    Quantization,
    RunPlan,
    Schedule,
    Selection,
)
from finetuned.host.jobdir import JobDir, write_record
from finetuned.host.journal import Journal, read_events
from finetuned.host.machine import boot_id
from finetuned.host.stage import StageRun, now

PREPARED = "rows"


class Killed(BaseException):
    """Stands for a SIGKILL: nothing in the worker answers it."""


class WatchedJournal(Journal):
    """Tells the test of each event, after it is written."""

    def __init__(self, path: Path, watch: Callable[[Event], None] | None):
        super().__init__(path)
        self._watch = watch

    def append(self, event: Event) -> None:
        super().append(event)
        if self._watch is not None:
            self._watch(event)


def a_job(spool: Path, plan: RunPlan, name: str = "20261130-221500-job-00000001") -> JobDir:
    """An active job with a plan and one launch."""
    job = JobDir(spool / "active" / name)
    job.path.mkdir(parents=True)
    write_record(job.plan_file, plan)
    add_launch(job)
    return job


def add_launch(job: JobDir) -> int:
    job.launches.mkdir(exist_ok=True)
    number = len(job.read_launches()) + 1
    launch = Launch(
        number=number, stage=Stage.TRAIN, devices=("cpu:0",), boot_id=boot_id(), release=sys.executable, asked=now()
    )
    write_record(job.launch_file(number), launch)
    return number


def open_attempt(job: JobDir, watch: Callable[[Event, StageRun], None] | None = None) -> StageRun:
    """A StageRun in this process, without the log and signals of a real one. `watch` sees each event after it."""
    attempts = sum(isinstance(event, Started) for event in read_events(job.events_file(Stage.TRAIN)))
    journal = WatchedJournal(job.events_file(Stage.TRAIN), None)
    run = StageRun(job, Stage.TRAIN, launch=attempts + 1, attempt=attempts + 1, journal=journal)
    run.say(Started(time=now(), launch=run.launch, attempt=run.attempt, pid=1, boot_id=boot_id()))
    if watch is not None:
        journal._watch = lambda event: watch(event, run)
    return run


def events_of(job: JobDir, kind: type[Any]) -> list[Any]:
    return [event for event in read_events(job.events_file(Stage.TRAIN)) if isinstance(event, kind)]


def write_rows(path: Path, rows: Sequence[tuple[Sequence[int], Sequence[bool]]], source: str = "data.jsonl") -> None:
    """Rows as prepare writes them: an Arrow IPC file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(
        {
            "input_ids": pa.array([list(ids) for ids, _ in rows], pa.list_(pa.int32())),
            "is_target": pa.array([list(targets) for _, targets in rows], pa.list_(pa.bool_())),
            "source": [f"{source}:{line}" for line in range(1, len(rows) + 1)],
        }
    )
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)


def random_rows(count: int, *, seed: int = 0, vocabulary: int = 250) -> list[tuple[list[int], list[bool]]]:
    """Rows of 5 to 30 tokens whose later part is learned."""
    import numpy as np

    generator = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        tokens = int(generator.integers(5, 31))
        prompt = int(generator.integers(1, tokens - 1))
        ids = [int(i) for i in generator.integers(3, vocabulary, tokens)]
        rows.append((ids, [place >= prompt for place in range(tokens)]))
    return rows


def a_plan(model: Path, spool: Path, **changes: Any) -> RunPlan:
    """A plan over 22 training and 9 evaluation rows (written to the spool's store): 12 steps of 4 examples, LoRA, fp32.

    Changes name fields of any part of the plan; `rows` and `eval_rows` replace the rows.
    """
    train = changes.pop("rows", None) or random_rows(22)
    evaluation = changes.pop("eval_rows", random_rows(9, seed=1))
    folder = spool / "store" / "prepared" / PREPARED
    write_rows(folder / "train.arrow", train)
    if evaluation:
        write_rows(folder / "eval.arrow", evaluation, "eval.jsonl")
    (folder / "probes.json").write_text("[]")
    size, seed = changes.pop("global_batch_size", 4), changes.pop("seed", 42)
    lengths = sorted(len(ids) for ids, _ in train)
    parts: dict[str, Any] = {
        "tuning": LoraTuning(r=4, alpha=8, dropout=0.0, target_modules="all-linear"),
        "model": _model_facts(model),
        "data": DataFacts(
            prepared=PREPARED,
            sources=(DataSource(path="/data.jsonl", sha256="0" * 64, rows=len(train) + len(evaluation)),),
            train_rows=len(train),
            eval_rows=len(evaluation),
            train_tokens=sum(lengths),
            train_target_tokens=sum(sum(targets) for _, targets in train),
            eval_tokens=sum(len(ids) for ids, _ in evaluation),
            eval_target_tokens=sum(sum(targets) for _, targets in evaluation),
            longest_tokens=lengths[-1],
            p50_tokens=lengths[len(lengths) // 2],
            p99_tokens=lengths[-1],
            max_seq_length=64,
        ),
        "optimizer": Optimizer(
            learning_rate=1e-2,
            weight_decay=0.01,
            adam_beta1=0.9,
            adam_beta2=0.999,
            adam_epsilon=1e-8,
            max_grad_norm=1.0,
        ),
        "schedule": Schedule(lr_scheduler_type="cosine", warmup_steps=2, total_steps=12),
        "batches": Batches(
            global_batch_size=size,
            steps_per_epoch=-(-len(train) // size),
            micro_batch_tokens=48,
            eval_micro_batch_tokens=64,
            seed=seed,
        ),
        "cadence": Cadence(logging_steps=1, eval_steps=4, save_steps=3, save_minutes=0, save_total_limit=2),
        "selection": Selection(load_best=True, early_stopping_patience=0, early_stopping_threshold=0.0),
    }
    for name, part in parts.items():
        own = {key: changes.pop(key) for key in list(changes) if hasattr(part, key) and key not in parts}
        parts[name] = part.model_copy(update=own)
    whole = {"method": "sft", "seed": seed, "precision": "fp32", "gradient_checkpointing": False, "device": "cpu"}
    return RunPlan.model_validate(whole | {"digest": "d" * 64} | parts | changes)


def full_tuning() -> FullTuning:
    return FullTuning()


def lora(dropout: float = 0.0, **changes: Any) -> LoraTuning:
    return LoraTuning(**{"r": 4, "alpha": 8, "dropout": dropout, "target_modules": "all-linear"} | changes)


def qlora(kind: Literal["nf4", "fp4", "int8"], **changes: Any) -> LoraTuning:
    return lora(**{"quantization": Quantization(kind=kind, double_quant=kind != "int8")} | changes)


def freeze(*patterns: str) -> FreezeTuning:
    return FreezeTuning(unfrozen_parameters=patterns)


def _model_facts(model: Path) -> ModelFacts:
    return ModelFacts(
        name="tiny",
        path=str(model),
        files=(),
        architecture="TinyForCausalLM",
        parameters=0,
        weight_bytes=0,
        vocab_size=600,
        hidden_size=64,
        layers=2,
        max_position_embeddings=512,
        tied_embeddings=False,
    )


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
