"""For how long a stage may be silent before it counts as hung."""

from typing import get_args

import pytest

from finetuned.core.events import Activity
from finetuned.core.silence import allowed_silence_seconds

MINUTE = 60.0


def allowed(activity: Activity | None, *recent: float, hang_seconds: float = 10 * MINUTE) -> float:
    return allowed_silence_seconds(activity, recent, hang_seconds)


def test_a_step_may_take_ten_minutes_or_twenty_times_as_long_as_the_others():
    assert allowed("training", 1.0, 2.0, 3.0) == 10 * MINUTE
    assert allowed("training", 50.0, 60.0, 900.0) == 20 * 60.0


def test_the_first_step_has_half_an_hour_to_compile_in():
    assert allowed("training") == 30 * MINUTE


def test_a_save_may_write_nothing_for_ten_minutes():
    assert allowed("saving", 1000.0) == 10 * MINUTE


@pytest.mark.parametrize("activity", sorted(set(get_args(Activity)) - {"training", "saving"}))
def test_what_is_not_a_step_or_a_save_has_half_an_hour_or_more(activity: Activity):
    assert allowed(activity, 1.0, hang_seconds=1.0) >= 30 * MINUTE
