"""Events as lines, and what a history of them adds up to."""

import math

import pytest

from facts import NOON, failed_retry, finished, stopped
from finetuned.core.events import (
    Checkpointed,
    Entered,
    Evaluated,
    History,
    Noticed,
    Restored,
    Started,
    Stepped,
    extend,
    from_line,
    to_line,
)


def started(attempt: int = 1) -> Started:
    return Started(time=NOON, launch=attempt, attempt=attempt, pid=7, boot_id="boot")


def restored(step: int) -> Restored:
    return Restored(time=NOON, checkpoint=f"step-{step:08d}" if step else None, step=step)


def stepped(step: int, *, seconds: float = 2.0, loss: float = 1.5) -> Stepped:
    return Stepped(
        time=NOON,
        step=step,
        total_steps=10,
        epoch=step / 5,
        loss=loss,
        grad_norm=0.5,
        learning_rate=1e-4,
        tokens=100,
        target_tokens=50,
        micro_batches=2,
        seconds=seconds,
    )


def checkpointed(step: int) -> Checkpointed:
    return Checkpointed(
        time=NOON, step=step, checkpoint=f"step-{step:08d}", size_bytes=9, stall_seconds=0.1, seconds=1.0
    )


def evaluated(step: int, loss: float, *, is_best: bool = False) -> Evaluated:
    return Evaluated(time=NOON, step=step, eval_loss=loss, target_tokens=9, is_best=is_best, seconds=1.0)


@pytest.mark.parametrize(
    "event", [started(), stepped(3), finished("early stopping"), failed_retry("boom", cause="disk")]
)
def test_an_event_survives_its_line(event):
    line = to_line(event)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert from_line(line) == event


def test_a_loss_that_is_no_number_survives_its_line():
    assert math.isnan(from_line(to_line(stepped(1, loss=math.nan))).loss)


@pytest.mark.parametrize("line", [b"", b"{", b"[1]", b'{"event":"stepped"}', b'{"no":"event"}', b"\xff\xfe"])
def test_a_line_that_is_no_event_is_a_value_error(line):
    with pytest.raises(ValueError):
        from_line(line)


def test_an_attempt_knows_how_far_it_came_and_what_was_saved():
    history = extend(History(), [started(), restored(0), stepped(1), checkpointed(1), stepped(2)])
    (attempt,) = history.attempts
    assert (attempt.step, attempt.checkpointed_step, attempt.raised_checkpoint) == (2, 1, True)
    assert attempt.ending is None


def test_an_attempt_that_only_came_to_its_checkpoint_stands_there():
    history = extend(History(), [started(), stepped(4), checkpointed(4), started(2), restored(4)])
    assert (history.attempts[1].step, history.attempts[1].raised_checkpoint) == (4, False)


def test_saving_again_what_was_saved_is_no_progress():
    history = extend(History(), [started(), checkpointed(4), started(2), restored(3), stepped(4), checkpointed(4)])
    assert [attempt.raised_checkpoint for attempt in history.attempts] == [True, False]


def test_each_ending_belongs_to_the_attempt_it_closes():
    history = extend(History(), [started(), stopped(), started(2), finished()])
    assert [attempt.ending.event for attempt in history.attempts] == ["stopped", "finished"]


def test_a_history_read_in_parts_is_the_history_read_at_once():
    events = [
        started(),
        restored(0),
        stepped(1),
        evaluated(1, 2.0, is_best=True),
        checkpointed(1),
        stopped(),
        started(2),
    ]
    in_parts = History()
    for event in events:
        in_parts = extend(in_parts, [event])
    assert in_parts == extend(History(), events)


def test_progress_tells_the_evaluations_before_now_and_best():
    progress = extend(History(), [evaluated(0, 3.0), evaluated(5, 1.0, is_best=True), evaluated(10, 2.0)]).progress
    assert (progress.first_eval_loss, progress.last_eval_loss) == (3.0, 2.0)
    assert (progress.best_eval_loss, progress.best_step) == (1.0, 5)


def test_the_time_left_is_the_steps_left_at_the_median_pace():
    steps = [stepped(number, seconds=100 if number == 2 else 3) for number in range(1, 6)]
    assert extend(History(), steps).progress.remaining_seconds == 5 * 3
    assert History().progress.remaining_seconds is None


def test_a_new_attempt_forgets_the_pace_of_the_last_and_keeps_its_notices():
    notice = Noticed(time=NOON, text="few rows")
    entered = Entered(time=NOON, activity="training")
    progress = extend(History(), [started(), notice, notice, entered, stepped(1), started(2)]).progress
    assert progress.notices == ("few rows",)
    assert progress.activity is None
    assert progress.recent_step_seconds == ()
