"""deploy/hooks: the right calls and no others, nothing changed in a rehearsal, one line of why, no secret shown."""

import ast
import hashlib
import hmac
import json
import os
import re
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from pretend_cloud import SECRET, Asked, Exchange, PretendCloud, pretended

ROOT = Path(__file__).parents[2]
HOOKS = ROOT / "deploy" / "hooks"
CLOUDS = ["aws", "azure", "gcp", "hyperstack", "lambda", "nebius", "openstack", "scaleway"]
MAX_BYTES = 3 * 1024
"""A hook is carried inside user-data (15 KB in all)."""


def signed_by_the_role(asked: Asked) -> bool:
    """AWS Signature Version 4, worked out again from what arrived."""
    given = re.fullmatch(
        r"AWS4-HMAC-SHA256 Credential=AKEY/(\d{8}/eu-north-1/ec2/aws4_request), ?"
        r"SignedHeaders=([a-z0-9;-]+), ?Signature=([0-9a-f]{64})",
        asked.headers.get("authorization", ""),
    )
    if not given:
        return False
    scope, names, signature = given.groups()
    headers = "".join(f"{name}:{asked.headers[name].strip()}\n" for name in names.split(";"))
    canonical = f"POST\n/\n\n{headers}\n{names}\n{hashlib.sha256(asked.body).hexdigest()}"
    to_sign = "\n".join(
        ["AWS4-HMAC-SHA256", asked.headers["x-amz-date"], scope, hashlib.sha256(canonical.encode()).hexdigest()]
    )
    key = f"AWS4{SECRET}/aws+key".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.digest(key, to_sign.encode(), "sha256").hex() == signature


@dataclass(frozen=True)
class Story:
    """One hook doing one thing, on a machine where all is well. The last exchange is the one that changes something."""

    hook: str
    action: str
    exchanges: tuple[Exchange, ...]
    body: bytes | str = b""
    credential: str | None = None
    files: dict[str, str] = field(default_factory=dict)

    @property
    def change(self) -> Exchange:
        return self.exchanges[-1]


def aws(action: str, call: str) -> Story:
    here = {"x-aws-ec2-metadata-token": f"{SECRET}-imds"}
    data = "/latest/meta-data"
    keys = {"Code": "Success", "AccessKeyId": "AKEY", "SecretAccessKey": f"{SECRET}/aws+key", "Token": f"{SECRET}-s=="}
    return Story(
        "aws",
        action,
        (
            Exchange("PUT", "/latest/api/token", {"x-aws-ec2-metadata-token-ttl-seconds": "60"}, f"{SECRET}-imds"),
            Exchange("GET", f"{data}/instance-id", here, "i-0abc"),
            Exchange("GET", f"{data}/placement/region", here, "eu-north-1"),
            Exchange("GET", f"{data}/iam/security-credentials/", here, "tuner"),
            Exchange("GET", f"{data}/iam/security-credentials/tuner", here, json.dumps(keys, indent=2)),
            Exchange("POST", "/", {"x-amz-security-token": f"{SECRET}-s=="}, "<ok/>", accepts=signed_by_the_role),
        ),
        f"Action={call}&InstanceId.1=i-0abc&Version=2016-11-15",
    )


def gcp(action: str, method: str, verb: str) -> Story:
    here = {"metadata-flavor": "Google"}
    data = "/computeMetadata/v1"
    return Story(
        "gcp",
        action,
        (
            Exchange("GET", f"{data}/project/project-id", here, "my-project"),
            Exchange("GET", f"{data}/instance/zone", here, "projects/123/zones/europe-west4-a"),
            Exchange("GET", f"{data}/instance/name", here, "tuner-1"),
            Exchange(
                "GET", f"{data}/instance/service-accounts/default/token", here, f'{{"access_token": "{SECRET}-gcp"}}'
            ),
            Exchange(
                method,
                f"/compute/v1/projects/my-project/zones/europe-west4-a/instances/tuner-1{verb}",
                {"authorization": f"Bearer {SECRET}-gcp"},
                "{}",
            ),
        ),
    )


