"""The import wall: who may import whom, what the core may not know, and which programs must start without torch."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "daemon" / "finetuned"

MAY_IMPORT = {
    "service": {"host", "core"},
    "prepare": {"host", "core"},
    "train": {"host", "core"},
    "deliver": {"host", "core"},
    "ctl": {"host", "core"},
    "host": {"core"},
    "core": set(),
}
"""Beside themselves. `finetuned/__init__.py`, which holds the version, is open to all."""

CORE_MAY_IMPORT = {"pydantic", "annotated_types", "ruamel"}
"""Beside the standard library; annotated_types is pydantic's own vocabulary."""

NOT_FOR_THE_CORE = {
    *("os", "io", "shutil", "tempfile", "glob", "fileinput", "mmap", "fcntl", "sqlite3"),
    *("subprocess", "multiprocessing", "threading", "concurrent", "asyncio", "signal", "socket", "sched"),
    *("time", "zoneinfo", "random", "secrets", "uuid", "platform", "getpass", "urllib", "http"),
}
"""Standard modules that reach files, processes, clocks, randomness or the network."""

NOT_FOR_THE_CORE_TO_CALL = {
    *("open", "input", "print", "exec", "eval", "breakpoint"),
    *("now", "utcnow", "today"),
    *("read_text", "read_bytes", "write_text", "write_bytes", "stat", "exists", "is_file", "is_dir", "iterdir"),
}

HEAVY = ("torch", "transformers", "datasets", "numpy", "peft", "pyarrow", "tokenizers")


def modules(part: str) -> list[Path]:
    return sorted((SOURCE / part).rglob("*.py"))


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), path)


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of each import, wherever it stands; a relative one is written out."""
    package = path.relative_to(SOURCE.parent).with_suffix("").parts[:-1]
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = [*package[: len(package) - node.level + 1]] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)


def parts_imported(path: Path) -> Iterator[tuple[int, str]]:
    for line, name in imports(path):
        words = name.split(".")
        if words[0] == "finetuned" and len(words) > 1 and (SOURCE / words[1]).is_dir():
            yield line, words[1]


def at(path: Path, line: int) -> str:
    return f"{path.relative_to(SOURCE.parent)}:{line}"


def test_every_part_has_a_place_in_the_picture():
    parts = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert parts <= set(MAY_IMPORT)


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_a_part_imports_only_what_lies_below_it(part: str):
    allowed = MAY_IMPORT[part] | {part}
    crossings = [
        f"{at(path, line)} imports {other}"
        for path in modules(part)
        for line, other in parts_imported(path)
        if other not in allowed
    ]
    assert crossings == []


def test_the_core_imports_nothing_but_the_standard_library_pydantic_and_ruamel():
    strangers = [
        f"{at(path, line)} imports {name}"
        for path in modules("core")
        for line, name in imports(path)
        if (top := name.split(".")[0]) not in CORE_MAY_IMPORT | {"finetuned"} | sys.stdlib_module_names
        or top in NOT_FOR_THE_CORE
        or (top == "pathlib" and not name.startswith("pathlib.Pure"))
    ]
    assert strangers == []


def test_the_core_touches_no_file_process_or_clock():
    touches = [
        f"{at(path, node.lineno)} calls {name}"
        for path in modules("core")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and (name := called(node.func)) in NOT_FOR_THE_CORE_TO_CALL
    ]
    assert touches == []


def called(function: ast.expr) -> str:
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


LIGHT = ("service", "ctl", "deliver")


def heavy_modules_after(code: str) -> list[str]:
    """Runs `code` in a fresh interpreter; which of HEAVY it loaded."""
    tail = f"\nimport sys; print('loaded:', *[name for name in {HEAVY} if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code + tail], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()[-1].split()[1:]


@pytest.mark.parametrize("part", [part for part in LIGHT if modules(part)])
def test_no_module_of_a_light_part_brings_torch_in(part: str):
    names = [
        ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
        for path in modules(part)
        if path.name != "__main__.py"
    ]
    assert heavy_modules_after("\n".join(f"import {name}" for name in names)) == []


@pytest.mark.parametrize("module", ["finetuned.service.main", "finetuned.ctl.main"])
def test_a_light_program_tells_its_usage_without_torch(module: str):
    code = f"""
import sys
from {module} import main
sys.argv = ["program", "--help"]
try:
    main()
except SystemExit as ended:
    assert not ended.code
"""
    assert heavy_modules_after(code) == []
