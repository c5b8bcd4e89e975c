"""What doctor says of the system service."""

from pathlib import Path

import pytest

from finetuned.ctl.facts import Check
from finetuned.ctl.service_checks import check_service

FIT = {
    "LoadState": "loaded",
    "ActiveState": "active",
    "StatusText": "idle",
    "ExecStart": "{ path=/opt/finetuned ; argv[]=/opt/finetuned run --launcher units --spool /var/spool/finetuned }",
    "WatchdogUSec": "1min",
    "NRestarts": "0",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    return tmp_path


def checks(root: Path, **said: str) -> dict[str, Check]:
    program = root / "systemctl"
    lines = "\n".join(f"{name}={value}" for name, value in (FIT | said).items())
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{lines}\nEND\n")
    program.chmod(0o755)
    return {check.name: check for check in check_service(root, (str(program),))}


def test_a_service_that_works_is_all_fine(root: Path):
    found = checks(root)
    assert {name: check.state for name, check in found.items()} == {"unit": "ok", "launcher": "ok"}
    assert found["unit"].what == "finetuned.service is active: idle"


@pytest.mark.parametrize(
    ("said", "name", "state"),
    [
        ({"ActiveState": "failed", "Result": "exit-code"}, "unit", "fail"),
        ({"ActiveState": "inactive"}, "unit", "warn"),
        ({"NRestarts": "3"}, "unit", "warn"),
        ({"ExecStart": "{ argv[]=/opt/finetuned run }"}, "launcher", "warn"),
        ({"WatchdogUSec": "infinity"}, "launcher", "warn"),
    ],
)
def test_what_is_amiss_with_the_unit_comes_with_what_to_do(root: Path, said: dict[str, str], name: str, state: str):
    found = checks(root, **said)[name]
    assert found.state == state
    assert found.hint


def test_without_systemd_or_without_the_unit_nothing_is_said(root: Path, tmp_path: Path):
    assert checks(root, LoadState="not-found") == {}
    assert list(check_service(tmp_path / "elsewhere")) == []
    assert list(check_service(root, ("/no/such/systemctl",))) == []


def test_a_machine_that_is_still_being_provisioned_says_so(root: Path):
    folder = root / "var/lib/finetuned/provision"
    folder.mkdir(parents=True)
    (folder / "apt.json").write_text("{}")
    assert checks(root)["provision"].state == "warn"
    (folder / "done").write_text('{"release": "1.2.3"}')
    assert checks(root)["provision"].what == "provisioned 1.2.3"