def azure() -> Story:
    vm = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/tuner"
    here = {"metadata": "true"}
    identity = "/metadata/identity/oauth2/token?api-version=2018-02-01&resource=https%3A%2F%2Fmanagement.azure.com%2F"
    return Story(
        "azure",
        "deallocate",
        (
            Exchange("GET", "/metadata/instance/compute/resourceId?api-version=2021-02-01&format=text", here, vm),
            Exchange("GET", identity, here, f'{{"access_token": "{SECRET}-az", "expires_in": "86399"}}'),
            Exchange(
                "POST",
                f"{vm}/deallocate?api-version=2024-07-01",
                {"authorization": f"Bearer {SECRET}-az", "content-length": "0"},
                status=202,
            ),
        ),
    )


def lambda_() -> Story:
    key = {"authorization": f"Bearer {SECRET}-lambda"}
    machines = [
        {"id": "other", "ip": "198.51.100.9", "private_ip": "10.19.0.9"},
        {"id": "0920", "ip": "198.51.100.7", "private_ip": "10.19.0.7"},
        {"id": "booting"},
    ]
    return Story(
        "lambda",
        "terminate",
        (
            Exchange("GET", "/instances", key, json.dumps({"data": machines})),
            Exchange("POST", "/instance-operations/terminate", {**key, "content-type": "application/json"}, "{}"),
        ),
        '{"instance_ids": ["0920"]}',
        f"{SECRET}-lambda\n",
    )


def nebius() -> Story:
    here = {"metadata": "true"}
    vm = b"computeinstance-e00abc"
    message = b"\x0a" + bytes([len(vm)]) + vm
    return Story(
        "nebius",
        "stop",
        (
            Exchange("GET", "/v1/instance-data/id", here, vm),
            Exchange("GET", "/v1/iam/sa/token/access_token", here, f"{SECRET}-nebius"),
            Exchange(
                "POST",
                "/nebius.compute.v1.InstanceService/Stop",
                {"authorization": f"Bearer {SECRET}-nebius", "content-type": "application/grpc", "te": "trailers"},
                b"\0\0\0\0\x02\x0a\0",
                trailers={"grpc-status": "0"},
            ),
        ),
        b"\0" + len(message).to_bytes(4, "big") + message,
    )


def scaleway(action: str) -> Story:
    conf = {"id": "11111111-2222", "location": {"zone_id": "fr-par-2"}}
    return Story(
        "scaleway",
        action,
        (
            Exchange("GET", "/conf?format=json", {}, json.dumps(conf)),
            Exchange(
                "POST",
                "/instance/v1/zones/fr-par-2/servers/11111111-2222/action",
                {"x-auth-token": f"{SECRET}-scw", "content-type": "application/json"},
                status=202,
            ),
        ),
        f'{{"action": "{action}"}}',
        f"{SECRET}-scw",
    )


def openstack(action: str) -> Story:
    """URLs in the credential are completed with the server's once it listens."""
    who = {"id": "app-id", "secret": f"{SECRET}-app"}
    return Story(
        "openstack",
        action,
        (
            Exchange(
                "POST",
                "/v3/auth/tokens",
                {"content-type": "application/json"},
                "{}",
                201,
                {"X-Subject-Token": f"{SECRET}-keystone"},
                accepts=lambda asked: json.loads(asked.body)["auth"]["identity"]["application_credential"] == who,
            ),
            Exchange("POST", "/compute/v2.1/servers/uuid-7/action", {"x-auth-token": f"{SECRET}-keystone"}, status=202),
        ),
        f'{{"{action}": null}}',
        json.dumps({"auth_url": "URL/v3", "compute_url": "URL/compute/v2.1", "application_credential": who}),
        {"var/lib/cloud/data/instance-id": "uuid-7\n"},
    )


