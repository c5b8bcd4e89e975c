"""Facts → action, as a table of promises."""

import pytest

from facts import (
    NOON,
    a_queued_job,
    a_result,
    a_stage,
    an_active_job,
    an_attempt,
    an_exit,
    failed_for_good,
    failed_retry,
    finished,
    stopped,
)
from finetuned.core.events import FailedForGood
from finetuned.core.job import Outcome, Phase, Stage, Wish
from finetuned.core.lifecycle import (
    Alive,
    Conclude,
    CopySpec,
    DropWish,
    ForgetResume,
    JobFacts,
    LaunchPrepare,
    Move,
    PutResultAway,
    Ready,
    SpecState,
    StageFacts,
    Stop,
    Wait,
    decide,
    taken_devices,
)
from finetuned.core.problems import Problem
from finetuned.core.retry import Limits

LIMITS = Limits()
PREPARING = StageFacts(alive=Alive.YES)
PROBLEM = Problem(place="line 1", what="is wrong")


def test_a_claimed_job_has_its_spec_copied_first():
    assert decide(JobFacts(job="a", phase=Phase.QUEUED), LIMITS) == CopySpec()


def test_a_job_file_that_changed_before_its_first_run_is_read_again():
    assert decide(a_queued_job(spec=SpecState.CHANGED), LIMITS) == CopySpec()
    assert decide(a_queued_job(spec=SpecState.CHANGED, prepare=PREPARING), LIMITS) == Stop(
        Stage.PREPARE, "its job file changed"
    )


def test_a_spec_with_problems_fails_with_all_of_them():
    action = decide(a_queued_job(problems=(PROBLEM, PROBLEM)), LIMITS)
    assert (action.outcome, action.reason) == (Outcome.FAILED, "the job file: 2 problems")
    assert action.problems == (PROBLEM, PROBLEM)
    assert "finetunectl check" in action.hint


def test_a_drop_that_can_never_be_a_job_fails_with_its_refusal():
    refusal = Problem(place="link.yaml", what="is a symbolic link", hint="drop the file itself")
    action = decide(a_queued_job(refusal=refusal, spec=SpecState.MISSING), LIMITS)
    assert action == Conclude(Outcome.FAILED, "link.yaml: is a symbolic link", (refusal,), "drop the file itself")


def test_a_sound_spec_is_prepared_at_once():
    assert decide(a_queued_job(is_prepared=False, is_planned=False), LIMITS) == LaunchPrepare()


def test_preparing_is_waited_for():
    assert isinstance(decide(a_queued_job(is_prepared=False, prepare=PREPARING), LIMITS), Wait)


def test_a_prepared_job_that_cannot_be_planned_fails_with_the_reasons():
    action = decide(a_queued_job(is_planned=False, draft=(PROBLEM,)), LIMITS)
    assert (action.outcome, action.reason) == (Outcome.FAILED, "the plan: line 1: is wrong")


def test_a_prepared_job_waits_while_no_device_answers():
    assert isinstance(decide(a_queued_job(is_planned=False, draft=None), LIMITS), Wait)


def test_a_planned_job_is_ready_for_a_device():
    assert decide(a_queued_job(priority=3), LIMITS) == Ready("job-a", 3)


def test_data_that_can_never_be_read_fails_the_job_before_a_device_is_taken():
    prepare = a_stage((an_attempt(ending=failed_for_good()), an_exit(returncode=0)))
    action = decide(a_queued_job(is_prepared=False, prepare=prepare), LIMITS)
    assert action == Conclude(Outcome.FAILED, "prepare: no such column", (), "name it")


def test_prepared_data_that_was_pruned_is_prepared_again():
    prepare = a_stage((an_attempt(ending=finished()), an_exit(returncode=0)))
    assert decide(a_queued_job(is_prepared=False, prepare=prepare), LIMITS) == LaunchPrepare()


