"""What runs on machines that have no more than their own Python: its oldest syntax, no package, and strict types."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from blank_machine import CLOUD_INIT

TOOLS = Path(sys.executable).parent
PROGRAMS = ("render", "finetuned-provision", "finetuned-bootstrap")
SOURCES = sorted([*CLOUD_INIT.rglob("*.py"), *(CLOUD_INIT / name for name in PROGRAMS)])


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_the_syntax_is_that_of_python_3_9(path: Path):
    ast.parse(path.read_text(), feature_version=(3, 9))


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield (node.module or "").split(".")[0]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_nothing_is_imported_that_python_does_not_bring(path: Path):
    assert set(imported(path)) <= set(sys.stdlib_module_names) | {"provision", "userdata"}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_can_be_run(name: str):
    assert os.access(CLOUD_INIT / name, os.X_OK)
    ended = subprocess.run([CLOUD_INIT / name, "--help"], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_programs_without_a_suffix_pass_the_linter_too():
    paths = [CLOUD_INIT / name for name in PROGRAMS]
    for verb in (["check"], ["format", "--check"]):
        ended = subprocess.run([TOOLS / "ruff", *verb, *paths], capture_output=True, text=True)
        assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.slow
def test_types_hold_under_strict_mypy():
    command = [TOOLS / "mypy", "--strict", "-p", "provision", "-p", "userdata"]
    environment = {**os.environ, "MYPYPATH": str(CLOUD_INIT)}
    ended = subprocess.run(command, cwd=CLOUD_INIT.parent, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