def hyperstack(action: str, method: str, verb: str) -> Story:
    key = {"api_key": f"{SECRET}-hyper"}
    machines = {"instances": [{"id": 6, "openstack_id": "uuid-6"}, {"id": 7, "openstack_id": "uuid-7"}]}
    return Story(
        "hyperstack",
        action,
        (
            Exchange("GET", "/core/virtual-machines?pageSize=100", key, json.dumps(machines)),
            Exchange(method, f"/core/virtual-machines/7{verb}", key, '{"status": true}'),
        ),
        credential=f"{SECRET}-hyper",
        files={"var/lib/cloud/data/instance-id": "uuid-7\n"},
    )


STORIES = [
    aws("stop", "StopInstances"),
    aws("terminate", "TerminateInstances"),
    azure(),
    gcp("stop", "POST", "/stop?discardLocalSsd=true"),
    gcp("delete", "DELETE", ""),
    hyperstack("hibernate", "GET", "/hibernate"),
    hyperstack("delete", "DELETE", ""),
    lambda_(),
    nebius(),
    openstack("shelve"),
    openstack("forceDelete"),
    scaleway("poweroff"),
    scaleway("terminate"),
]
each_story = pytest.mark.parametrize("story", STORIES, ids=lambda story: f"{story.hook}-{story.action}")
one_story_a_hook = pytest.mark.parametrize(
    "story", list({story.hook: story for story in STORIES}.values()), ids=lambda story: story.hook
)


