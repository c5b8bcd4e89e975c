"""From a row of data to a model that says it and stops: prepare, worker and fresh process, nothing left out."""

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers

import tiny
from finetuned.core.events import Started
from finetuned.core.job import Stage
from finetuned.core.plan import Device, Machine
from finetuned.core.planning import make_plan
from finetuned.host.jobdir import JobDir, write_record
from finetuned.host.journal import Journal
from finetuned.host.machine import boot_id
from finetuned.host.stage import StageRun, now
from finetuned.train.main import train
from preparing import InProcess, a_chat

pytestmark = pytest.mark.slow
ANSWER = "gives 5 ; the next is 6 ."
TURN_END = "<|im_end|>"
A_LAPTOP = Machine(
    devices=(Device(id="cpu:0", name="CPU", memory_bytes=16 << 30, has_bf16=False),),
    memory_bytes=16 << 30,
    free_disk_bytes=1 << 40,
)


def a_base(folder: Path, **tokenizer_changes: str) -> Path:
    """A base that ends sequences with <|start|>, where ChatML ends turns with another token."""
    tiny.build_model(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"eos_token": "<|start|>", **tokenizer_changes})
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(len(tokenizer))
    model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def run_job(root: Path, base: Path, **fields: Any) -> JobDir:
    """The whole road of one job in this process, but for the fresh one that proves it."""
    prepared = InProcess(root, base)
    spec = prepared.spec(
        a_chat("add 2 and 3", ANSWER),
        learning_rate=5e-3,
        max_steps=60,
        global_batch_size=1,
        lr_scheduler_type="constant",
        warmup_steps=0,
        val_set_size=0,
        device="cpu",
        **fields,
    )
    facts = prepared.prepare(spec)
    job = JobDir(root / "spool" / "active" / prepared.runs[-1].job.job)
    job.path.parent.mkdir()
    prepared.runs[-1].job.path.rename(job.path)
    write_record(job.plan_file, make_plan(spec, facts, A_LAPTOP))
    run = StageRun(job, Stage.TRAIN, launch=1, attempt=1, journal=Journal(job.events_file(Stage.TRAIN)))
    run.say(Started(time=now(), launch=1, attempt=1, pid=1, boot_id=boot_id()))
    train(run)
    return job


def answer_of(folder: Path) -> str:
    """What a user gets who loads the folder and asks, end marks included."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    if folder.name == "adapter":
        model: Any = peft.AutoPeftModelForCausalLM.from_pretrained(folder)
        more: dict[str, Any] = {"generation_config": transformers.GenerationConfig.from_pretrained(folder)}
    else:
        model, more = transformers.AutoModelForCausalLM.from_pretrained(folder), {}
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "add 2 and 3"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    answer = model.generate(**prompt, max_new_tokens=80, **more)
    text: str = tokenizer.decode(answer[0, prompt["input_ids"].shape[1] :], skip_special_tokens=False)
    return text


@pytest.mark.parametrize(
    "tokenizer",
    [{}, {"pad_token": "<|start|>"}, {"eos_token": TURN_END, "pad_token": TURN_END}],
    ids=["the terminator is not eos", "and pad is eos", "the terminator is eos and pad"],
)
def test_an_overfit_row_is_answered_and_the_answer_ends_with_the_turn(
    tmp_path: Path, tokenizer: dict[str, str]
) -> None:
    base = a_base(tmp_path / "base", **tokenizer)
    kind = "full" if not tokenizer else "lora"
    job = run_job(tmp_path, base, finetuning_type=kind, export={"merge": kind == "lora"})
    folders = ["model"] if kind == "full" else ["adapter", "merged"]
    torch.manual_seed(0)
    for folder in folders:
        assert answer_of(job.artifacts / folder) == ANSWER + TURN_END, folder
    assert "ended with a stop" in (job.artifacts / "report.html").read_text()
