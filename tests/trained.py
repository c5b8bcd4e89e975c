"""Tuned tiny models that are about to be exported, each in a spool of its own; and a proof without a new process."""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import tiny
from exports import LORA, a_plan, a_stage_run, a_whole_run
from finetuned.core.events import Exported
from finetuned.core.job import Stage
from finetuned.core.plan import FreezeTuning, FullTuning, LoraTuning, RunPlan
from finetuned.host.journal import read_events
from finetuned.host.stage import StageRun
from finetuned.train.artifacts import fresh
from finetuned.train.artifacts.export import export
from finetuned.train.artifacts.proof import Proof, Task
from finetuned.train.artifacts.verify import verify
from finetuned.train.fit import build_model
from finetuned.train.model.load import load_tokenizer
from finetuned.train.report import chart

STOPS = (2, 0)
"""<|im_end|>, and <|pad|> as a second one."""


class Trained:
    """A tuned model that is about to be exported in its own spool. Exporting uses it up; its logits are kept."""

    def __init__(self, spool: Path, plan: RunPlan, network: Any):
        self.tokenizer = load_tokenizer(plan)
        self.plan, self.network = plan, network
        self.chats = [row["messages"][:1] for row in tiny.chat_rows(2)]  # type: ignore[index]
        self.rows = [
            self.tokenizer.apply_chat_template(chat, chat_template=tiny.CHATML, add_generation_prompt=True)["input_ids"]
            for chat in self.chats
        ]
        self.probes: list[dict[str, Any]] = [
            {"prompt": f"add {i}", "prompt_ids": row, "reference": f"gives {i}", "messages": chat, "tools": None}
            for i, (row, chat) in enumerate(zip(self.rows, self.chats, strict=True))
        ]
        self.run: StageRun = a_stage_run(spool, plan, self.probes, a_whole_run())
        self.artifacts = self.run.job.artifacts
        self.logits = torch.empty(0)

    def export(self) -> "Trained":
        if self.plan.precision == "fp32":
            self.logits = logits(self.network, self.rows)
        self.network.train()
        export(self.run, self.plan, self.network, self.tokenizer, step=12)
        return self

    def rewrite_probes(self) -> None:
        prepared = self.run.job.spool / "store" / "prepared" / self.plan.data.prepared
        (prepared / "probes.json").write_text(json.dumps(self.probes))

    def exported(self) -> Exported:
        return next(e for e in read_events(self.run.job.events_file(Stage.TRAIN)) if isinstance(e, Exported))


def a_tuned_run(spool: Path, base: Path, tuning: LoraTuning | FullTuning | FreezeTuning, **changes: Any) -> Trained:
    """A model as the worker builds it, with every trained weight moved away from what it begins as."""
    plan = a_plan(tuning, str(base), **{"chat_template": tiny.CHATML, "stop_token_ids": STOPS} | changes)
    run = a_stage_run(spool, plan, [], [])
    model = build_model(run, plan)
    generator = torch.Generator().manual_seed(1)
    for name, weight in model.trainable.items():
        if "magnitude" not in name:
            size = 0.3 if "lora_B" in name else 0.05
            weight.data += size * torch.randn(weight.shape, generator=generator)
    return Trained(spool, plan, model.network)


def a_lora_run(spool: Path, base: Path, **changes: Any) -> Trained:
    return a_tuned_run(spool, base, LORA, **changes)


def a_full_run(spool: Path, base: Path, **changes: Any) -> Trained:
    return a_tuned_run(spool, base, FullTuning(), **changes)


def stored_as(dtype: str, base: Path, folder: Path) -> Path:
    """A copy of the model in `base` whose weights are stored in `dtype`."""
    shutil.copytree(base, folder)
    transformers.AutoModelForCausalLM.from_pretrained(base, dtype=getattr(torch, dtype)).save_pretrained(folder)
    return folder


def with_a_token_the_model_lacks(base: Path, folder: Path) -> Path:
    """A copy of the model in `base` whose tokenizer got a padding token, and whose embeddings were never resized."""
    shutil.copytree(base, folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    tokenizer.save_pretrained(folder)
    return folder


@torch.no_grad()
def logits(model: Any, rows: Sequence[Sequence[int]]) -> torch.Tensor:
    model.eval()
    return torch.cat([model(input_ids=torch.tensor([row]), use_cache=False).logits[0].float() for row in rows])


@contextmanager
def proofs_in_this_process(*, charts: bool = True) -> Iterator[None]:
    """What the fresh process computes, computed here: for tests whose promise is not that it is a fresh one.

    Without `charts` no curve is drawn, either.
    """

    def prove(run: StageRun, task: Task) -> tuple[Proof, ...]:
        run.stop.raise_if_set()
        with torch.no_grad():
            return tuple(verify(Task.model_validate_json(task.model_dump_json())))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fresh, "prove", prove)
        if not charts:
            patch.setattr(chart, "draw", lambda *_: b"")
        yield
