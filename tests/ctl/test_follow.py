"""logs and events, once or followed wherever a job moves."""

import json

import pytest

import exports
from finetuned.core import events as kinds
from finetuned.core.job import Phase, Stage
from finetuned.ctl.follow import Growing
from finetuned.ctl.render import event_line

STEPS = [exports.started(), exports.stepped(1), exports.stepped(2)]


def test_logs_shows_training_once_there_is_some_and_preparation_before(bench):
    job = bench.job()
    job.log_file(Stage.PREPARE).write_text("reading\n")
    assert bench.ctl("logs", "tone").out == "reading\n"
    job.log_file(Stage.TRAIN).write_text("step 1\nstep 2\n")
    assert bench.ctl("logs", "tone").out == "step 1\nstep 2\n"
    assert bench.ctl("logs", "tone", "--stage", "prepare").out == "reading\n"
    assert bench.ctl("logs", "tone", "-n", "1").out == "step 2\n"


def test_a_job_without_a_log_yet_says_so(bench):
    bench.job()
    answer = bench.ctl("logs", "tone")
    assert answer.code == 1
    assert "has no prepare log yet" in answer.err


def test_events_reads_as_sentences_and_as_json(bench):
    bench.job(Phase.DONE, prepare=[exports.started()], train=STEPS)
    words = bench.ctl("events", "tone").out.splitlines()
    assert len(words) == 4
    assert "attempt 1 started" in words[0]
    assert "step 2 of 12  loss" in words[3]
    objects = [json.loads(line) for line in bench.ctl("events", "tone", "--json").out.splitlines()]
    assert [(each["stage"], each["event"]) for each in objects] == [
        ("prepare", "started"),
        ("train", "started"),
        ("train", "stepped"),
        ("train", "stepped"),
    ]


def test_events_of_one_stage(bench):
    bench.job(prepare=[exports.started()], train=STEPS)
    assert len(bench.ctl("events", "tone", "--stage", "train").out.splitlines()) == 3


def test_events_of_a_newer_release_are_passed_on_as_json_and_left_out_of_words(bench):
    job = bench.job(train=[exports.started()])
    with open(job.events_file(Stage.TRAIN), "a") as file:
        file.write('{"event":"dreamt","time":"2026-11-30T00:00:00Z","loss":NaN}\nnot json\n{"torn')
    assert len(bench.ctl("events", "tone").out.splitlines()) == 1
    newest = bench.ctl("events", "tone", "--json").out.splitlines()[-1]
    assert json.loads(newest) == {"stage": "train", "event": "dreamt", "time": "2026-11-30T00:00:00Z", "loss": None}


@pytest.mark.parametrize(("verb", "first", "last"), [("events", "step 1 of", "finished"), ("logs", "one", "two")])
def test_following_survives_moves_and_ends_with_the_job(bench, verb, first, last):
    job = bench.job(Phase.ACTIVE, train=[exports.stepped(1)])
    job.log_file(Stage.TRAIN).write_text("one\n")
    follower = bench.start(verb, job.job, "-f")
    assert first in follower.stdout.readline()
    for phase in (Phase.QUEUED, Phase.ACTIVE):
        job = bench.spool.move(job, phase)
    with open(job.log_file(Stage.TRAIN), "a") as log:
        log.write("two\n")
    bench.end(job, Phase.DONE)
    out, err = follower.communicate(timeout=30)
    assert (follower.returncode, err) == (0, "")
    assert last in out
    assert first not in out


def test_following_a_job_that_is_removed_ends(bench):
    job = bench.job(train=STEPS)
    follower = bench.start("events", job.job, "-f")
    follower.stdout.readline()
    job.path.rename(bench.folder / "gone")
    assert "is gone" in follower.communicate(timeout=30)[1]


def test_a_log_whose_middle_was_dropped_goes_on_where_it_was(tmp_path):
    path, growing = tmp_path / "log", Growing()
    path.write_bytes(b"head\n" + b"middle\n" * 1000 + b"tail\n")
    growing.read_new(path, whole_lines=False)
    shorter = tmp_path / "shorter"
    shorter.write_bytes(b"head\n[... left out here ...]\n" + b"middle\n" * 900 + b"tail\nnew\n")
    shorter.rename(path)
    assert growing.read_new(path, whole_lines=False) == b"new\n"


def test_every_kind_of_event_has_words():
    said = [
        kinds.Entered(time=exports.EVENING, activity="exporting"),
        kinds.Progressed(time=exports.EVENING, activity="reading", done=1, total=None, unit="rows"),
        kinds.Restored(time=exports.EVENING, checkpoint=None, step=0),
        kinds.SetAside(time=exports.EVENING, checkpoint="a", renamed_to="b", why="torn"),
        kinds.Exported(time=exports.EVENING, step=1, files=("x",), largest_logit_difference=0),
        kinds.FailedForGood(time=exports.EVENING, error="no", hint="mend it"),
        kinds.FailedRetry(time=exports.EVENING, error="no"),
        kinds.Stopped(time=exports.EVENING, why="asked"),
        *exports.a_whole_run(1),
    ]
    assert all(len(event_line("train", event)) > len("2026-11-30 22:15:00  train    ") for event in said)
