"""The straight road: a dropped file becomes a tuned model; wishes, restarts and bad input on the way."""

import os
import signal
import subprocess

import pytest

from daemons import RUN, a_spec
from finetuned.core.events import Checkpointed, FailedForGood, Finished, Restored, Started, Stepped, Stopped
from finetuned.core.job import Outcome, Phase, Stage
from finetuned.host.journal import read_events
from until import until

pytestmark = pytest.mark.slow


def events(job, kind):
    return [event for event in read_events(job.events_file(Stage.TRAIN)) if isinstance(event, kind)]


def test_a_dropped_job_file_becomes_a_tuned_model_that_loads_in_three_lines(a_daemon, home):
    daemon = a_daemon()
    daemon.drop(a_spec(home, val_set_size=0.2), "support tone.yaml")
    job = daemon.wait_for("support-tone", Phase.DONE)
    assert job.read_result().outcome is Outcome.SUCCEEDED
    assert {path.name for path in job.artifacts.iterdir()} == {
        "adapter",
        "metrics.jsonl",
        "metrics.csv",
        "loss.png",
        "samples.md",
        "report.html",
    }
    from peft import AutoPeftModelForCausalLM

    model = AutoPeftModelForCausalLM.from_pretrained(job.artifacts / "adapter")
    assert model.peft_config["default"].r == 4


def test_a_job_dropped_while_the_daemon_was_down_is_found_when_it_comes_up(a_daemon, home):
    daemon = a_daemon()
    daemon.stop()
    daemon.drop(a_spec(home, max_steps=2, num_train_epochs=None), "night.yaml")
    daemon.start()
    daemon.wait_for("night", Phase.DONE)


def test_a_run_that_a_killed_daemon_left_is_adopted_not_doubled_and_not_restarted(a_daemon, home):
    daemon = a_daemon()
    daemon.drop(a_spec(home, num_train_epochs=12), "long.yaml")
    daemon.wait_for_event("long", Stepped)
    daemon.kill()
    (before,) = events(daemon.job("long"), Started)
    daemon.start()
    job = daemon.wait_for("long", Phase.DONE)
    (only,) = events(job, Started)
    assert only == before
    assert len(events(job, Finished)) == 1


def test_a_daemon_told_to_stop_leaves_at_once_and_leaves_its_run_alone(a_daemon, home):
    daemon = a_daemon()
    daemon.drop(a_spec(home, num_train_epochs=30), "long.yaml")
    daemon.wait_for_event("long", Stepped)
    assert daemon.stop() == 0
    job = daemon.job("long")
    steps = len(events(job, Stepped))
    until(lambda: len(events(job, Stepped)) > steps + 3)


def test_hold_stops_with_a_checkpoint_and_release_goes_on_from_it(a_daemon, home):
    daemon = a_daemon()
    daemon.drop(a_spec(home, num_train_epochs=12), "held.yaml")
    daemon.wait_for_event("held", Stepped)
    daemon.ask(daemon.job("held"), "hold")
    daemon.wait_for_event("held", Stopped)
    job = daemon.wait_for("held", Phase.QUEUED)
    (stopped,) = events(job, Stopped)
    assert events(job, Checkpointed)[-1].step == stopped.step > 0
    daemon.ask(job, "release")
    job = daemon.wait_for("held", Phase.DONE)
    assert events(job, Restored)[-1].step == stopped.step


def test_cancel_stops_a_run_and_resume_goes_on_from_its_checkpoint(a_daemon, home):
    daemon = a_daemon()
    daemon.drop(a_spec(home, num_train_epochs=12), "regret.yaml")
    daemon.wait_for_event("regret", Stepped)
    daemon.ask(daemon.job("regret"), "cancel")
    job = daemon.wait_for("regret", Phase.CANCELLED)
    assert job.read_result().outcome is Outcome.CANCELLED
    stopped_at = events(job, Stopped)[-1].step
    daemon.ask(job, "resume")
    job = daemon.wait_for("regret", Phase.DONE)
    assert events(job, Restored)[-1].step == stopped_at
    assert (job.earlier_results / "1.json").exists()
    until(lambda: not (daemon.spool.requests / f"{job.job}.resume").exists())


