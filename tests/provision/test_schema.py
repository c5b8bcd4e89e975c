"""cloud-init's own word on the user-data, by the versions of both Debians, taken from their packages."""

import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from userdata.main import main
from userdata.pack import unpack

from blank_machine import ROOT

CACHE = ROOT / ".cache" / "cloud-init"
NEEDED = ("pyyaml", "jinja2", "jsonschema", "configobj", "oauthlib", "jsonpatch", "requests")
"""What cloud-init imports for its schema check."""
SUITES = {"bookworm": "22.4", "trixie": "25."}
"""How cloud-init's version begins in each."""
KEY = f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{'a' * 43} anna@laptop"

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path | None = None) -> str:
    ended = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if ended.returncode != 0:
        pytest.fail(f"{' '.join(map(str, command))}: {ended.stdout[-2000:]}{ended.stderr[-2000:]}", pytrace=False)
    return ended.stdout


def own_suite() -> str:
    lines = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    if lines.get("ID") != "debian" or not shutil.which("apt-get"):
        pytest.skip("needs Debian's package sources, to fetch cloud-init from")
    return lines["VERSION_CODENAME"]


def unpacked(suite: str) -> Path:
    """The suite's cloud-init below .cache/, fetched once, by way of this machine's own sources."""
    place = CACHE / suite
    if (place / "usr").is_dir():
        return place
    apt = CACHE / f"apt-{suite}"
    for name in ("sources.list.d", "lists/partial", "archives/partial", "download"):
        (apt / name).mkdir(parents=True, exist_ok=True)
    (apt / "status").touch()
    own = own_suite()
    for source in [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*.*")]:
        if source.is_file() and "debian" in source.read_text():
            (apt / "sources.list.d" / source.name).write_text(source.read_text().replace(own, suite))
    private = {
        "Dir::Etc::SourceList": apt / "none",
        "Dir::Etc::SourceParts": apt / "sources.list.d",
        "Dir::State": apt,
        "Dir::State::lists": apt / "lists",
        "Dir::State::status": apt / "status",
        "Dir::Cache": apt,
        "APT::Sandbox::User": "",
    }
    options = [word for name, value in private.items() for word in ("-o", f"{name}={value}")]
    (apt / "none").touch()
    run("apt-get", *options, "-qq", "update")
    run("apt-get", *options, "-qq", "download", "cloud-init", cwd=apt / "download")
    (package,) = (apt / "download").glob("cloud-init_*.deb")
    run("dpkg-deb", "--extract", package, CACHE / f"{suite}.partial")
    (CACHE / f"{suite}.partial").rename(place)
    shutil.rmtree(apt)
    return place


@pytest.fixture(scope="module")
def python() -> Path:
    """An interpreter with what cloud-init imports."""
    place = CACHE / "python"
    if not (place / "whole").exists():
        shutil.rmtree(place, ignore_errors=True)
        venv.create(place, with_pip=True)
        run(place / "bin/python", "-m", "pip", "install", "--quiet", *NEEDED)
        (place / "whole").touch()
    return place / "bin/python"


def cloud_init(python: Path, suite: str, *arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    path = unpacked(suite) / "usr/lib/python3/dist-packages"
    command = [python, "-m", "cloudinit.cmd.main", *arguments]
    return subprocess.run(
        command, env={"PYTHONPATH": str(path), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True
    )


def rendered(tmp_path: Path, *options: str) -> bytes:
    (tmp_path / "anna.pub").write_text(KEY)
    out = tmp_path / "rendered"
    release = ["--release=https://example.org/finetuned-1.2.3.tar.gz", f"--sha256={'0' * 64}"]
    assert main([*release, f"--authorized-key={tmp_path / 'anna.pub'}", f"--out={out}", *options]) == 0
    return out.read_bytes()


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize(
    "options", [["--hook=aws", "--user=anna"], ["--no-gzip", "--webhook=https://example.org/hook"]]
)
def test_cloud_init_finds_nothing_wrong_with_the_user_data(
    tmp_path: Path, python: Path, suite: str, options: list[str]
):
    (text,) = unpack(rendered(tmp_path, *options))
    (tmp_path / "cloud-config").write_text(text)
    ended = cloud_init(python, suite, "schema", "--config-file", tmp_path / "cloud-config")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Valid" in ended.stdout
    assert "eprecated" not in ended.stdout + ended.stderr


@pytest.mark.parametrize("suite", SUITES)
def test_the_check_of_cloud_init_does_find_what_is_wrong(tmp_path: Path, python: Path, suite: str):
    (tmp_path / "cloud-config").write_text("#cloud-config\nwrite_files: 7\n")
    ended = cloud_init(python, suite, "schema", "--config-file", tmp_path / "cloud-config")
    assert ended.returncode != 0
    assert "write_files" in ended.stdout + ended.stderr


TAKE_APART = """
import sys
from cloudinit import user_data, util
from cloudinit.helpers import Paths
from pathlib import Path
data = Path(sys.argv[1]).read_bytes()
parts = user_data.UserDataProcessor(Paths({"cloud_dir": sys.argv[2]})).process(data)
for part in parts.walk():
    if part.get_content_type() == "text/cloud-config":
        sys.stdout.write(util.fully_decoded_payload(part))
"""


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("options", [[], ["--no-gzip"]])
def test_cloud_init_takes_out_what_was_put_in(tmp_path: Path, python: Path, suite: str, options: list[str]):
    """Compression and MIME by its own code, and not only by ours."""
    data = rendered(tmp_path, *options)
    path = unpacked(suite) / "usr/lib/python3/dist-packages"
    command = [python, "-c", TAKE_APART, tmp_path / "rendered", tmp_path]
    ended = subprocess.run(command, env={"PYTHONPATH": str(path)}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert [ended.stdout] == unpack(data)


@pytest.mark.parametrize("suite", SUITES)
def test_the_versions_are_those_of_two_debians(python: Path, suite: str):
    ended = cloud_init(python, suite, "--version")
    assert SUITES[suite] in ended.stdout + ended.stderr


def test_the_interpreter_of_the_tests_has_no_cloud_init_of_its_own():
    """Or the versions above would not be what is tried."""
    ended = subprocess.run([sys.executable, "-c", "import cloudinit"], capture_output=True)
    assert ended.returncode != 0
