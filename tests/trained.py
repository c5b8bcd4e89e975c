"""Tuned tiny models that are about to be exported, each in a spool of its own; and a proof without a new process."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers

import tiny
from exports import LORA, a_plan, a_stage_run, a_whole_run
from finetuned.core.events import Exported
from finetuned.core.job import Stage
from finetuned.core.plan import FullTuning, LoraTuning, RunPlan
from finetuned.host.journal import read_events
from finetuned.host.stage import StageRun
from finetuned.train import fresh
from finetuned.train.export import export
from finetuned.train.proof import Proof, Task
from finetuned.train.verify import verify

STOPS = (2, 0)
"""<|im_end|>, and <|pad|> as a second one."""


class Trained:
    """A tuned model that is about to be exported in its own spool. Exporting uses it up; its logits are kept."""

    def __init__(self, spool: Path, base: Path, plan: RunPlan, network: Any):
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(base)
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
        self.logits = logits(self.network, self.rows)
        self.network.train()
        export(self.run, self.plan, self.network, self.tokenizer, step=12)
        return self

    def exported(self) -> Exported:
        return next(e for e in read_events(self.run.job.events_file(Stage.TRAIN)) if isinstance(e, Exported))


def a_lora_run(
    spool: Path, base: Path, dtype: torch.dtype = torch.float32, tuning: LoraTuning = LORA, **changes: Any
) -> Trained:
    """Every weight of the adapter is moved away from what it begins as."""
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=dtype)
    config = peft.LoraConfig(
        r=tuning.r,
        lora_alpha=tuning.alpha,
        target_modules=tuning.target_modules if isinstance(tuning.target_modules, str) else list(tuning.target_modules),
        use_dora=tuning.use_dora,
        use_rslora=tuning.use_rslora,
        modules_to_save=list(tuning.modules_to_save) or None,
        task_type="CAUSAL_LM",
    )
    network = peft.get_peft_model(model, config)
    for name, weight in network.named_parameters():
        if "lora_B" in name or "lora_embedding_A" in name:
            torch.nn.init.normal_(weight.data, std=0.3)
        elif weight.requires_grad:
            weight.data += 0.05 * torch.randn_like(weight)
    network.train()
    plan = a_plan(tuning, str(base), **{"chat_template": tiny.CHATML, "stop_token_ids": STOPS} | changes)
    return Trained(spool, base, plan, network)


def a_full_run(spool: Path, base: Path, **changes: Any) -> Trained:
    torch.manual_seed(1)
    network = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    network.config.use_cache = False
    for weight in network.parameters():
        weight.data += 0.05 * torch.randn_like(weight)
    network.train()
    plan = a_plan(FullTuning(), str(base), **{"chat_template": tiny.CHATML, "stop_token_ids": STOPS} | changes)
    return Trained(spool, base, plan, network)


@torch.no_grad()
def logits(model: Any, rows: Sequence[Sequence[int]]) -> torch.Tensor:
    model.eval()
    return torch.cat([model(input_ids=torch.tensor([row]), use_cache=False).logits[0].float() for row in rows])


@contextmanager
def proofs_in_this_process() -> Iterator[None]:
    """What the fresh process computes, computed here: for tests whose promise is not that it is a fresh one."""

    def prove(run: StageRun, task: Task) -> tuple[Proof, ...]:
        run.stop.raise_if_set()
        with torch.no_grad():
            return tuple(verify(Task.model_validate_json(task.model_dump_json())))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fresh, "prove", prove)
        yield
