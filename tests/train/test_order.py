"""Which rows a step sees: every row once an epoch, in the same order whatever happens in between."""

from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import pytest
import torch

from finetuned.core.events import Event, Stepped
from finetuned.core.plan import RunPlan
from finetuned.host.jobdir import JobDir
from finetuned.host.stage import StageRun
from recording import RecordingNetwork, a_quick_plan, named_rows, recording_model, train
from training import Killed, a_job, events_of

ROWS = 22
STEPS = 10
"""Of 6 rows: four steps an epoch, the last of 4 rows; so two borders, and an end in the middle of an epoch."""


class Seen:
    """The rows of each step's micro-batches, as the network was shown them; of a repeated step every time."""

    def __init__(self) -> None:
        self.of_step: dict[int, list[list[list[int]]]] = {}
        self.calls = 0

    def attempt(self, job: JobDir, plan: RunPlan, kill_at_call: int) -> None:
        """One attempt, killed when the network is called for the n-th time. Raises Killed."""
        self.calls = 0

        def look() -> None:
            self.calls += 1
            if self.calls == kill_at_call:
                raise Killed

        model = recording_model(plan.data.train_rows, look)
        network: RecordingNetwork = model.network

        def note(event: Event, _run: StageRun) -> None:
            if isinstance(event, Stepped):
                self.of_step.setdefault(event.step, []).append(network.shown.copy())
                network.shown.clear()

        train(job, plan, model, note)


def _flat(parts: Iterable[list[int]]) -> list[int]:
    return list(chain.from_iterable(parts))


def test_rows_after_a_kill_anywhere_are_those_of_the_run_that_nobody_disturbed(spool: Path):
    """Also at the borders of epochs, and with several rows in a micro-batch."""
    plan = a_quick_plan(spool, ROWS, global_batch_size=6, total_steps=STEPS, eval_steps=0, save_steps=3)
    calm = Seen()
    calm.attempt(a_job(spool, plan, "undisturbed"), plan, kill_at_call=0)
    in_order = [_flat(calm.of_step[step][0]) for step in range(1, STEPS + 1)]
    assert sorted(_flat(in_order[:4])) == sorted(_flat(in_order[4:8])) == list(range(ROWS))
    assert in_order[:4] != in_order[4:8]
    assert any(len(rows) > 1 for times in calm.of_step.values() for rows in times[0])
    repeated = 0
    for call in range(1, calm.calls + 1):
        job, killed = a_job(spool, plan, f"killed-{call}"), Seen()
        with pytest.raises(Killed):
            killed.attempt(job, plan, kill_at_call=call)
        killed.attempt(job, plan, kill_at_call=0)
        assert sorted(killed.of_step) == list(range(1, STEPS + 1))
        for step, times in killed.of_step.items():
            assert all(rows == calm.of_step[step][0] for rows in times), f"step {step}, killed at call {call}"
            repeated += len(times) > 1
    assert repeated > STEPS, "kills cost no steps: there was nothing to test"


def test_left_over_rows_of_an_epoch_are_a_batch_of_their_own_with_the_mean_over_its_own_targets(spool: Path):
    rows = named_rows(7)
    plan = a_quick_plan(
        spool, 7, global_batch_size=4, total_steps=4, eval_steps=0, learning_rate=0.0, micro_batch_tokens=12
    )
    assert plan.batches.steps_per_epoch == 2
    seen, job = Seen(), a_job(spool, plan)
    seen.attempt(job, plan, kill_at_call=0)
    batches = [_flat(seen.of_step[step][0]) for step in (1, 2, 3, 4)]
    assert [len(batch) for batch in batches] == [4, 3, 4, 3]
    for epoch in (batches[:2], batches[2:]):
        assert sorted(_flat(epoch)) == list(range(7))
    # With a rate of 0 the weights stay as they were, so that each step's loss can be had from the rows alone.
    network = recording_model(7).network
    for event, batch in zip(events_of(job, Stepped), batches, strict=True):
        assert event.micro_batches > 1
        losses = []
        for row in batch:
            ids = torch.tensor([rows[row][0]])
            logits = network(input_ids=ids, logits_to_keep=torch.arange(ids.shape[1] - 1)).logits[0]
            losses += torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none").tolist()
        assert event.target_tokens == len(losses)
        assert event.loss == pytest.approx(sum(losses) / len(losses), rel=1e-5)
