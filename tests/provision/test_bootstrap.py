"""finetuned-bootstrap: the bundle comes checked and whole or not at all; a failure ends with the machine stopped."""

import gzip
import hashlib
import importlib.machinery
import importlib.util
import io
import json
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from answering import Server
from blank_machine import CLOUD_INIT, ROOT, BlankMachine

PROGRAM = "cloud-init/finetuned-provision"


@pytest.fixture(scope="module")
def bootstrap() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("finetuned_bootstrap", str(CLOUD_INIT / "finetuned-bootstrap"))
    spec = importlib.util.spec_from_loader("finetuned_bootstrap", loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    loader.exec_module(module)
    sys.dont_write_bytecode = before
    return module


def a_bundle(*members: tarfile.TarInfo, version: str = "1.2.3", note: str = "") -> bytes:
    """With what a bundle must have, and `members` after it."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, text in ((PROGRAM, f"#!/bin/sh\n{note}"), ("README.md", "read me")):
            member = tarfile.TarInfo(f"finetuned-{version}/{name}")
            member.size, member.mode = len(text), 0o755 if name == PROGRAM else 0o644
            tar.addfile(member, io.BytesIO(text.encode()))
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return packed.getvalue()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.server.shutdown()
    server.server.server_close()


def settings(source: object, bundle: bytes) -> dict[str, str]:
    return {"version": "1.2.3", "bundle": str(source), "sha256": hashlib.sha256(bundle).hexdigest()}


def bring(bootstrap: ModuleType, blank: BlankMachine, source: object, bundle: bytes) -> None:
    bootstrap.bring_bundle(blank.root, settings(source, bundle), blank.slept.append)


def arrived(blank: BlankMachine) -> bool:
    return (blank.root / "opt/finetuned/bundles/current" / PROGRAM).is_file()


def test_a_bundle_comes_over_the_web_checked_and_unpacked(bootstrap: ModuleType, blank: BlankMachine, server: Server):
    server.serves(a_bundle())
    bring(bootstrap, blank, server.url, a_bundle())
    bundles = blank.root / "opt/finetuned/bundles"
    assert (bundles / "1.2.3/README.md").read_text() == "read me"
    assert (bundles / "1.2.3" / PROGRAM).stat().st_mode & 0o777 == 0o755
    assert (bundles / "1.2.3/README.md").stat().st_mode & 0o777 == 0o644
    assert (bundles / "current").readlink() == Path("1.2.3")
    assert sorted(path.name for path in bundles.iterdir()) == ["1.2.3", "current"]


def test_a_bundle_comes_from_a_path(bootstrap: ModuleType, blank: BlankMachine):
    blank.put("media/bundle.tar.gz", "")
    (blank.root / "media/bundle.tar.gz").write_bytes(a_bundle())
    bring(bootstrap, blank, blank.root / "media/bundle.tar.gz", a_bundle())
    assert arrived(blank)


def test_a_second_run_fetches_and_changes_nothing(bootstrap: ModuleType, blank: BlankMachine, server: Server):
    server.serves(a_bundle())
    bring(bootstrap, blank, server.url, a_bundle())
    before = blank.everything()
    bring(bootstrap, blank, server.url, a_bundle())
    assert blank.everything() == before


def test_another_bundle_of_the_same_version_replaces_it(bootstrap: ModuleType, blank: BlankMachine, server: Server):
    for note in ("old", "new"):
        server.serves(a_bundle(note=note))
        bring(bootstrap, blank, server.url, a_bundle(note=note))
    assert "new" in (blank.root / "opt/finetuned/bundles/current" / PROGRAM).read_text()


def test_what_fails_now_and_then_is_tried_again(bootstrap: ModuleType, blank: BlankMachine, server: Server):
    server.serves(b"not yet", status=404)
    server.serves(b"busy", status=503)
    server.serves(a_bundle())
    bring(bootstrap, blank, server.url, a_bundle())
    assert arrived(blank)
    assert blank.slept == [1, 2]


def test_half_a_bundle_is_fetched_again(bootstrap: ModuleType, blank: BlankMachine, server: Server):
    server.serves(a_bundle()[:100], Content_Length=str(len(a_bundle())))
    server.serves(a_bundle())
    bring(bootstrap, blank, server.url, a_bundle())
    assert arrived(blank)
    assert blank.slept == [1]


def test_a_server_that_never_has_it_is_told_with_the_number_of_tries(
    bootstrap: ModuleType, blank: BlankMachine, server: Server
):
    for _ in range(9):
        server.serves(b"no", status=404)
    with pytest.raises(bootstrap.BootstrapFailed, match=r"404.*9 times over"):
        bring(bootstrap, blank, server.url, a_bundle())
    assert not arrived(blank)


def test_a_bundle_with_another_hash_is_refused_with_both(bootstrap: ModuleType, blank: BlankMachine, server: Server):
    other = a_bundle(note="evil")
    server.serves(other)
    with pytest.raises(bootstrap.BootstrapFailed) as failed:
        bring(bootstrap, blank, server.url, a_bundle())
    assert hashlib.sha256(other).hexdigest() in str(failed.value)
    assert hashlib.sha256(a_bundle()).hexdigest() in str(failed.value)
    assert not (blank.root / "opt/finetuned/bundles/1.2.3").exists()


def test_a_redirect_to_what_is_no_web_address_is_refused(bootstrap: ModuleType, blank: BlankMachine, server: Server):
    server.serves(b"", status=302, Location="ftp://elsewhere/finetuned-1.2.3.tar.gz")
    with pytest.raises(bootstrap.BootstrapFailed, match="no web address"):
        bring(bootstrap, blank, server.url, a_bundle())


def test_a_redirect_within_the_web_is_followed(bootstrap: ModuleType, blank: BlankMachine, server: Server):
    server.serves(b"", status=302, Location=f"{server.address}/elsewhere")
    server.serves(a_bundle())
    bring(bootstrap, blank, server.url, a_bundle())
    assert arrived(blank)


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, target, 1 if kind == tarfile.REGTYPE else 0
    return made


@pytest.mark.parametrize("stranger", [
    member("finetuned-1.2.3/../../../../etc/cron.d/evil"),
    member("/etc/cron.d/evil"),
    member("elsewhere/file"),
    member("finetuned-1.2.3"),
    member("finetuned-1.2.3/link", tarfile.SYMTYPE, "/etc"),
    member("finetuned-1.2.3/link", tarfile.LNKTYPE, "/etc/passwd"),
    member("finetuned-1.2.3/device", tarfile.CHRTYPE),
])  # fmt: skip
def test_a_bundle_may_hold_only_plain_files_below_its_own_folder(
    bootstrap: ModuleType, blank: BlankMachine, stranger: tarfile.TarInfo
):
    bundle = a_bundle(stranger)
    (blank.root / "bundle.tar.gz").write_bytes(bundle)
    before = set(blank.everything())
    with pytest.raises((bootstrap.BootstrapFailed, OSError)):
        bring(bootstrap, blank, blank.root / "bundle.tar.gz", bundle)
    outside = {path for path in set(blank.everything()) - before if "/opt/finetuned/bundles/.partial/" not in path}
    assert outside == set()
    assert not arrived(blank)


@pytest.mark.parametrize(
    "body",
    [b"<html>please log in</html>", gzip.compress(b"no tar"), a_bundle()[:60]],
    ids=["a page", "no tar", "a bundle cut off"],
)
def test_what_is_no_archive_is_refused(bootstrap: ModuleType, blank: BlankMachine, body: bytes):
    (blank.root / "bundle.tar.gz").write_bytes(body)
    with pytest.raises(bootstrap.BootstrapFailed, match=r"no tar\.gz"):
        bring(bootstrap, blank, blank.root / "bundle.tar.gz", body)


def test_the_bundle_of_another_version_is_refused(bootstrap: ModuleType, blank: BlankMachine):
    bundle = a_bundle(version="9.9")
    (blank.root / "bundle.tar.gz").write_bytes(bundle)
    with pytest.raises(bootstrap.BootstrapFailed, match=r"below finetuned-1\.2\.3/"):
        bring(bootstrap, blank, blank.root / "bundle.tar.gz", bundle)


def run(blank: BlankMachine, *options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, CLOUD_INIT / "finetuned-bootstrap", "--root", blank.root, *options]
    return subprocess.run(command, capture_output=True, text=True, env=blank.machine.environment)


def test_cloud_init_has_one_thing_to_call_and_its_first_failure_is_the_answer(blank: BlankMachine):
    assert run(blank, "--begin").returncode == 0
    assert blank.asked("systemctl") == [
        "systemctl daemon-reload",
        "systemctl enable finetuned-provision.service finetuned-scratch.service",
        "systemctl start --no-block finetuned-provision.service",
    ]
    blank.forget()
    blank.says("systemctl enable", "no such unit", 1)
    assert run(blank, "--begin").returncode == 1
    assert blank.asked("systemctl")[-1].startswith("systemctl enable")


def test_a_machine_made_from_the_disk_of_another_proves_anew_that_it_is_whole(blank: BlankMachine):
    blank.put("var/lib/finetuned/provision/done", "{}")
    blank.put("var/lib/finetuned/provision/reboots", "2\n")
    run(blank, "--begin")
    assert list((blank.root / "var/lib/finetuned/provision").iterdir()) == []


def test_a_bundle_that_never_arrives_is_recorded_as_the_reason(blank: BlankMachine):
    blank.settings(bundle="/not/there.tar.gz", sha256="0" * 64)
    assert run(blank).returncode == 1
    assert blank.stamp("failure.json")["stage"] == "bootstrap"
    assert "/not/there.tar.gz is not there" in blank.stamp("failure.json")["reason"]


# What becomes of a machine that failed.


def a_failed(blank: BlankMachine, hook: bool = True, **more: Any) -> dict[str, Any]:
    blank.put(
        "var/lib/finetuned/provision/failure.json", '{"stage": "driver", "reason": "too old", "hint": "rent another"}'
    )
    if hook:
        blank.put("etc/finetuned/stop-machine", "#!/bin/sh", executable=True)
    return {"version": "1.2.3", "hook": "openstack", "grace_minutes": 15, **more}


@pytest.fixture
def on_stubs(blank: BlankMachine, monkeypatch: pytest.MonkeyPatch) -> BlankMachine:
    for name, value in blank.machine.environment.items():
        monkeypatch.setenv(name, value)
    return blank


def test_a_failure_ends_with_the_hook_after_the_grace_time(bootstrap: ModuleType, on_stubs: BlankMachine, capsys):
    bootstrap.fail_loudly(on_stubs.root, a_failed(on_stubs), on_stubs.slept.append)
    said = capsys.readouterr().out
    assert "provisioning failed in stage driver: too old" in said
    assert "rent another" in said
    assert "stops itself (hook openstack) in 15 minutes; to keep it: touch /run/finetuned-keep" in said
    first = on_stubs.asked("systemctl")[0]
    assert first == "systemctl start finetuned-stop-machine.service"
    assert on_stubs.slept[:90] == [10] * 90


def test_a_hook_that_did_not_stop_the_machine_is_called_again_with_growing_pauses(
    bootstrap: ModuleType, on_stubs: BlankMachine, capsys
):
    on_stubs.says("systemctl start finetuned-stop-machine", "no token", 1)
    bootstrap.fail_loudly(on_stubs.root, a_failed(on_stubs), on_stubs.slept.append)
    assert on_stubs.asked("systemctl") == ["systemctl start finetuned-stop-machine.service"] * 6
    assert on_stubs.slept[90:] == [600, 600, 1200, 2400, 3600]
    assert "STILL RUNS AND IS STILL BILLED" in capsys.readouterr().out


def test_whoever_is_at_work_on_the_machine_can_keep_it(bootstrap: ModuleType, on_stubs: BlankMachine, capsys):
    def somebody_comes(seconds: float) -> None:
        on_stubs.put("run/finetuned-keep", "")

    bootstrap.fail_loudly(on_stubs.root, a_failed(on_stubs), somebody_comes)
    assert on_stubs.asked("systemctl") == []
    assert "this machine stays on, and the bill goes on" in capsys.readouterr().out


def test_without_a_hook_it_says_that_the_bill_goes_on(bootstrap: ModuleType, on_stubs: BlankMachine, capsys):
    bootstrap.fail_loudly(on_stubs.root, a_failed(on_stubs, hook=False), on_stubs.slept.append)
    assert "STAYS ON AND THE BILL GOES ON" in capsys.readouterr().out
    assert on_stubs.asked("systemctl") == []


def test_a_failure_is_told_to_journal_console_and_everybody_logged_in(bootstrap: ModuleType, on_stubs: BlankMachine):
    place = on_stubs.root / "run/systemd/journal/socket"
    place.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(str(place))
        bootstrap.fail_loudly(on_stubs.root, a_failed(on_stubs, hook=False), on_stubs.slept.append)
        entry = journal.recv(65536).decode().splitlines()
    assert f"MESSAGE_ID={bootstrap.FAILED_MESSAGE_ID}" in entry
    assert "FINETUNED_PROVISION=driver" in entry
    assert "PRIORITY=2" in entry
    assert "provisioning failed in stage driver" in on_stubs.read("dev/console")
    assert on_stubs.asked("wall")[0].startswith("wall finetuned: provisioning failed")


def test_the_catalog_explains_the_message_of_a_failure(bootstrap: ModuleType):
    catalog = (ROOT / "units/finetuned-provision.catalog").read_text()
    assert f"-- {bootstrap.FAILED_MESSAGE_ID}\nSubject: " in catalog


def test_a_failure_is_posted_to_the_webhook(bootstrap: ModuleType, on_stubs: BlankMachine, server: Server):
    server.serves(b"try later", status=503)
    server.serves(b"thanks")
    settings = a_failed(on_stubs, hook=False, webhook=server.address)
    bootstrap.fail_loudly(on_stubs.root, settings, on_stubs.slept.append)
    said = json.loads(server.bodies[-1])
    assert (said["stage"], said["reason"], said["version"]) == ("driver", "too old", "1.2.3")
    assert said["machine"] == socket.gethostname()
    assert len(server.bodies) == 2


def test_a_webhook_that_does_not_answer_holds_nothing_up(bootstrap: ModuleType, on_stubs: BlankMachine):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
    bootstrap.fail_loudly(on_stubs.root, a_failed(on_stubs, webhook=address), on_stubs.slept.append)
    assert on_stubs.asked("systemctl start finetuned-stop-machine")


def test_a_machine_whose_settings_cannot_be_read_is_stopped_too(bootstrap: ModuleType, on_stubs: BlankMachine, capsys):
    on_stubs.put("etc/finetuned/provision.json", "{")
    on_stubs.put("etc/finetuned/stop-machine", "#!/bin/sh", executable=True)
    bootstrap.fail_loudly(on_stubs.root, bootstrap.settings_or_nothing(on_stubs.root), on_stubs.slept.append)
    assert on_stubs.asked("systemctl start finetuned-stop-machine")
    assert "ended without a word" in capsys.readouterr().out


def test_the_provisioner_fails_by_the_same_program(blank: BlankMachine):
    blank.put("var/lib/finetuned/provision/failure.json", '{"stage": "verify", "reason": "no context"}')
    command = [sys.executable, CLOUD_INIT / "finetuned-provision", "--root", blank.root, "--failed"]
    ended = subprocess.run(command, capture_output=True, text=True, env=blank.machine.environment)
    assert ended.returncode == 0
    assert "provisioning failed in stage verify: no context" in ended.stdout