@pytest.mark.parametrize("stage", ["prepare", "train"])
def test_when_it_cannot_be_told_what_lives_nothing_is_done(stage):
    unknown = {stage: StageFacts(alive=Alive.UNKNOWN)}
    for wishes in (frozenset(), frozenset({Wish.CANCEL})):
        assert isinstance(decide(a_queued_job(wishes=wishes, **unknown), LIMITS), Wait)
    if stage == "train":
        assert isinstance(decide(an_active_job(**unknown), LIMITS), Wait)


def test_cancel_stops_preparation_and_then_concludes():
    cancelled = frozenset({Wish.CANCEL})
    assert decide(a_queued_job(wishes=cancelled, prepare=PREPARING), LIMITS) == Stop(Stage.PREPARE, "cancelled")
    assert decide(a_queued_job(wishes=cancelled), LIMITS) == Conclude(Outcome.CANCELLED, "cancelled as asked")


def test_cancel_stops_a_run_with_a_checkpoint_and_concludes_from_queued():
    cancelled = frozenset({Wish.CANCEL})
    assert decide(an_active_job(wishes=cancelled), LIMITS) == Stop(Stage.TRAIN, "asked to cancel")
    gone = a_stage((an_attempt(step=7, saved=7, ending=stopped()), an_exit(returncode=0)))
    assert isinstance(decide(an_active_job(gone, wishes=cancelled), LIMITS), Move)
    assert decide(a_queued_job(train=gone, wishes=cancelled), LIMITS) == Conclude(
        Outcome.CANCELLED, "cancelled as asked"
    )


def test_finished_beats_cancel():
    gone = a_stage((an_attempt(ending=finished()), an_exit(returncode=0)))
    action = decide(an_active_job(gone, wishes=frozenset({Wish.CANCEL})), LIMITS)
    assert isinstance(action, Conclude)
    assert action.outcome is Outcome.SUCCEEDED


def test_hold_stops_a_run_and_starts_none():
    held = frozenset({Wish.HOLD})
    assert decide(an_active_job(wishes=held), LIMITS) == Stop(Stage.TRAIN, "asked to hold")
    assert isinstance(decide(a_queued_job(wishes=held), LIMITS), Wait)
    assert decide(a_queued_job(wishes=held, prepare=PREPARING), LIMITS) == Stop(Stage.PREPARE, "put on hold")


def test_a_held_run_goes_on_when_released():
    train = a_stage((an_attempt(step=7, saved=7, ending=stopped()), an_exit(returncode=0)), dead_seconds=0)
    assert decide(a_queued_job(train=train), LIMITS) == Ready("job-a", 0)


def test_a_running_worker_is_left_alone():
    assert decide(an_active_job(), LIMITS) == Wait("training")


def test_interrupted_job_goes_back_to_the_queue_saying_where_it_starts_again():
    gone = a_stage((an_attempt(step=412, saved=400), None))
    action = decide(an_active_job(gone), LIMITS)
    assert isinstance(action, Move)
    assert action.to is Phase.QUEUED
    assert "step 412" in action.why
    assert "starting again from step 400" in action.why


@pytest.mark.parametrize(
    ("exit_", "cause"),
    [
        (None, "(killed?)"),
        (an_exit(signal=9), "(signal 9)"),
        (an_exit(signal=9, out_of_memory=True), "(it ran out of host memory, and the kernel killed it)"),
        (an_exit(signal=6, hung=True), "(it hung: "),
    ],
)
def test_the_cause_of_a_death_is_named_where_it_is_known(exit_, cause):
    action = decide(an_active_job(train=a_stage((an_attempt(step=412, saved=400), exit_))), LIMITS)
    assert cause in action.why


def test_a_job_moved_to_active_but_never_launched_goes_back():
    assert decide(an_active_job(a_stage()), LIMITS) == Move(Phase.QUEUED, "it was never launched")


def test_an_early_end_is_a_success_that_says_why():
    gone = a_stage((an_attempt(ending=finished("early stopping: no better for 2 evaluations")), None))
    assert decide(an_active_job(gone), LIMITS) == Conclude(
        Outcome.SUCCEEDED, "early stopping: no better for 2 evaluations"
    )


