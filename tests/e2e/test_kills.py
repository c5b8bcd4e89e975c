"""Everything is killed at random, 25 times: every job ends in done/, none is run twice at once, no bit is lost."""

import os
import random
import signal
import time

import pytest
from safetensors.torch import load_file

from daemons import Daemon, a_spec
from finetuned.core.events import Checkpointed, Finished, Restored, Started, Stepped
from finetuned.core.job import Phase, Stage
from finetuned.host.jobdir import JobDir
from finetuned.host.journal import read_events
from until import until

pytestmark = pytest.mark.slow

SEED = 20261130
ROUNDS = 25
# Few rows and many saves: a kill falls into loading, a step, a checkpoint's write, evaluation or export alike.
SPEC = {"num_train_epochs": 6, "save_steps": 2, "val_set_size": 0.2, "eval_steps": 12}


@pytest.mark.timeout(1500)  # A job that is killed five times before its first checkpoint pauses for minutes.
def test_whatever_is_killed_every_job_ends_done_with_the_weights_of_an_undisturbed_run(a_daemon, home, tmp_path):
    rng = random.Random(SEED)
    daemon = a_daemon(cpu_slots=2)
    daemon.drop(a_spec(home, **SPEC), "undisturbed.yaml")
    expected = weights_of(daemon.wait_for("undisturbed", Phase.DONE))
    victims: list[str] = []
    kills = 0
    while kills < ROUNDS:
        while len(daemon.jobs(Phase.QUEUED, Phase.ACTIVE)) < 2:
            victims.append(f"victim-{len(victims):02d}")
            daemon.drop(a_spec(home, **SPEC), f"{victims[-1]}.yaml")
            until(lambda: any(victims[-1] in job.job for job in daemon.jobs()))
        time.sleep(rng.uniform(0, 8))
        kills += kill_something(daemon, rng)
    for victim in victims:
        job = daemon.wait_for(victim, Phase.DONE, 1000)
        assert_steps_follow_each_other(job)
        assert weights_of(job) == expected
    assert len(daemon.jobs()) == len(victims) + 1


def kill_something(daemon: Daemon, rng: random.Random) -> bool:
    """SIGKILL the daemon, or one process of a stage, wherever they are; whether there was something to kill."""
    if rng.random() < 0.3:
        daemon.kill()
        daemon.start()
        return True
    victims = daemon.processes("finetuned.train" if rng.random() < 0.8 else "finetuned.")
    if not victims:
        return False
    try:
        os.kill(rng.choice(victims), signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def weights_of(job: JobDir) -> dict[str, bytes]:
    tensors = load_file(job.artifacts / "adapter" / "adapter_model.safetensors")
    return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}


def assert_steps_follow_each_other(job: JobDir) -> None:
    """One worker at a time: from each *Restored* on, steps go up by one, and the last attempt finishes."""
    last = None
    saved = {0}
    for event in read_events(job.events_file(Stage.TRAIN)):
        match event:
            case Started():
                last = None
            case Restored(step=step):
                assert step in saved, f"restored a step {step} that was never saved"
                last = step
            case Stepped(step=step):
                assert last is not None, "stepped before anything was restored"
                assert step == last + 1, f"step {step} follows step {last}: two workers?"
                last = step
            case Checkpointed(step=step):
                saved.add(step)
    endings = [e for e in read_events(job.events_file(Stage.TRAIN)) if isinstance(e, Finished)]
    assert len(endings) == 1


def test_a_machine_that_went_down_and_came_up_goes_on_from_the_checkpoint(a_daemon, home):
    """Power is cut: everything dies at once, and what is on disk is all there is."""
    daemon = a_daemon()
    daemon.drop(a_spec(home, **SPEC | {"num_train_epochs": 12}), "powercut.yaml")
    daemon.wait_for_event("powercut", Checkpointed)
    daemon.kill()
    for pid in daemon.processes():
        os.kill(pid, signal.SIGKILL)
    until(lambda: not daemon.processes())
    daemon.start()
    job = daemon.wait_for("powercut", Phase.DONE)
    assert_steps_follow_each_other(job)
    restored = [e.step for e in read_events(job.events_file(Stage.TRAIN)) if isinstance(e, Restored)]
    assert restored[0] == 0 < restored[1]
