"""Pins what daemon and worker install: the versions of the environment that the tests run in.

deploy/environment train dev systemd
.venv/bin/python deploy/pin.py write
.venv/bin/python deploy/pin.py check     is there a wheel of each for every Python from 3.11 to 3.14? (minutes)
"""

import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CONSTRAINTS = Path(__file__).parent / "constraints.txt"
EXTRAS = ("train", "systemd")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
WITHOUT_WHEELS = ("systemd-python",)
"""Compiled on the machine."""


def main(verb: str) -> None:
    if verb == "write":
        CONSTRAINTS.write_text("".join(f"{name}=={version}\n" for name, version in sorted(pins().items())))
    elif verb == "check":
        check()
    else:
        sys.exit(__doc__)


def pins() -> dict[str, str]:
    """Package → version, of everything that finetuned and its extras bring here, but not of finetuned itself.

    What only a CUDA build of torch brings is not here to be pinned; torch names its exact versions.
    """
    found: dict[str, str] = {}
    waiting = [("finetuned", extra) for extra in ("", *EXTRAS)]
    seen = set(waiting)
    while waiting:
        name, extra = waiting.pop()
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue  # For another platform.
        if name != "finetuned":
            found[name] = package.version.partition("+")[0]  # 2.13.0+cpu and 2.13.0 are one release.
        for line in package.requires or []:
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                for pair in ((canonicalize_name(needed.name), wanted) for wanted in ("", *needed.extras)):
                    if pair not in seen:
                        seen.add(pair)
                        waiting.append(pair)
    return found


def check() -> None:
    lines = [line for line in CONSTRAINTS.read_text().splitlines() if line.partition("==")[0] not in WITHOUT_WHEELS]
    lacking = []
    for python in PYTHONS:
        for line in lines:
            if not has_wheel(line, python):
                lacking.append(f"{line} has no wheel for Python {python}")
                print(lacking[-1], flush=True)
    if lacking:
        sys.exit(f"{len(lacking)} wheels are missing")
    print(f"{len(lines)} packages have wheels for Python {', '.join(PYTHONS)}")


def has_wheel(line: str, python: str) -> bool:
    with tempfile.TemporaryDirectory() as nowhere:
        options = ["--dry-run", "--quiet", "--no-deps", "--only-binary", ":all:", "--target", nowhere]
        target = ["--python-version", python, "--implementation", "cp"]
        pip = [sys.executable, "-m", "pip", "install", *options, *target, line]
        return subprocess.run(pip, capture_output=True).returncode == 0


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) == 2 else "")