@dataclass(frozen=True)
class Machine:
    """A fake root, and a PATH on which poweroff only leaves a mark."""

    root: Path
    commands: Path

    @property
    def is_off(self) -> bool:
        return (self.commands / "off").exists()

    def write(self, name: str, content: str, mode: int = 0o600) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(mode)

    def prepare(self, story: Story, cloud: PretendCloud) -> None:
        for name, content in story.files.items():
            self.write(name, content, 0o644)
        if story.credential is not None:
            self.write(f"etc/finetuned/credentials/{story.hook}", story.credential.replace("URL", cloud.url))

    def run(self, hook: str, *options: str, cloud: PretendCloud | None = None, **more: str) -> "Ended":
        url = cloud.url if cloud else "http://127.0.0.1:9"
        environment = {
            "PATH": f"{self.commands}:{os.environ['PATH']}",
            "FINETUNED_ROOT": str(self.root),
            "FINETUNED_API": url,
            "FINETUNED_METADATA": url,
            **more,
        }
        done = subprocess.run(
            [HOOKS / hook, *options],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return Ended(done.returncode, done.stdout, done.stderr)


@dataclass(frozen=True)
class Ended:
    status: int
    said: str
    complained: str

    def assert_refused(self, hook: str) -> str:
        """It ended with 1 and one line that begins with its name. Returns the line."""
        assert self.status == 1, self
        assert self.complained.startswith(f"{hook}: not stopped, still billed: ")
        assert self.complained.endswith("\n")
        assert self.complained.count("\n") == 1
        assert "Traceback" not in self.complained
        return self.complained


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    commands = tmp_path / "bin"
    commands.mkdir()
    made = {"systemctl": f'[ "$*" = poweroff ] && touch {commands}/off', "hostname": "echo '10.19.0.7 fd00::7 '"}
    for name, does in made.items():
        (commands / name).write_text(f"#!/bin/sh\n{does}\n")
        (commands / name).chmod(0o755)
    return Machine(tmp_path / "root", commands)


def told(story: Story, machine: Machine, *options: str, **changed: object) -> tuple[Ended, PretendCloud]:
    """The story run with its last exchange changed; `first=…` stands for the first one."""
    exchanges = [*story.exchanges]
    if (first := changed.pop("first", None)) is not None:
        exchanges[0] = replace(exchanges[0], **first)  # type: ignore[arg-type]
    exchanges[-1] = replace(exchanges[-1], **changed)  # type: ignore[arg-type]
    with pretended(*exchanges) as cloud:
        machine.prepare(story, cloud)
        return machine.run(story.hook, story.action, *options, cloud=cloud), cloud


@each_story
def test_a_hook_makes_exactly_the_calls_that_end_the_charge(story: Story, machine: Machine):
    ended, cloud = told(story, machine)
    assert ended == Ended(0, ended.said, "")
    assert [(asked.method, asked.path) for asked in cloud.asked] == [
        (exchange.method, exchange.path) for exchange in story.exchanges
    ]
    expected = story.body.encode() if isinstance(story.body, str) else story.body
    assert cloud.asked[-1].body == expected
    assert not machine.is_off


@each_story
def test_secrets_are_neither_printed_nor_in_a_command_line(story: Story, machine: Machine):
    ended, cloud = told(story, machine)
    assert SECRET not in ended.said
    assert cloud.argv_with_a_secret == []
    refused, _ = told(
        story, machine, status=403, gives=f"the token {story.change.needs} may not", accepts=lambda _: True
    )
    assert SECRET not in refused.said + refused.complained


@each_story
def test_a_dry_run_prints_the_call_and_asks_nobody(story: Story, machine: Machine):
    with pretended(*story.exchanges) as cloud:
        ended = machine.run(story.hook, "--dry-run", story.action, cloud=cloud)
    assert (ended.status, ended.complained, cloud.asked) == (0, "", [])
    lines = ended.said.splitlines()
    assert len(lines) == len(story.exchanges)
    assert [line.split()[0] for line in lines] == [exchange.method for exchange in story.exchanges]
    if isinstance(story.body, str) and story.hook != "aws":
        assert story.body.partition(":")[0] in lines[-1]
    assert not machine.is_off


@each_story
def test_a_check_tries_all_but_the_last_call(story: Story, machine: Machine):
    ended, cloud = told(story, machine, "--check")
    assert (ended.status, ended.complained) == (0, "")
    assert [asked.path for asked in cloud.asked] == [exchange.path for exchange in story.exchanges[:-1]]
    assert story.change.path in ended.said.splitlines()[-1]


@one_story_a_hook
@pytest.mark.parametrize("status", [302, 401, 404, 500])
def test_a_refused_call_is_one_readable_line_with_the_answer(status: int, story: Story, machine: Machine):
    ended, _ = told(story, machine, status=status, gives='{"error":\n "out of luck"}', trailers={})
    line = ended.assert_refused(story.hook)
    assert str(status) in line
    assert "out of luck" in line or story.hook == "nebius"


@one_story_a_hook
@pytest.mark.parametrize("status", [401, 500])
def test_a_refusal_at_the_first_call_changes_nothing(status: int, story: Story, machine: Machine):
    ended, cloud = told(story, machine, first={"status": status})
    assert str(status) in ended.assert_refused(story.hook)
    assert len(cloud.asked) == 1


@one_story_a_hook
def test_garbage_from_the_cloud_never_reaches_the_call_that_changes(story: Story, machine: Machine):
    for garbage in (b"", b"<html>\xff\xfe", b"[1, 2]", b'{"data": 3}'):
        spoilt = story.exchanges[-2]
        exchanges = (*story.exchanges[:-2], replace(spoilt, gives=garbage, headers={}), story.change)
        with pretended(*exchanges) as cloud:
            machine.prepare(story, cloud)
            machine.run(story.hook, story.action, cloud=cloud).assert_refused(story.hook)
        accepted = [asked for asked in cloud.asked if asked.path == story.change.path]
        assert accepted == [] or story.hook == "nebius"  # its token is bare text: any text is one, and is refused


def test_a_redirect_is_not_followed(machine: Machine):
    moved = {"status": 302, "headers": {"Location": "/metadata/identity/elsewhere"}}
    ended, cloud = told(azure(), machine, first=moved)
    assert "302" in ended.assert_refused("azure")
    assert len(cloud.asked) == 1


@one_story_a_hook
def test_a_proxy_of_the_environment_is_not_used(story: Story, machine: Machine):
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "ALL_PROXY", "all_proxy"), "http://127.0.0.1:9")
    with pretended(*story.exchanges) as cloud:
        machine.prepare(story, cloud)
        ended = machine.run(story.hook, story.action, cloud=cloud, **nowhere)
    assert ended.status == 0


