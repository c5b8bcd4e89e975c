"""What the daemon costs while it has nothing to do: under 60 MB and half a percent of a core, whatever was filed."""

import os
import time
from pathlib import Path

import pytest

from finetuned.core.job import Phase
from until import until

pytestmark = pytest.mark.slow

FILED = 10_000
WATCHED_SECONDS = 20


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def has_settled(pid: int) -> bool:
    """Starting costs what it costs; from then on a turn is far less than a tick."""
    before = cpu_seconds(pid)
    time.sleep(1)
    return cpu_seconds(pid) == before


def test_ten_thousand_filed_jobs_cost_an_idle_daemon_nothing(a_daemon):
    daemon = a_daemon(turn_seconds=2.0)
    for number in range(FILED):
        job = daemon.spool.path / Phase.DONE / f"20260101-000000-filed-{number:08x}"
        job.mkdir()
        (job / "claim.json").write_text("{}")
    daemon.stop()
    daemon.start()
    until(lambda: has_settled(daemon.pid))
    before, began = cpu_seconds(daemon.pid), time.monotonic()
    time.sleep(WATCHED_SECONDS)
    share = (cpu_seconds(daemon.pid) - before) / (time.monotonic() - began)
    assert share < 0.005, f"{share:.2%} of a core"
    assert resident_bytes(daemon.pid) < 60e6, f"{resident_bytes(daemon.pid) / 1e6:.0f} MB"
