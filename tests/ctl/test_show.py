"""list and status: the same facts for people and for programs, whatever state a job is in."""

import os
import re
from datetime import UTC, datetime, timedelta

import exports
import spools
from finetuned.core.events import (
    Checkpointed,
    Entered,
    FailedForGood,
    FailedRetry,
    Finished,
    Noticed,
    Progressed,
    Stopped,
)
from finetuned.core.job import Exit, Outcome, Phase, Result, Stage, Wish
from finetuned.core.problems import Problem
from finetuned.ctl.sight import look_at_job
from finetuned.host.jobdir import JobDir, write_record
from spools import SOUND

NOON = exports.EVENING
TRAINING = [
    exports.started(),
    exports.evaluated(0, 2.5, is_best=True),
    Entered(time=NOON, activity="training"),
    exports.stepped(1),
    exports.stepped(2),
    Checkpointed(time=NOON, step=2, checkpoint="step-00000002", size_bytes=10, stall_seconds=0, seconds=1),
    exports.stepped(3),
    exports.evaluated(3, 1.25, is_best=True),
    Entered(time=NOON, activity="training"),
]
PREPARED = [exports.started(), Finished(time=NOON)]


def states(bench, *options):
    return {row["job"]: row["state"] for row in bench.ctl("list", "--json", *options).json["jobs"]}


def test_list_tells_the_state_of_every_live_job(bench):
    waiting = bench.job(number=1)
    preparing = bench.job(number=2, prepare=[exports.started()])
    bench.run(preparing, Stage.PREPARE)
    ready = bench.job(number=3, prepare=PREPARED, is_planned=True)
    training = bench.job(Phase.ACTIVE, number=4, train=TRAINING, is_planned=True)
    bench.run(training, Stage.TRAIN)
    held = bench.job(number=5, wishes=[Wish.HOLD])
    stopping = bench.job(Phase.ACTIVE, number=6, train=TRAINING, wishes=[Wish.CANCEL])
    bench.run(stopping, Stage.TRAIN)
    ending = bench.job(Phase.OUTBOX, number=7, result=a_success())
    assert states(bench) == {
        waiting.job: "waiting",
        preparing.job: "preparing",
        ready.job: "ready",
        training.job: "training",
        held.job: "held",
        stopping.job: "stopping",
        ending.job: "ending",
    }


def a_success():
    return Result(outcome=Outcome.SUCCEEDED, reason="done", attempts=1, last_launch=1, ended=NOON)


def test_what_runs_stands_first_and_what_waits_stands_in_the_order_of_its_turn(bench):
    young = bench.job(number=3)
    urgent = bench.job(number=2, spec=f"{SOUND}priority: 5\n")
    old = bench.job(number=1)
    held = bench.job(number=0, wishes=[Wish.HOLD])
    running = bench.job(Phase.ACTIVE, number=9, train=TRAINING)
    rows = bench.ctl("list", "--json").json["jobs"]
    assert [row["job"] for row in rows] == [running.job, urgent.job, old.job, young.job, held.job]
    assert [row["queue_position"] for row in rows] == [None, 1, 2, 3, None]


def test_a_running_job_shows_step_loss_and_time_left(bench):
    bench.run(bench.job(Phase.ACTIVE, train=TRAINING), Stage.TRAIN)
    row = bench.ctl("list", "--json").json["jobs"][0]
    assert (row["step"], row["total_steps"], row["activity"]) == (3, 12, "training")
    assert row["eta_seconds"] == 9
    table = bench.ctl("list").out
    assert "step 3 of 12" in table
    assert "9 s" in table


def test_filed_jobs_are_listed_on_request_newest_first_and_not_too_many(bench):
    bench.run_daemon()
    filed = [
        bench.job(phase, number=number) for number, phase in enumerate((Phase.DONE, Phase.FAILED, Phase.CANCELLED))
    ]
    assert states(bench) == {}
    rows = bench.ctl("list", "--all", "-n", "2", "--json").json["jobs"]
    assert [row["job"] for row in rows] == [filed[2].job, filed[1].job]
    assert list(states(bench, "--all").values()) == ["cancelled", "failed", "succeeded"]


def test_a_job_that_cannot_be_read_is_listed_as_unreadable_and_the_others_are_told(bench):
    broken, sound = bench.job(number=1), bench.job(number=2)
    broken.claim_file.write_text("{")
    assert states(bench) == {broken.job: "unreadable", sound.job: "waiting"}
    assert "claim.json" in bench.ctl("status", broken.job).out


def test_an_empty_list_is_no_data_and_a_word(bench):
    bench.run_daemon()
    answer = bench.ctl("list")
    assert (answer.code, answer.out) == (0, "")
    assert "no jobs in" in answer.err


