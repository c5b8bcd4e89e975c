"""What any release has written loads in this one: files of old releases are kept here as they were, a folder each."""

from pathlib import Path

import pytest

from finetuned.core import events
from finetuned.core.events import Ending, Event, Started
from finetuned.core.job import Claim, Exit, Launch, Result
from finetuned.core.plan import Facts, RunPlan
from finetuned.core.spec import parse_spec
from finetuned.host.jobdir import JobDir, read_record
from finetuned.host.journal import read_events
from finetuned.host.launch import Child
from finetuned.host.receipts import Receipt

RELEASES = sorted(path for path in Path(__file__).parent.iterdir() if path.is_dir() and path.name[0].isdigit())
RECORDS = {
    "claim.json": Claim,
    "facts.json": Facts,
    "plan.json": RunPlan,
    "result.json": Result,
    "receipt.json": Receipt,
}


@pytest.fixture(params=RELEASES, ids=lambda path: path.name)
def release(request):
    return request.param


@pytest.mark.parametrize("name", RECORDS)
def test_records_of_old_releases_load(release, name):
    assert read_record(release / name, RECORDS[name]).format == 1


def test_launches_of_old_releases_load(release):
    job = JobDir(release)
    launches = job.read_launches()
    assert [launch.number for launch in launches] == [1, 2]
    for launch in launches:
        assert isinstance(launch, Launch)
        assert isinstance(job.read_exit(launch.number), Exit)
        assert read_record(job.launches / f"{launch.number:04d}.child.json", Child).launch == launch.number


@pytest.mark.parametrize("stage", ["prepare", "train"])
def test_every_event_of_old_releases_loads(release, stage):
    path = release / "events" / f"{stage}.jsonl"
    loaded = read_events(path)
    assert len(loaded) == len(path.read_bytes().splitlines())
    assert isinstance(loaded[0], Started)
    assert isinstance(loaded[-1], Ending)


def test_specs_of_old_releases_are_understood(release):
    assert parse_spec((release / "spec.yaml").read_text(), "spec.yaml").spec.datasets


def test_events_of_newer_releases_are_skipped_not_stumbled_over():
    line = b'{"time":"2026-11-30T17:14:43Z","event":"teleported","step":285}'
    assert events.from_line(line) is None


def test_fields_that_newer_releases_add_are_ignored(release):
    text = (release / "result.json").read_text().replace('"format"', '"mood": "good", "format"', 1)
    assert Result.model_validate_json(text).attempts == 1


def test_kinds_of_events_are_all_known_to_the_reader():
    assert {kind.__name__ for kind in Event.__args__} >= {"Started", "Stepped", "Finished"}
