"""Set before anything imports torch: one thread, no network, no telemetry. And in CI no test is left out silently."""

import os
from collections.abc import Generator
from typing import Any

import pytest

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("MPLBACKEND", "Agg")

SKIPS_ALLOWED_IN_CI = ("needs a GPU",)
"""Reasons, or how they begin. Whatever else is missing, tests/run installs."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _fail_when_skipped_in_ci((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _fail_when_skipped_in_ci((yield))


def _fail_when_skipped_in_ci(report: Any) -> Any:
    if os.environ.get("CI") and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if not reason.startswith(SKIPS_ALLOWED_IN_CI):
            report.outcome = "failed"
            report.longrepr = f"skipped, which CI does not allow (tests/conftest.py): {reason}"
    return report
