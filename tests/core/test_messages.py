"""What goes to the journal: each kind has an id that a catalog explains, and each event that is not chatter a line."""

import re
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from finetuned.core import events
from finetuned.core.job import Stage
from finetuned.core.messages import MESSAGE_IDS, Kind, Severity, Told, of_event, status_of

CATALOG = Path(__file__).parents[2] / "units" / "finetuned.catalog"
TIME = datetime(2026, 11, 30, 22, 15, tzinfo=UTC)
ENDINGS = (
    events.Finished(time=TIME, step=9, early_end="early stopping"),
    events.Stopped(time=TIME, step=9, why="asked to stop (SIGTERM)"),
    events.FailedRetry(time=TIME, step=9, error="disk full"),
    events.FailedForGood(time=TIME, step=9, error="the loss is nan"),
)
OTHERS = (
    events.Started(time=TIME, launch=2, attempt=1, pid=1, boot_id="b"),
    events.Noticed(time=TIME, text="a word"),
    events.Restored(time=TIME, checkpoint=None, step=0),
    events.Restored(time=TIME, checkpoint="step-00000004", step=4),
    events.SetAside(time=TIME, checkpoint="step-00000004", renamed_to="corrupt-step-00000004", why="sizes differ"),
    events.Evaluated(time=TIME, step=4, eval_loss=1.5, target_tokens=9, is_best=True, seconds=1),
    events.Checkpointed(time=TIME, step=4, checkpoint="step-00000004", size_bytes=1000, stall_seconds=0.1, seconds=1),
    events.Exported(time=TIME, step=9, files=("a", "b"), largest_logit_difference=0.0),
)
CHATTER = (
    events.Entered(time=TIME, activity="training"),
    events.Progressed(time=TIME, activity="reading", done=5, total=10, unit="rows"),
    events.Stepped(
        time=TIME,
        step=3,
        total_steps=500,
        epoch=0.1,
        loss=1.25,
        grad_norm=1,
        learning_rate=1e-4,
        tokens=10,
        target_tokens=5,
        micro_batches=1,
        seconds=2.0,
    ),
)


def told(event: events.Event, stage: Stage = Stage.TRAIN) -> Told:
    found = of_event(stage, event)
    assert found is not None
    return found


def test_every_kind_has_an_id_of_its_own():
    assert set(MESSAGE_IDS) == set(Kind)
    assert len(set(MESSAGE_IDS.values())) == len(Kind)
    assert all(re.fullmatch("[0-9a-f]{32}", each) for each in MESSAGE_IDS.values())


def test_the_catalog_explains_every_kind_and_nothing_else():
    assert sorted(re.findall(r"^-- ([0-9a-f]{32})$", CATALOG.read_text(), re.MULTILINE)) == sorted(MESSAGE_IDS.values())


def test_the_catalog_refers_only_to_fields_that_are_sent():
    known = {"FINETUNED_JOB", "FINETUNED_EVENT", "FINETUNED_STEP", "FINETUNED_STAGE", "MESSAGE"}
    assert set(re.findall(r"@([A-Z_]+)@", CATALOG.read_text())) <= known


def test_journalctl_takes_the_catalog(tmp_path: Path):
    if shutil.which("journalctl") is None:
        pytest.skip("journalctl is not installed")
    (tmp_path / "usr/lib/systemd/catalog").mkdir(parents=True)
    (tmp_path / "var/lib/systemd/catalog").mkdir(parents=True)
    shutil.copy(CATALOG, tmp_path / "usr/lib/systemd/catalog")
    journalctl = ["journalctl", f"--root={tmp_path}"]
    subprocess.run([*journalctl, "--update-catalog"], check=True)
    listed = subprocess.run([*journalctl, "--dump-catalog"], check=True, capture_output=True, text=True).stdout
    assert sorted(re.findall(r"^-- ([0-9a-f]{32})$", listed, re.MULTILINE)) == sorted(MESSAGE_IDS.values())
    assert listed.count("Subject: ") == len(Kind)


@pytest.mark.parametrize("event", [*ENDINGS, *OTHERS], ids=lambda event: event.event)
def test_every_event_that_is_no_chatter_is_one_line_under_its_own_name(event: events.Event):
    found = told(event)
    assert found.kind == event.event
    assert "\n" not in found.text


@pytest.mark.parametrize("event", CHATTER, ids=lambda event: event.event)
def test_chatter_stays_out_of_the_journal(event: events.Event):
    assert of_event(Stage.TRAIN, event) is None


def test_no_kind_of_event_is_forgotten():
    assert {type(event) for event in (*ENDINGS, *OTHERS, *CHATTER)} == set(events.Event.__args__)


def test_an_entry_carries_the_job_the_event_the_stage_and_the_step():
    assert told(OTHERS[-2]).fields("a-job") == {
        "MESSAGE_ID": MESSAGE_IDS[Kind.CHECKPOINTED],
        "FINETUNED_EVENT": "checkpointed",
        "FINETUNED_JOB": "a-job",
        "FINETUNED_STAGE": "train",
        "FINETUNED_STEP": "4",
    }


def test_the_end_of_preparation_has_no_step():
    found = told(events.FailedRetry(time=TIME, error="no route"), Stage.PREPARE)
    assert found.text == "prepare failed and may be tried again: no route"
    assert "FINETUNED_STEP" not in found.fields("a")


def test_what_failed_stands_out():
    assert [told(event).severity for event in ENDINGS] == [
        Severity.INFO,
        Severity.INFO,
        Severity.WARNING,
        Severity.ERROR,
    ]


def test_the_status_of_a_run_is_its_step_its_loss_and_the_time_left():
    started = OTHERS[0]
    progress = events.extend(events.History(), [started, *CHATTER[::2]]).progress
    assert status_of(progress) == "step 3 of 500, loss 1.2500, about 16 min left"


def test_the_status_of_anything_else_is_what_it_is_busy_with():
    started = OTHERS[0]
    assert status_of(events.extend(events.History(), [started]).progress) == "starting"
    assert status_of(events.extend(events.History(), [started, CHATTER[1]]).progress) == "reading, 5 of 10 rows"
