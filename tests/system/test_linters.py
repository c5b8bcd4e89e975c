"""Style, types and shell scripts are promises too: each linter is a test, with its settings in pyproject.toml."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = Path(sys.executable).parent


def require_content(tool: str, *arguments: str | Path) -> None:
    """Fails with what the tool said, and nothing else, unless it exits with 0."""
    ended = subprocess.run([TOOLS / tool, *arguments], cwd=ROOT, capture_output=True, text=True)
    if ended.returncode != 0:
        pytest.fail(ended.stdout + ended.stderr, pytrace=False)


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def is_shell_script(path: Path) -> bool:
    with path.open("rb") as file:
        first_line = file.readline(80).strip()
    return first_line.startswith(b"#!") and first_line.endswith((b"sh", b"bash"))


def test_ruff_has_no_complaints():
    require_content("ruff", "check", "--output-format", "concise", ".")


def test_python_files_are_formatted():
    require_content("ruff", "format", "--check", ".")


@pytest.mark.slow
def test_types_hold_under_strict_mypy():
    require_content("mypy")


def test_shell_scripts_pass_shellcheck():
    scripts = [path for path in tracked_files() if is_shell_script(path)]
    assert {"demo", "run"} <= {path.name for path in scripts}
    require_content("shellcheck", *scripts)


def test_shell_scripts_stop_at_the_first_failure():
    careless = [
        path for path in tracked_files() if is_shell_script(path) and "\nset -euo pipefail\n" not in path.read_text()
    ]
    assert careless == []
