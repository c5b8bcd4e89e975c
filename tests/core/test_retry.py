"""When a stage is tried again, and when trying stops."""

import pytest

from facts import an_attempt, an_exit, failed_retry, stopped
from finetuned.core.job import Stage
from finetuned.core.retry import GiveUp, Limits, RetryAfter, judge

LIMITS = Limits()
SIGKILL, SIGSEGV, SIGTERM = 9, 11, 15


def verdict(*past):
    return judge(Stage.TRAIN, past, LIMITS)


def pause(*past) -> float:
    found = verdict(*past)
    assert isinstance(found, RetryAfter), found
    return found.seconds


def test_what_was_never_tried_starts_at_once():
    assert pause() == 0


def test_what_was_stopped_starts_at_once():
    assert pause((an_attempt(ending=stopped()), an_exit(returncode=0))) == 0


def test_launches_that_never_start_pause_longer_and_longer_and_never_fail_the_job():
    pauses = [pause(*[(None, None)] * count) for count in range(1, 50)]
    assert pauses == sorted(pauses)
    assert pauses[0] == 5
    assert pauses[-1] == 600


def test_a_start_after_launches_that_did_not_is_judged_by_itself():
    assert pause((None, None), (an_attempt(ending=stopped()), None)) == 0


@pytest.mark.parametrize("exit_", [None, an_exit(signal=SIGKILL), an_exit(signal=SIGTERM)])
def test_kills_from_outside_retry_three_times_at_once_then_pause_up_to_an_hour_and_never_fail(exit_):
    pauses = [pause(*[(an_attempt(step=3), exit_)] * count) for count in range(1, 100)]
    assert pauses[:3] == [0, 0, 0]
    assert pauses[3] > 0
    assert max(pauses) == 3600


def test_a_kill_after_progress_retries_at_once():
    fruitless = (an_attempt(step=3), None)
    assert pause(*[fruitless] * 5, (an_attempt(step=9, saved=8, raised=True), None)) == 0


@pytest.mark.parametrize("how", [{"returncode": 1}, {"signal": SIGSEGV}, {"signal": SIGKILL, "out_of_memory": True}])
def test_two_deaths_of_its_own_in_a_row_without_progress_end_the_job(how):
    death = (an_attempt(step=3), an_exit(**how))
    assert pause(death) == 10
    assert isinstance(verdict(death, death), GiveUp)


def test_a_death_that_raised_the_checkpoint_does_not_count_as_the_same_loop():
    progress = (an_attempt(step=9, saved=8, raised=True), an_exit(signal=SIGSEGV))
    death = (an_attempt(step=9, saved=8), an_exit(signal=SIGSEGV))
    assert isinstance(verdict(progress, death), RetryAfter)
    assert isinstance(verdict(progress, death, death), GiveUp)


def test_a_kill_between_two_deaths_starts_the_count_anew():
    death = (an_attempt(step=3), an_exit(signal=SIGSEGV))
    assert isinstance(verdict(death, (an_attempt(step=3), None), death), RetryAfter)


def test_twice_the_same_error_at_the_same_step_ends_the_job():
    failure = (an_attempt(step=5, ending=failed_retry("boom", step=5)), an_exit(returncode=0))
    assert pause(failure) == 10
    found = verdict(failure, failure)
    assert isinstance(found, GiveUp)
    assert "twice the same error at step 5: boom" in found.reason


def test_the_same_error_at_another_step_is_tried_again():
    first = (an_attempt(ending=failed_retry("boom", step=5)), None)
    second = (an_attempt(ending=failed_retry("boom", step=9)), None)
    assert pause(first, second) == 60


def test_ever_new_errors_without_progress_end_the_job_after_five():
    failures = [(an_attempt(ending=failed_retry(f"boom {n}", step=n)), None) for n in range(5)]
    assert isinstance(verdict(*failures[:4]), RetryAfter)
    assert isinstance(verdict(*failures), GiveUp)


@pytest.mark.parametrize("cause", ["network", "disk"])
def test_trouble_outside_the_job_is_waited_out_for_two_hours(cause):
    def failure(minutes):
        return (an_attempt(ending=failed_retry("no route", cause=cause, after_minutes=minutes)), None)

    assert isinstance(verdict(*[failure(minutes) for minutes in range(0, 119, 7)]), RetryAfter)
    assert isinstance(verdict(*[failure(minutes) for minutes in range(0, 121, 20)]), GiveUp)


def test_a_hang_is_a_death_of_its_own_and_is_told_as_one():
    hang = (an_attempt(step=3), an_exit(signal=6, hung=True))
    assert "it hung" in verdict(hang).why
    found = verdict(hang, hang)
    assert isinstance(found, GiveUp)
    assert "train died 2 times in a row without progress: it hung" in found.reason


def test_a_stop_in_good_order_after_one_of_its_processes_took_all_memory_counts_as_a_death():
    death = (an_attempt(step=3, ending=stopped()), an_exit(returncode=0, out_of_memory=True))
    assert isinstance(verdict(death), RetryAfter)
    assert isinstance(verdict(death, death), GiveUp)
