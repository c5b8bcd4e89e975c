"""What a stage tells its supervisor: for how long it may be silent, that it moves, and where it is."""

from datetime import UTC, datetime

import pytest

from finetuned.core.events import Entered, Event, Finished, Progressed, Started, Stepped
from finetuned.host.watchdog import Watchdog

TIME = datetime(2026, 11, 30, 22, 15, tzinfo=UTC)
STARTED = Started(time=TIME, launch=1, attempt=1, pid=1, boot_id="b")


class Listener:
    """A supervisor, a clock, and a stage that may have been asked to stop."""

    def __init__(self, hang_seconds: float = 600.0):
        self.now = 0.0
        self.said: list[str] = []
        self.is_stopping = False
        self.watchdog = Watchdog(lambda: self.is_stopping, hang_seconds, self._hear, lambda: self.now)
        self.see(STARTED)

    def _hear(self, *lines: str) -> None:
        self.said += lines

    def see(self, *events: Event) -> None:
        for event in events:
            self.watchdog.saw(event)

    def enter(self, activity) -> None:
        self.see(Entered(time=TIME, activity=activity))

    @property
    def announced_minutes(self) -> float:
        return [int(line.partition("=")[2]) for line in self.said if line.startswith("WATCHDOG_USEC=")][-1] / 60e6

    def signs(self) -> int:
        found = self.said.count("WATCHDOG=1")
        self.said = [line for line in self.said if line != "WATCHDOG=1"]
        return found


@pytest.fixture
def listener() -> Listener:
    found = Listener()
    found.said.clear()
    return found


def test_the_beginning_of_an_attempt_says_that_it_is_ready_and_has_half_an_hour_to_load():
    listener = Listener()
    assert listener.said[0] == "READY=1"
    assert listener.announced_minutes == 30


def test_each_activity_announces_its_patience(listener: Listener):
    for activity, minutes in (("reading", 60), ("saving", 10), ("evaluating", 30), ("training", 30)):
        listener.enter(activity)
        assert listener.announced_minutes == minutes


def test_the_patience_for_a_step_follows_the_median(listener: Listener):
    listener.enter("training")
    listener.watchdog.stepped(5.0)
    assert listener.announced_minutes == 10
    for _ in range(20):
        listener.watchdog.stepped(90.0)
    assert listener.announced_minutes == 30


def test_after_the_ending_it_has_ten_minutes_to_leave(listener: Listener):
    listener.enter("exporting")
    listener.see(Finished(time=TIME))
    assert listener.announced_minutes == 10


def test_what_moves_says_so_once_a_second_at_most(listener: Listener):
    listener.enter("training")
    listener.signs()
    for listener.now in (0.5, 1.0, 1.5, 1.9, 2.0):
        listener.watchdog.moved()
    assert listener.signs() == 2


def test_progress_that_counts_no_further_is_none(listener: Listener):
    listener.enter("fetching")
    listener.signs()
    for listener.now, done in ((10.0, 5), (20.0, 5), (30.0, 6)):
        listener.see(Progressed(time=TIME, activity="fetching", done=done, total=9, unit="bytes"))
    assert listener.signs() == 2


def write(listener: Listener, sizes: list[int]) -> None:
    remaining = iter(sizes)
    current = [0]

    def is_done(_seconds: float) -> bool:
        try:
            current[0] = next(remaining)
        except StopIteration:
            return True
        return False

    listener.watchdog.await_writing(is_done, lambda: current[0])


def test_a_save_lives_as_long_as_its_bytes_grow(listener: Listener):
    listener.enter("saving")
    listener.said.clear()
    write(listener, [0, 10, 10, 10, 20])
    assert listener.said == ["WATCHDOG=1"] * 3


def test_a_stop_is_given_more_time_while_the_bytes_of_its_checkpoint_grow(listener: Listener):
    listener.is_stopping = True
    listener.enter("saving")
    listener.said.clear()
    write(listener, [10, 10, 20])
    assert listener.said == ["WATCHDOG=1", "EXTEND_TIMEOUT_USEC=600000000"] * 2


def test_the_status_is_told_when_the_activity_changes_and_every_few_seconds():
    listener = Listener()
    statuses = lambda: [line for line in listener.said if line.startswith("STATUS=")]  # noqa: E731
    listener.enter("training")
    for step, listener.now in enumerate((6.0, 7.0, 8.0, 12.0), start=1):
        listener.see(a_step(step))
    assert statuses() == [
        "STATUS=starting",
        "STATUS=training",
        "STATUS=step 1 of 10, loss 1.5000, about 9 s left",
        "STATUS=step 4 of 10, loss 1.5000, about 6 s left",
    ]


def a_step(step: int) -> Stepped:
    return Stepped(
        time=TIME,
        step=step,
        total_steps=10,
        epoch=0.1,
        loss=1.5,
        grad_norm=1.0,
        learning_rate=1e-4,
        tokens=9,
        target_tokens=5,
        micro_batches=1,
        seconds=1.0,
    )
