"""deploy/build: what it makes holds everything, names nothing of the builder, and is the same every time."""

import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from servers import ROOT

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
CODE = ROOT / "daemon/finetuned"
PARTS = ("units", "deploy", "cloud-init", "daemon/finetuned")
FILES = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md")


def checkout(folder: Path, origin: Path = ROOT) -> Path:
    """A copy, so that what changes in the origin meanwhile changes nothing here."""
    for part in PARTS:
        shutil.copytree(origin / part, folder / part, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    for name in FILES:
        shutil.copy(origin / name, folder)
    return folder


def build(source: Path, *what: str, umask: int = 0o022) -> Path:
    command = [sys.executable, source / "deploy/build", *what]
    ended = subprocess.run(command, capture_output=True, text=True, umask=umask)
    assert ended.returncode == 0, ended.stderr
    return source / "dist"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkout(tmp_path_factory.mktemp("checkout"))


@pytest.fixture(scope="module")
def dist(source: Path) -> Path:
    """All of it, or without the Debian package where there are no Debian packages."""
    return build(source, *([] if shutil.which("dpkg-deb") else ["bundle"]))


@pytest.fixture(scope="module")
def bundle(dist: Path) -> Iterator[tarfile.TarFile]:
    with tarfile.open(dist / f"finetuned-{VERSION}.tar.gz") as archive:
        yield archive


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    return dist / f"finetuned-{VERSION}-py3-none-any.whl"


def files_of(folder: Path) -> set[str]:
    found = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {str(path.relative_to(folder)) for path in found}


@pytest.mark.slow
def test_the_wheel_holds_all_of_the_code_and_nothing_else(wheel: Path, source: Path):
    with zipfile.ZipFile(wheel) as held:
        names = {name for name in held.namelist() if ".dist-info/" not in name}
    assert names == {f"finetuned/{name}" for name in files_of(source / "daemon/finetuned")}


@pytest.mark.slow
def test_the_same_sources_make_the_same_bytes_whoever_builds_them(dist: Path, source: Path, tmp_path: Path):
    again = checkout(tmp_path / "elsewhere", source)
    for path in again.rglob("*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    (again / "daemon/finetuned/__pycache__").mkdir()
    (again / "daemon/finetuned/__pycache__/left.cpython-311.pyc").write_bytes(b"behind")
    second = build(again, "bundle", umask=0o077)
    for name in (f"finetuned-{VERSION}.tar.gz", f"finetuned-{VERSION}-py3-none-any.whl"):
        assert (second / name).read_bytes() == (dist / name).read_bytes()


@pytest.mark.slow
def test_the_bundle_is_one_folder_with_all_that_a_server_needs(bundle: tarfile.TarFile, source: Path):
    names = {member.name for member in bundle.getmembers() if member.isfile()}
    assert all(name.startswith(f"finetuned-{VERSION}/") for name in names)
    held = {name.partition("/")[2] for name in names}
    for part in ("units", "deploy", "cloud-init"):
        assert {f"{part}/{name}" for name in files_of(source / part)} <= held
    assert {"constraints.txt", f"finetuned-{VERSION}-py3-none-any.whl"} <= held


@pytest.mark.slow
def test_what_is_in_the_bundle_belongs_to_root_and_can_be_read_by_all(bundle: tarfile.TarFile):
    members = bundle.getmembers()
    assert {(member.uid, member.gid, member.uname, member.gname) for member in members} == {(0, 0, "root", "root")}
    assert len({member.mtime for member in members}) == 1
    assert {stat.S_IMODE(member.mode) for member in members} == {0o755, 0o644}
    programs = {member.name.partition("/")[2] for member in members if member.isfile() and member.mode & 0o100}
    assert {"deploy/install", "cloud-init/finetuned-provision"} <= programs


@pytest.mark.slow
def test_a_bundle_is_the_same_release_as_the_checkout_it_was_made_from(
    bundle: tarfile.TarFile, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(str(ROOT / "deploy"))
    from installer.source import Source

    bundle.extractall(tmp_path, filter="data")
    unpacked = Source(tmp_path / f"finetuned-{VERSION}")
    assert unpacked.version == Source(source).version == VERSION
    assert unpacked.digest() == Source(source).digest()


def test_an_unknown_thing_to_build_is_a_wrong_command_line():
    ended = subprocess.run([sys.executable, ROOT / "deploy/build", "rpm"], capture_output=True, text=True)
    assert ended.returncode == 2
    assert "rpm is none of wheel, bundle, deb" in ended.stderr


# Pins.


def pins() -> dict[str, str]:
    lines = (ROOT / "deploy/constraints.txt").read_text().splitlines()
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def test_pins_are_names_and_versions_without_a_place_or_a_build():
    lines = (ROOT / "deploy/constraints.txt").read_text().splitlines()
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9._-]+==[0-9][a-z0-9.]*", line)] == []
    names = [line.partition("==")[0] for line in lines]
    assert names == sorted(names)


def test_everything_that_a_server_is_asked_to_install_is_pinned_within_its_range():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    pinned = pins()
    for line in [*project["dependencies"], *extras["train"], *extras["systemd"]]:
        needed = Requirement(line)
        assert pinned[canonicalize_name(needed.name)] in needed.specifier, line


def test_servers_get_the_torch_that_the_tests_run_with():
    from importlib.metadata import version

    assert version("torch").partition("+")[0] == pins()["torch"]


# The Debian package.


@pytest.fixture(scope="module")
def package(dist: Path) -> Path:
    if shutil.which("dpkg-deb") is None:
        pytest.skip("needs dpkg-deb")
    (built,) = dist.glob("*.deb")
    return built


@pytest.fixture(scope="module")
def unpacked(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package")
    subprocess.run(["dpkg-deb", "-R", package, folder], check=True)
    return folder


@pytest.mark.slow
def test_the_package_names_what_it_needs(unpacked: Path, package: Path):
    control = (unpacked / "DEBIAN/control").read_text()
    fields = dict(line.split(": ", 1) for line in control.splitlines() if re.match(r"[A-Z][A-Za-z-]*: ", line))
    assert package.name == f"finetuned-daemon_{fields['Version']}_{fields['Architecture']}.deb"
    depends = {re.split(r"[ (]", each.strip())[0] for each in fields["Depends"].split(",")}
    interpreter = os.readlink(unpacked / "opt/finetuned/current/daemon/bin/python3")
    assert os.path.basename(os.path.realpath(interpreter)) in depends
    assert {"libc6", "libsystemd0", "systemd", "polkitd", "dbus", "init-system-helpers"} <= depends


@pytest.mark.slow
def test_the_package_brings_the_daemon_half_without_torch(unpacked: Path):
    for name in (
        "usr/lib/systemd/system/finetuned.service",
        "usr/lib/systemd/system/finetuned-train@.service",
        "usr/lib/sysusers.d/finetuned.conf",
        "usr/lib/tmpfiles.d/finetuned.conf",
        "usr/share/polkit-1/rules.d/50-finetuned.rules",
        "usr/share/doc/finetuned-daemon/copyright",
        "opt/finetuned/current/daemon/bin/finetuned",
        "opt/finetuned/current/deploy/install",
    ):
        assert (unpacked / name).is_file(), name
    assert os.readlink(unpacked / "usr/bin/finetunectl") == "/opt/finetuned/current/daemon/bin/finetunectl"
    packages = next((unpacked / "opt/finetuned/current/daemon/lib").glob("python3.*")) / "site-packages"
    held = {path.name for path in packages.iterdir()}
    assert {"finetuned", "systemd", "pydantic"} <= held
    assert not {"torch", "transformers", "numpy"} & held


@pytest.mark.slow
def test_the_packages_environment_knows_only_its_final_place(unpacked: Path, source: Path):
    release = os.readlink(unpacked / "opt/finetuned/current")
    daemon = unpacked / "opt/finetuned/current/daemon"
    assert (daemon / "bin/finetuned").read_text().startswith(f"#!/opt/finetuned/{release}/daemon/bin/python\n")
    builder = str(source).encode()
    told = [path for path in unpacked.rglob("*") if path.is_file() and builder in path.read_bytes()]
    assert told == []


@pytest.mark.slow
def test_the_packaged_daemon_waits_for_its_worker(unpacked: Path):
    dropin = unpacked / "usr/lib/systemd/system/finetuned.service.d/10-worker.conf"
    assert "ConditionPathExists=/opt/finetuned/current/worker.json" in dropin.read_text()
    assert not (unpacked / "opt/finetuned/current/worker.json").exists()


@pytest.mark.slow
def test_the_packages_scripts_are_sound(unpacked: Path):
    scripts = [unpacked / "DEBIAN" / name for name in ("preinst", "postinst", "prerm", "postrm")]
    assert all(path.stat().st_mode & 0o111 for path in scripts)
    shellcheck = Path(sys.executable).parent / "shellcheck"
    ended = subprocess.run([shellcheck, *scripts], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout


@pytest.mark.slow
def test_sums_in_the_package_hold(unpacked: Path):
    subprocess.run(["md5sum", "--quiet", "-c", "DEBIAN/md5sums"], cwd=unpacked, check=True)
