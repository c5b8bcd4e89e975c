"""render: a user-data that unpacks to what was asked, fits every cloud, is the same each time, and holds no secret."""

import base64
import gzip
import io
import json
import random
import re
import string
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from provision.settings import read_settings
from ruamel.yaml import YAML
from userdata.main import main, tell_limits
from userdata.pack import BUDGET_BYTES, LIMITS, pack, unpack

from blank_machine import CLOUD_INIT, ROOT, BlankMachine

SHA256 = "0" * 63 + "1"
KEY = f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{'a' * 43} anna@laptop"
URL = "https://example.org/finetuned-1.2.3.tar.gz"
HOOKS = sorted(path.name for path in (ROOT / "deploy/hooks").iterdir() if "." not in path.name)


def a_key(tmp_path: Path, name: str = "anna", text: str = KEY) -> str:
    path = tmp_path / f"{name}.pub"
    path.write_text(text + "\n")
    return str(path)


def a_bundle(tmp_path: Path, top: str = "finetuned-1.2.3") -> Path:
    path = tmp_path / "bundle.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo(f"{top}/README.md"), io.BytesIO())
    return path


def render(tmp_path: Path, *options: str) -> bytes:
    out = tmp_path / "user-data.rendered"
    assert main([f"--release={URL}", f"--sha256={SHA256}", f"--out={out}", *options]) == 0
    return out.read_bytes()