@pytest.mark.parametrize("story", [lambda_(), nebius()], ids=lambda story: story.hook)
def test_an_api_must_prove_who_it_is_before_it_sees_a_token(story: Story, machine: Machine, tmp_path: Path):
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    a_key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -subj /CN=api -addext subjectAltName=IP:127.0.0.1"
    subprocess.run(
        [*f"openssl req -x509 {a_key} -nodes -days 1".split(), "-out", certificate, "-keyout", key],
        check=True,
        capture_output=True,
    )
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    of_metadata = [exchange for exchange in story.exchanges if exchange.path.startswith("/v1/")]
    of_api = [exchange for exchange in story.exchanges if exchange not in of_metadata]
    with pretended(*of_metadata) as metadata, pretended(*of_api, tls=tls) as api:
        machine.prepare(story, api)
        where = {"FINETUNED_API": api.url, "FINETUNED_METADATA": metadata.url}
        assert "certificate" in machine.run(story.hook, **where).assert_refused(story.hook)
        assert api.asked == []
        assert machine.run(story.hook, SSL_CERT_FILE=str(certificate), **where).status == 0
        assert [asked.path for asked in api.asked] == [exchange.path for exchange in of_api]


@one_story_a_hook
def test_a_cloud_that_is_not_there_is_told_in_one_line(story: Story, machine: Machine):
    with pretended() as gone:
        machine.prepare(story, gone)
    machine.run(story.hook, story.action, cloud=gone).assert_refused(story.hook)


@pytest.mark.slow
@pytest.mark.parametrize("story", [azure(), nebius()], ids=lambda story: story.hook)
def test_a_cloud_that_does_not_answer_is_given_up_after_ten_seconds(story: Story, machine: Machine):
    ended, _ = told(story, machine, first={"takes_seconds": 12})
    assert "timed out" in ended.assert_refused(story.hook)


def test_a_grpc_refusal_inside_a_good_http_answer_counts(machine: Machine):
    trailers = {"grpc-status": "7", "grpc-message": "Permission denied"}
    ended, _ = told(nebius(), machine, gives=b"", trailers=trailers)
    assert "Permission denied" in ended.assert_refused("nebius")


def test_hyperstack_saying_no_inside_a_good_http_answer_counts(machine: Machine):
    ended, _ = told(
        hyperstack("hibernate", "GET", "/hibernate"), machine, gives='{"status": false, "message": "flavor"}'
    )
    assert "flavor" in ended.assert_refused("hyperstack")


@pytest.mark.parametrize("listed", [[], ["10.19.0.7", "10.19.0.7"]], ids=["none", "two"])
def test_lambda_terminates_nothing_unless_exactly_one_instance_has_our_address(listed: list[str], machine: Machine):
    data = [{"id": f"vm-{number}", "private_ip": address} for number, address in enumerate(listed)]
    ended, cloud = told(lambda_(), machine, first={"gives": json.dumps({"data": data})})
    assert "no one ID with our address" in ended.assert_refused("lambda")
    assert len(cloud.asked) == 1


@pytest.mark.parametrize("story", [story for story in STORIES if story.credential], ids=lambda story: story.hook)
def test_a_credential_that_others_can_read_is_not_used(story: Story, machine: Machine):
    with pretended(*story.exchanges) as cloud:
        machine.prepare(story, cloud)
        path = machine.root / "etc/finetuned/credentials" / story.hook
        path.chmod(0o640)
        line = machine.run(story.hook, story.action, cloud=cloud).assert_refused(story.hook)
        assert str(path) in line
        assert "0600" in line
        path.unlink()
        assert str(path) in machine.run(story.hook, story.action, cloud=cloud).assert_refused(story.hook)
    assert not [asked for asked in cloud.asked if asked.path == story.change.path]