def test_a_missing_daemon_is_said(bench):
    bench.job()
    assert "no daemon is running" in bench.ctl("list").err
    assert bench.ctl("list", "--json").json["daemon_running"] is False
    bench.run_daemon()
    assert bench.ctl("list").err == ""
    assert bench.ctl("list", "--json").json["daemon_running"] is True


def test_status_shows_losses_before_now_and_best(bench):
    job = bench.job(Phase.ACTIVE, train=TRAINING, is_planned=True)
    bench.run(job, Stage.TRAIN)
    bench.checkpoint(job, 2)
    page = bench.ctl("status", "tone", "--json").json
    assert (page["eval_loss_before"], page["eval_loss_now"], page["eval_loss_best"]) == (2.5, 1.25, 1.25)
    assert page["best_step"] == 3
    assert page["seconds_per_step"] == 1.0
    assert [(each["name"], each["whole"]) for each in page["checkpoints"]] == [("step-00000002", True)]
    assert page["checkpoints"][0]["size_bytes"] > 100
    words = bench.ctl("status", "tone").out
    assert "2.5000 before, 1.2500 now, 1.2500 best (step 3)" in words
    assert "3 of 12 (25 %)" in words


def test_status_tells_how_each_attempt_ended(bench):
    said = [
        exports.started(1),
        exports.stepped(4),
        Stopped(time=NOON, step=4, why="asked to stop (SIGTERM)"),
        exports.started(2),
        FailedRetry(time=NOON, step=5, error="device lost"),
        exports.started(3),
        exports.stepped(6),
        exports.started(4),
    ]
    job = bench.job(Phase.ACTIVE, train=said)
    bench.launch(job, 3)
    write_record(job.exit_file(3), Exit(launch=3, signal=9, out_of_memory=True, ended=NOON))
    bench.run(job, Stage.TRAIN)
    attempts = bench.ctl("status", "tone", "--json").json["stages"][1]["attempts"]
    assert [attempt["ending"] for attempt in attempts] == ["stopped", "failed_retry", "no word", None]
    assert attempts[1]["why"] == "device lost"
    assert "ran out of host memory" in attempts[2]["why"]


def test_status_tells_why_a_job_waits(bench):
    bench.run_daemon()
    bench.job(number=1, prepare=PREPARED, is_planned=True)
    bench.job(number=2, slug="second", prepare=PREPARED, is_planned=True)
    bench.job(number=3, slug="held", wishes=[Wish.HOLD])
    assert bench.ctl("status", "tone", "--json").json["why"] == "its turn is next"
    assert bench.ctl("status", "second", "--json").json["why"] == "1 before it"
    assert "finetunectl release" in bench.ctl("status", "held", "--json").json["why"]


def an_attempt_that_failed(seconds_ago: float, launch: int = 1, error: str = "the hub does not answer"):
    time = datetime.now(UTC) - timedelta(seconds=seconds_ago)
    started = exports.started(launch).model_copy(update={"time": time})
    return [started, FailedRetry(time=time, error=error, cause="network")]


def test_a_stage_that_was_asked_for_a_moment_ago_is_no_trouble(bench):
    bench.run_daemon()
    job = bench.job()
    bench.launch(job, 1, Stage.PREPARE, asked=datetime.now(UTC))
    assert bench.ctl("status", "tone", "--json").json["why"] == "preparing"


def test_status_tells_what_a_pause_is_for_and_about_how_long_it_lasts(bench):
    bench.run_daemon()
    again = [*an_attempt_that_failed(100, launch=1), *an_attempt_that_failed(20, launch=2)]
    offline = bench.job(number=1, slug="offline", prepare=again)
    broken = bench.job(number=2, slug="broken", prepare=PREPARED, is_planned=True)
    for number in (1, 2):
        bench.launch(offline, number, Stage.PREPARE, asked=datetime.now(UTC) - timedelta(seconds=100))
        bench.launch(broken, number, Stage.TRAIN, asked=datetime.now(UTC))
    page = bench.ctl("status", "offline", "--json").json
    assert page["state"] == "waiting"
    assert re.fullmatch(r"prepare: the hub does not answer; trying again in about (39|40) s", page["why"])
    page = bench.ctl("status", "broken", "--json").json
    assert page["state"] == "waiting"
    assert "2 launch(es) never started" in page["why"]
    assert re.search(r"in about 1[45] s$", page["why"])


def test_a_pause_that_is_over_is_said_no_more(bench):
    bench.run_daemon()
    failed = an_attempt_that_failed(100, error="device lost")
    job = bench.job(prepare=PREPARED, is_planned=True, train=failed)
    bench.launch(job, asked=datetime.now(UTC) - timedelta(seconds=100))
    page = bench.ctl("status", "tone", "--json").json
    assert page["state"] == "ready"
    assert page["why"].endswith("device lost; goes on from step 0; its turn is next")