def refusal(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main(list(options)) == 1
    return capsys.readouterr().err


def cloud_config(data: bytes) -> dict[str, Any]:
    (text,) = unpack(data)
    assert text.startswith("#cloud-config\n")
    config: dict[str, Any] = YAML(typ="safe").load(text)
    return config


def files(data: bytes) -> Mapping[str, Mapping[str, Any]]:
    return {file["path"]: file for file in cloud_config(data)["write_files"]}


def settings(data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(files(data)["/etc/finetuned/provision.json"]["content"])
    return found


def test_the_files_of_the_user_data_are_those_of_this_release_byte_for_byte(tmp_path: Path):
    found = files(render(tmp_path, "--hook=openstack"))
    units = "/usr/local/lib/systemd/system"
    for name in ("provision", "provision-failed", "scratch", "stop-machine"):
        unit = f"finetuned-{name}.service"
        assert found[f"{units}/{unit}"]["content"] == (ROOT / "units" / unit).read_text()
    bootstrap = found["/usr/local/sbin/finetuned-bootstrap"]
    assert bootstrap["content"] == (CLOUD_INIT / "finetuned-bootstrap").read_text()
    assert bootstrap["permissions"] == "0755"


def test_the_hook_itself_travels_so_that_a_machine_without_a_bundle_can_stop(tmp_path: Path):
    found = files(render(tmp_path, "--hook=lambda"))["/etc/finetuned/stop-machine"]
    assert found["content"] == (ROOT / "deploy/hooks/lambda").read_text()
    assert found["permissions"] == "0755"


def test_without_a_hook_nothing_stops_the_machine_and_render_says_so(tmp_path: Path, capsys):
    assert "/etc/finetuned/stop-machine" not in files(render(tmp_path))
    assert "goes on costing money" in capsys.readouterr().err


def test_the_settings_are_those_that_the_provisioner_reads(tmp_path: Path, blank: BlankMachine):
    options = ["--gpu=required", "--driver-branch=595", "--upgrade-driver", "--spool-disk=/dev/disk/by-id/v7"]
    options += ["--scratch-disk=/dev/vd[bc]", "--user=anna", "--webhook=https://example.org/hook", "--grace-minutes=5"]
    options += ["--python=/opt/py/bin/python", "--wheelhouse=/wheels", "--worker-site=/site", "--hook=aws"]
    blank.put("etc/finetuned/provision.json", json.dumps(settings(render(tmp_path, *options))))
    read = read_settings(blank.machine)
    assert (read.version, read.bundle, read.sha256) == ("1.2.3", URL, SHA256)
    assert (read.gpu, read.driver_branch, read.driver_too_old) == ("required", 595, "upgrade")
    assert (read.spool_disk, read.scratch_disks) == ("/dev/disk/by-id/v7", ("/dev/vd[bc]",))
    assert (read.users, read.webhook, read.grace_minutes) == (("anna",), "https://example.org/hook", 5)
    assert (read.python, read.wheelhouse, read.worker_site) == ("/opt/py/bin/python", "/wheels", "/site")
    assert read.hook == "aws"


def test_cloud_init_is_given_one_thing_to_run_and_nothing_to_upgrade(tmp_path: Path):
    config = cloud_config(render(tmp_path))
    assert config["runcmd"] == [["/usr/local/sbin/finetuned-bootstrap", "--begin"]]
    assert set(config) == {"write_files", "runcmd"}


def test_the_network_stage_of_cloud_init_gets_an_end(tmp_path: Path):
    path = "/etc/systemd/system/cloud-init-network.service.d/10-finetuned.conf"
    assert "TimeoutStartSec=300" in files(render(tmp_path))[path]["content"]


def test_no_file_needs_a_user_that_is_made_later(tmp_path: Path):
    """write_files runs before users and groups are made."""
    assert not any("owner" in file for file in files(render(tmp_path, "--user=anna")).values())


def test_keys_are_for_the_images_own_user_and_for_the_one_named(tmp_path: Path):
    keys = [a_key(tmp_path), a_key(tmp_path, "bert", KEY.replace("anna", "bert"))]
    config = cloud_config(render(tmp_path, *(f"--authorized-key={key}" for key in keys), "--user=anna"))
    assert config["ssh_authorized_keys"] == [KEY, KEY.replace("anna", "bert")]
    default, anna = config["users"]
    assert default == "default"
    assert anna["name"] == "anna"
    assert anna["ssh_authorized_keys"] == config["ssh_authorized_keys"]
    assert "sudo" not in anna


def test_the_same_request_makes_the_same_bytes(tmp_path: Path):
    assert render(tmp_path, "--hook=gcp") == render(tmp_path, "--hook=gcp")


@pytest.mark.parametrize("hook", ["none", *HOOKS])
@pytest.mark.parametrize("gzipped", [True, False])
def test_every_hook_fits_the_budget_and_every_clouds_limit(tmp_path: Path, hook: str, gzipped: bool, capsys):
    data = render(
        tmp_path, f"--hook={hook}", f"--authorized-key={a_key(tmp_path)}", *([] if gzipped else ["--no-gzip"])
    )
    assert data.startswith(b"\x1f\x8b") is gzipped
    assert len(data) < BUDGET_BYTES
    assert "TOO LARGE" not in capsys.readouterr().err


def test_uncompressed_it_holds_the_same_files(tmp_path: Path):
    """cloud-init itself unpacks `gz+b64`."""
    plain, packed = files(render(tmp_path, "--hook=aws", "--no-gzip")), files(render(tmp_path, "--hook=aws"))
    assert plain.keys() == packed.keys()
    for path, file in plain.items():
        content = file["content"]
        if file.get("encoding") == "gz+b64":
            content = gzip.decompress(base64.b64decode(content)).decode()
        assert content == packed[path]["content"]


def test_it_says_its_size_and_whom_it_fits(tmp_path: Path, capsys):
    data = render(tmp_path)
    said = capsys.readouterr().err
    assert f"{len(data)} bytes of {BUDGET_BYTES}" in said
    assert all(re.search(rf"{re.escape(limit.cloud)} +fits", said) for limit in LIMITS)


def test_it_says_whose_limit_is_passed(capsys):
    tell_limits(b"x" * 20000)
    said = capsys.readouterr().err
    assert re.search(r"AWS +TOO LARGE 20000 of 16384", said)
    assert re.search(r"Azure \(custom data\) +fits", said)


def test_more_than_the_budget_is_refused(tmp_path: Path, capsys):
    letters = "".join(random.Random(7).choices(string.ascii_letters, k=20000))
    keys = "\n".join(f"ssh-ed25519 {letters[i : i + 80]}" for i in range(0, 20000, 80))
    path = a_key(tmp_path, "many", keys)
    said = refusal(
        capsys, f"--release={URL}", f"--sha256={SHA256}", f"--authorized-key={path}", f"--out={tmp_path}/out"
    )
    assert re.search(rf"has \d+ bytes, more than {BUDGET_BYTES}", said)
    assert not (tmp_path / "out").exists()


SECRETS = {
    "hf_abcdefghijklmnopqrstuvwx": "Hugging Face",
    "AKIAIOSFODNN7EXAMPLE": "AWS",
    "sk-proj-abcdefghijklmnop1234": "API key",
    "ghp_abcdefghijklmnopqrstuvwx1234": "GitHub",
    "https://anna:geheim@example.org/finetuned-1.2.3.tar.gz": "password",
    "https://example.org/b.tar.gz?X-Amz-Signature=abcdef": "signed address",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc": "JWT",
}


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("option", ["--release", "--webhook", "--spool-disk", "--user", "--python", "--scratch-disk"])
def test_what_looks_like_a_secret_is_refused_in_any_option_and_not_repeated(option: str, secret: str, capsys):
    said = refusal(
        capsys, *([] if option == "--release" else [f"--release={URL}"]), f"--sha256={SHA256}", f"{option}={secret}"
    )
    assert SECRETS[secret] in said
    assert "/etc/finetuned/credentials/" in said
    assert secret not in said


def test_a_private_key_is_refused(tmp_path: Path, capsys):
    path = a_key(tmp_path, text="-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n-----END OPENSSH PRIVATE KEY-----")
    said = refusal(capsys, f"--release={URL}", f"--sha256={SHA256}", f"--authorized-key={path}")
    assert "private key" in said
    assert ".pub" in said


def test_the_key_of_a_security_token_is_no_api_key(tmp_path: Path):
    key = f"sk-ssh-ed25519@openssh.com AAAAGnNrLXNzaC1lZDI1NTE5QG9wZW5zc2guY29t{'a' * 40} anna"
    assert cloud_config(render(tmp_path, f"--authorized-key={a_key(tmp_path, text=key)}"))["ssh_authorized_keys"] == [
        key
    ]


def test_a_bundle_here_gives_version_and_hash(tmp_path: Path):
    bundle, out = a_bundle(tmp_path), tmp_path / "out"
    assert main([f"--release={bundle}", f"--out={out}"]) == 0
    found = settings(out.read_bytes())
    assert (found["version"], found["bundle"]) == ("1.2.3", str(bundle))
    assert main([f"--release={URL}", f"--bundle={bundle}", f"--out={out}"]) == 0
    assert settings(out.read_bytes())["sha256"] == found["sha256"]


@pytest.mark.parametrize(("options", "word"), [
    ([f"--release={URL}"], "--sha256 of the bundle is needed"),
    (["--release=https://example.org/latest", f"--sha256={SHA256}"], "--release-version is needed"),
    (["--release=/not/here.tar.gz"], "no file here"),
    (["--release=ftp://example.org/finetuned-1.2.3.tar.gz", f"--sha256={SHA256}"], "expected https://"),
    ([f"--release={URL}", f"--sha256={SHA256}", "--hook=aliens"], "expected none, aws, azure"),
    ([f"--release={URL}", f"--sha256={SHA256}", "--spool-disk=vdb"], "expected an absolute path"),
    ([f"--release={URL}", f"--sha256={SHA256}", "--user=root"], "expected the name of a person's account"),
    ([f"--release={URL}", f"--sha256={SHA256}", "--user=a: b"], "expected the name of a person's account"),
    ([f"--release={URL}", f"--sha256={SHA256}", "--webhook=mailto:anna"], "expected https://"),
])  # fmt: skip
def test_what_cannot_be_rendered_is_told_by_its_option(options: list[str], word: str, capsys):
    assert word in refusal(capsys, *options)


def test_a_hash_that_is_not_the_bundles_is_told(tmp_path: Path, capsys):
    said = refusal(capsys, f"--release={a_bundle(tmp_path)}", f"--sha256={SHA256}")
    assert SHA256 in said


def test_a_tar_that_is_no_bundle_is_told(tmp_path: Path, capsys):
    assert "not finetuned-VERSION" in refusal(capsys, f"--release={a_bundle(tmp_path, top='other')}")


def test_what_was_packed_unpacks_to_the_same():
    for text in ("#cloud-config\n", "#cloud-config\n# ä, a tab\t, a line of 2000: " + "x" * 2000 + "\n"):
        assert unpack(pack(text)) == [text]
        assert unpack(pack(text, compress=False)) == [text]


def test_a_message_packed_twice_is_not_taken_for_one():
    """Terraform's two ways to encode, used together."""
    with pytest.raises(ValueError):
        unpack(gzip.compress(pack("#cloud-config\n")))


def test_the_program_runs_by_itself(tmp_path: Path):
    command = [sys.executable, "-I", CLOUD_INIT / "render", f"--release={URL}", f"--sha256={SHA256}"]
    ended = subprocess.run(command, capture_output=True, check=True)
    assert settings(ended.stdout)["version"] == "1.2.3"