def test_what_could_not_be_made_beside_training_is_told_and_fails_nothing():
    ending = finished("").model_copy(update={"shortfall": "no GGUF file could be made: no room"})
    gone = a_stage((an_attempt(ending=ending), None))
    assert decide(an_active_job(gone), LIMITS) == Conclude(
        Outcome.SUCCEEDED,
        "all planned steps done, artifacts reloaded and compared; no GGUF file could be made: no room",
    )


def test_failed_for_good_fails_the_job():
    gone = a_stage((an_attempt(ending=failed_for_good("the loss is NaN at step 5")), None))
    assert decide(an_active_job(gone), LIMITS) == Conclude(
        Outcome.FAILED, "train: the loss is NaN at step 5", (), "name it"
    )


def test_a_failure_that_may_pass_waits_in_the_queue():
    gone = a_stage((an_attempt(ending=failed_retry()), None), dead_seconds=4)
    assert isinstance(decide(an_active_job(gone), LIMITS), Move)
    action = decide(a_queued_job(train=gone), LIMITS)
    assert action == Wait("train: boom; trying again", 6)


@pytest.mark.parametrize("phase", [Phase.QUEUED, Phase.ACTIVE])
def test_a_job_with_a_result_goes_to_the_outbox(phase):
    facts = a_queued_job(phase=phase, result=a_result())
    assert decide(facts, LIMITS) == Move(Phase.OUTBOX, "it has a result")


@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_delivered_job_is_filed_by_its_outcome(outcome):
    facts = a_queued_job(phase=Phase.OUTBOX, result=a_result(outcome))
    assert decide(facts, LIMITS) == Move(outcome.phase, outcome)


@pytest.mark.parametrize("phase", [Phase.FAILED, Phase.CANCELLED])
def test_resume_puts_the_result_away_drops_wishes_and_queues_in_that_order(phase):
    asked = a_queued_job(phase=phase, result=a_result(), wishes=frozenset({Wish.CANCEL}), resume_asked=True)
    assert decide(asked, LIMITS) == PutResultAway()
    without_result = a_queued_job(phase=phase, wishes=frozenset({Wish.CANCEL}), resume_asked=True)
    assert decide(without_result, LIMITS) == DropWish(Wish.CANCEL)
    assert decide(a_queued_job(phase=phase, resume_asked=True), LIMITS) == Move(Phase.QUEUED, "resumed as asked")
    assert isinstance(decide(a_queued_job(resume_asked=True), LIMITS), ForgetResume)


@pytest.mark.parametrize("phase", [Phase.ACTIVE, Phase.OUTBOX, Phase.DONE])
def test_resume_of_a_job_that_did_not_fail_is_answered_and_forgotten(phase):
    facts = a_queued_job(phase=phase, result=a_result(), resume_asked=True)
    assert isinstance(decide(facts, LIMITS), ForgetResume)


def test_a_filed_job_is_left_alone():
    assert isinstance(decide(a_queued_job(phase=Phase.DONE, result=a_result()), LIMITS), Wait)


def test_devices_of_active_jobs_are_taken():
    assert taken_devices([an_active_job(), an_active_job(a_stage())]) == frozenset({"cpu:0"})


def test_the_one_problem_of_a_stage_is_the_reason():
    problem = Problem(place="max_seq_length", what="4,096 is more than the 512 positions of tiny")
    for error, reason in (("this job: 1 problem", ""), ("the data cannot be used", "the data cannot be used: ")):
        ending = FailedForGood(time=NOON, error=f"{error}\nmore", problems=(problem,))
        facts = a_queued_job(is_prepared=False, prepare=a_stage((an_attempt(ending=ending), an_exit(returncode=0))))
        concluded = decide(facts, LIMITS)
        assert concluded.reason == f"prepare: {reason}max_seq_length: 4,096 is more than the 512 positions of tiny"