def test_what_an_earlier_result_covers_is_waited_for_no_more(bench):
    bench.run_daemon()
    job = bench.job(prepare=an_attempt_that_failed(1))
    bench.launch(job, 1, Stage.PREPARE, asked=datetime.now(UTC))
    job.earlier_results.mkdir()
    earlier = Result(outcome=Outcome.FAILED, reason="no network", attempts=0, last_launch=1, ended=NOON)
    write_record(job.earlier_results / "1.json", earlier)
    assert "in about" not in bench.ctl("status", "tone", "--json").json["why"]


def test_a_job_that_is_about_to_fail_says_why(bench):
    job = bench.job(prepare=[exports.started(), FailedForGood(time=NOON, error="no such column")])
    bench.launch(job, 1, Stage.PREPARE)
    row = bench.ctl("status", "tone", "--json").json
    assert (row["state"], row["why"]) == ("ending", "failed: prepare: no such column; no daemon is running")


def test_status_tells_what_keeps_the_daemon_from_reading_a_drop(bench):
    bench.run_daemon()
    job = bench.job()
    job.spec_file.unlink()
    os.link(job.dropped, bench.folder / "another-name")
    assert "has 2 names (hard links); drop a copy of the file" in bench.ctl("status", "tone", "--json").json["why"]


def test_status_tells_which_permission_the_daemon_lacks(bench):
    spools.require(os.geteuid() == 0, "only root can give a spool to somebody else")
    job = bench.job()
    job.spec_file.unlink()
    os.chown(bench.spool.path, 65534, 65534)
    job.dropped.chmod(0)
    why = bench.ctl("status", "tone", "--json").json["why"]
    assert "nobody cannot " in why
    assert "setfacl -m u:nobody:" in why


def test_a_job_that_moves_while_it_is_looked_at_is_seen_where_it_stands(bench, monkeypatch):
    job = bench.job(prepare=PREPARED, is_planned=True)
    monkeypatch.setattr(JobDir, "read_plan", lambda self: move_once(bench, monkeypatch, self))
    sight = look_at_job(job)
    assert sight.job.phase is Phase.ACTIVE
    assert sight.plan is not None


def move_once(bench, monkeypatch, job):
    monkeypatch.undo()
    bench.spool.move(job, Phase.ACTIVE)
    return job.read_plan()


def test_status_tells_how_far_prepare_is(bench):
    said = [exports.started(), Progressed(time=NOON, activity="reading", done=300, total=1000, unit="rows")]
    bench.run(bench.job(prepare=said), Stage.PREPARE)
    assert bench.ctl("status", "tone", "--json").json["why"] == "reading 300 of 1,000 rows"


def test_status_of_a_failed_job_shows_reason_problems_and_hint(bench):
    problem = Problem(place="line 3   seed", what='is "x"; expected a number', hint="write seed: 42")
    result = Result(
        outcome=Outcome.FAILED,
        reason="the job file: 1 problem",
        problems=(problem,),
        hint="finetunectl resubmit",
        attempts=0,
        last_launch=0,
        ended=NOON,
    )
    bench.job(Phase.FAILED, result=result)
    words = bench.ctl("status", "tone").out
    for said in ("the job file: 1 problem", problem.place, problem.what, problem.hint, result.hint):
        assert said in words
    assert bench.ctl("status", "tone", "--json").json["result"]["problems"][0]["hint"] == problem.hint


def test_status_says_where_things_are(bench):
    job = bench.job(Phase.DONE, train=exports.a_whole_run())
    bench.artifacts(job)
    job.log_file(Stage.TRAIN).write_text("log")
    page = bench.ctl("status", "tone", "--json").json
    assert page["artifacts"] == str(job.artifacts)
    assert page["stages"][1]["log"] == str(job.log_file(Stage.TRAIN))
    assert str(job.artifacts) in bench.ctl("status", "tone").out


def test_status_shows_notices_of_all_stages(bench):
    bench.job(
        prepare=[exports.started(), exports.noticed("2 rows dropped")],
        train=[exports.started(), Noticed(time=NOON, text="slow disk")],
    )
    assert bench.ctl("status", "tone", "--json").json["notices"] == ["2 rows dropped", "slow disk"]


def test_a_loss_that_is_no_number_is_null(bench):
    failed = FailedForGood(time=NOON, step=1, error="loss is not finite")
    bench.job(Phase.ACTIVE, train=[exports.started(), exports.stepped(1, loss=float("nan")), failed])
    assert bench.ctl("status", "tone", "--json").json["loss"] is None