@pytest.mark.parametrize("hook", CLOUDS)
@pytest.mark.parametrize("words", [["--dryrun"], ["--dry-run", "explode"]])
def test_a_mistyped_option_stops_a_hook(hook: str, words: list[str], machine: Machine):
    assert words[-1] in machine.run(hook, *words).assert_refused(hook)


def rendered(*options: str) -> subprocess.CompletedProcess[str]:
    release = ["--release", "https://example.org/finetuned-0.1.0.tar.gz", "--sha256", "a" * 64, "--no-gzip"]
    return subprocess.run(
        [sys.executable, ROOT / "cloud-init" / "render", *release, *options], capture_output=True, text=True
    )


@pytest.mark.parametrize("hook", [*CLOUDS, "poweroff"])
def test_user_data_can_carry_each_hook(hook: str):
    done = rendered("--hook", hook)
    assert done.returncode == 0, done.stderr
    assert "path: /etc/finetuned/stop-machine\n" in done.stdout
    assert "path: /etc/finetuned/stop-machine.options" not in done.stdout


def test_user_data_can_carry_what_the_hook_is_to_do():
    assert (
        "path: /etc/finetuned/stop-machine.options" in rendered("--hook", "aws", "--hook-options", "terminate").stdout
    )
    refused = rendered("--hook", "aws", "--hook-options", "terminat1")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "terminat1" in refused.stderr


def test_the_options_file_chooses_what_to_do(machine: Machine):
    machine.write("etc/finetuned/stop-machine.options", "terminate\n", 0o644)
    assert '{"action": "terminate"}' in machine.run("scaleway", "--dry-run").said
    assert '{"action": "poweroff"}' in machine.run("scaleway", "--dry-run", "poweroff").said
    assert "TerminateInstances" in machine.run("aws", "--dry-run").said


@pytest.mark.parametrize("hook", ["aws", "gcp"])
def test_aws_and_gcp_power_off_by_default_and_ask_nobody(hook: str, machine: Machine):
    assert machine.run(hook, "--dry-run") == Ended(0, "systemctl poweroff\n", "")
    assert not machine.is_off
    assert machine.run(hook).status == 0
    assert machine.is_off


@pytest.mark.parametrize("hook", ["aws", "gcp", "poweroff"])
def test_a_poweroff_that_fails_is_told(hook: str, machine: Machine):
    put_dmi(machine, "Amazon EC2", "p5.4xlarge", "")
    (machine.commands / "systemctl").write_text("#!/bin/sh\nexit 1\n")
    assert "poweroff" in machine.run(hook).assert_refused(hook)


def put_dmi(machine: Machine, vendor: str, product: str, tag: str) -> None:
    for name, text in {"sys_vendor": vendor, "product_name": product, "chassis_asset_tag": tag}.items():
        machine.write(f"sys/class/dmi/id/{name}", text + "\n", 0o444)


AZURE_TAG = "7783-7084-3265-9085-8269-3286-77"


@pytest.mark.parametrize(("vendor", "product"), [("Amazon EC2", "p5.48xlarge"), ("Google", "Google Compute Engine")])
def test_poweroff_powers_off_where_that_ends_the_charge(vendor: str, product: str, machine: Machine):
    put_dmi(machine, vendor, product, "")
    assert machine.run("poweroff", "--dry-run").status == 0
    assert not machine.is_off
    assert machine.run("poweroff") == Ended(0, "systemctl poweroff\n", "")
    assert machine.is_off