def test_one_run_at_a_time_on_one_device_the_urgent_first(a_daemon, home):
    daemon = a_daemon()
    daemon.drop(a_spec(home, num_train_epochs=5), "first.yaml")
    daemon.wait_for_event("first", Stepped)
    daemon.drop(a_spec(home, max_steps=2, num_train_epochs=None), "patient.yaml")
    daemon.drop(a_spec(home, max_steps=2, num_train_epochs=None, priority=5), "urgent.yaml")
    done = [daemon.wait_for(name, Phase.DONE) for name in ("first", "urgent", "patient")]
    spans = [(events(job, Started)[0].time, events(job, Finished)[0].time) for job in done]
    assert spans[0][1] < spans[1][0]
    assert spans[1][1] < spans[2][0]


def test_every_problem_of_a_bad_job_file_is_in_its_result(a_daemon):
    daemon = a_daemon()
    daemon.drop("base_model: /no/such/model\ndatasets: [{path: /no/such.jsonl}]\nleraning_rate: 1e-4\n", "bad.yaml")
    job = daemon.wait_for("bad", Phase.FAILED)
    result = job.read_result()
    assert "learning_rate" in str(result.problems)
    assert result.attempts == 0


def test_data_that_cannot_be_read_fails_before_a_device_is_taken(a_daemon, home, tmp_path):
    (tmp_path / "broken.jsonl").write_text('{"messages": [{"role": "user", "content": "hi"}]}\n{"messages": oops}\n')
    daemon = a_daemon()
    daemon.drop(a_spec(home, datasets=[{"path": str(tmp_path / "broken.jsonl")}]), "broken.yaml")
    job = daemon.wait_for("broken", Phase.FAILED)
    assert "broken.jsonl:2" in str(job.read_result().problems)
    assert not [launch for launch in job.read_launches() if launch.stage is Stage.TRAIN]
    failure = [e for e in read_events(job.events_file(Stage.PREPARE)) if isinstance(e, FailedForGood)]
    assert len(failure) == 1


def test_a_job_that_cannot_be_read_does_not_stop_the_others(a_daemon, home):
    daemon = a_daemon()
    daemon.drop(a_spec(home), "sound.yaml")
    broken = daemon.spool.path / "queued" / "20260101-000000-broken-00000000"
    broken.mkdir()
    (broken / "claim.json").write_text("{")
    (broken / "dropped").write_text("x")
    daemon.wait_for("sound", Phase.DONE)
    until(lambda: "20260101-000000-broken-00000000: " in daemon.log)


def test_a_second_daemon_on_the_same_spool_is_refused_with_a_sentence(a_daemon):
    daemon = a_daemon()
    second = subprocess.run([*RUN, "--spool", daemon.spool.path], capture_output=True, text=True, timeout=30)
    assert second.returncode == 69
    assert second.stderr.startswith(f"finetuned: another finetuned daemon (pid {daemon.pid}) works on")


def test_a_setting_that_is_no_setting_is_refused_with_a_sentence(tmp_path):
    (tmp_path / "finetuned.yaml").write_text("cpu_slot: 2\n")
    refused = subprocess.run(
        [*RUN, "--spool", tmp_path / "spool", "--config", tmp_path], capture_output=True, text=True, timeout=30
    )
    assert refused.returncode == 78
    assert "finetuned.yaml" in refused.stderr
    assert "cpu_slot" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_worker_stopped_from_outside_goes_on_from_its_checkpoint(a_daemon, home):
    daemon = a_daemon()
    daemon.drop(a_spec(home, num_train_epochs=12), "nudged.yaml")
    daemon.wait_for_event("nudged", Stepped)
    os.kill(events(daemon.job("nudged"), Started)[0].pid, signal.SIGTERM)
    job = daemon.wait_for("nudged", Phase.DONE)
    assert events(job, Restored)[-1].step == events(job, Stopped)[0].step > 0
