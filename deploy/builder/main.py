"""The command line of deploy/build."""

import argparse
import hashlib
import os
import sys
import tempfile
from pathlib import Path

from installer.programs import Programs, Trouble
from installer.source import find_source

from builder.bundle import write_bundle
from builder.deb import write_deb

_KINDS = ("wheel", "bundle", "deb")


def main(arguments: list[str], builder: Path) -> int:
    parser = argparse.ArgumentParser(prog="build", description="Builds what is released, in dist/.")
    parser.add_argument(
        "what", nargs="*", metavar="wheel|bundle|deb", help="what to build (default: all); a bundle holds the wheel"
    )
    parser.add_argument("--into", type=Path, metavar="DIR", help="instead of dist/ in the checkout")
    options = parser.parse_args(arguments)
    if strangers := [word for word in options.what if word not in _KINDS]:
        parser.error(f"{strangers[0]} is none of {', '.join(_KINDS)}")
    os.umask(0o022)
    try:
        build(set(options.what) or set(_KINDS), builder, options.into)
    except Trouble as trouble:
        print(f"build: {trouble}", file=sys.stderr)
        return 1
    return 0


def build(kinds: set[str], builder: Path, into: Path | None) -> None:
    """Write what is asked for, each file whole or not at all, and say its sha256. Raises Trouble."""
    source, programs = find_source(builder), Programs()
    if not source.is_checkout:
        raise Trouble(f"{source.path} is no checkout: only from one can anything be built")
    target = into or source.path / "dist"
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=target) as folder:
        scratch = Path(folder)
        pip_python = _python_with_pip(scratch, programs)
        (scratch / "wheel").mkdir()
        wheel = source.bring_wheel(scratch / "wheel", pip_python, programs)
        made = [wheel]
        if "bundle" in kinds:
            made.append(write_bundle(source, wheel, scratch))
        if "deb" in kinds:
            made.append(write_deb(source, wheel, scratch, pip_python, programs))
        for path in made:
            finished = path.replace(scratch / path.name).replace(target / path.name)
            print(f"{hashlib.sha256(finished.read_bytes()).hexdigest()}  {finished}")


def _python_with_pip(scratch: Path, programs: Programs) -> Path:
    """The interpreter that runs this, where it has pip; else one of an environment made from it."""
    if programs.attempt(sys.executable, "-m", "pip", "--version").returncode == 0:
        return Path(sys.executable)
    programs.run(sys.executable, "-m", "venv", scratch / "venv")
    return scratch / "venv/bin/python"