@pytest.mark.parametrize(
    ("vendor", "product", "tag", "names"),
    [
        ("Microsoft Corporation", "Virtual Machine", AZURE_TAG, "azure"),
        ("Microsoft Corporation", "Virtual Machine", "", "nobody looked up"),
        ("Scaleway", "H100-1-80G", "", "scaleway"),
        ("OpenStack Foundation", "OpenStack Nova", "", "openstack"),
        ("RDO", "OpenStack Compute", "", "openstack"),
        ("Nebius", "gpu-h100-sxm", "", "nebius"),
        ("QEMU", "Standard PC (Q35 + ICH9, 2009)", "", "nobody looked up"),
        ("Google", "Chromebook", "", "nobody looked up"),
        ("", "", "", "nobody looked up"),
    ],
)
def test_poweroff_refuses_where_the_bill_goes_on_or_nobody_knows(
    vendor: str, product: str, tag: str, names: str, machine: Machine
):
    put_dmi(machine, vendor, product, tag)
    line = machine.run("poweroff").assert_refused("poweroff")
    assert names in line
    assert "--i-know-it-still-bills" in line
    assert not machine.is_off
    assert machine.run("poweroff", "--i-know-it-still-bills").status == 0
    assert machine.is_off


def test_poweroff_can_be_told_by_the_options_file_and_looks_under_a_root(machine: Machine, tmp_path: Path):
    put_dmi(machine, "Scaleway", "H100", "")
    machine.write("etc/finetuned/stop-machine.options", "--i-know-it-still-bills\n", 0o644)
    assert machine.run("poweroff", "--dry-run").status == 0
    (tmp_path / "empty").mkdir()
    bare = machine.run(
        "poweroff", "--root", str(tmp_path / "empty"), "--dry-run", FINETUNED_ROOT=str(tmp_path / "empty")
    )
    bare.assert_refused("poweroff")


def hooks() -> Iterator[Path]:
    yield from (path for path in sorted(HOOKS.iterdir()) if path.name != "README.md")


def test_there_is_a_hook_for_every_cloud_of_the_table():
    assert [path.name for path in hooks()] == sorted([*CLOUDS, "poweroff"])
    table = (HOOKS / "README.md").read_text()
    assert [name for name in [*CLOUDS, "poweroff"] if f"`{name}`" not in table] == []


@pytest.mark.parametrize("hook", [path.name for path in hooks()])
def test_a_hook_is_small_and_can_be_run(hook: str):
    path = HOOKS / hook
    assert path.stat().st_size < MAX_BYTES
    assert path.stat().st_mode & 0o111 == 0o111
    first = path.read_text().splitlines()[0]
    assert first in ("#!/usr/bin/python3 -I", "#!/usr/bin/env bash")


def python_hooks() -> list[Path]:
    return [path for path in hooks() if "python3" in path.read_text().partition("\n")[0]]


def test_hooks_in_python_suit_the_oldest_python_of_the_table_and_only_its_library():
    for path in python_hooks():
        tree = ast.parse(path.read_text(), feature_version=(3, 9))
        imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
        assert imported <= {"json", "os", "subprocess", "sys", "time"} <= sys.stdlib_module_names


def test_hooks_in_python_pass_ruff():
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [Path(sys.executable).with_name("ruff"), *command, *python_hooks()],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_what_hooks_share_is_the_same_in_each():
    """Each is one file, so it is written out in each: a fix belongs in all of them."""
    shared = {re.search(r'\nROOT = Path.*?only \{ACTIONS\}"\)\n', path.read_text(), re.S) for path in python_hooks()}
    assert len({found[0] if found else None for found in shared}) == 1
    credentials = {re.search(r"\ndef credential.*?return text\n", path.read_text(), re.S) for path in python_hooks()}
    assert len({found[0] for found in credentials if found}) == 1
    shells = {
        re.search(r"\noptions=.*?\naction=[^\n]*\n", (HOOKS / name).read_text(), re.S) for name in ("aws", "nebius")
    }
    assert len({found[0] if found else None for found in shells}) == 1
