"""deploy/opentofu and deploy/packer, as far as they can be checked without a cloud: form, names, what must not be lost.

`provider_schemas.json` holds the arguments of the resources that we use, and which are required, taken from the typed
bindings that are published for those provider versions. Neither OpenTofu nor Packer is needed, nor a provider.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hcl2
import pytest

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
SCHEMAS = json.loads(Path(__file__).with_name("provider_schemas.json").read_text())
OPENTOFU = {"aws": "aws", "gcp": "google", "openstack": "openstack"}
"""Folder: provider."""
INSTANCE = {
    "aws": ("aws_instance", "ami", "user_data_base64"),
    "gcp": ("google_compute_instance", "boot_disk[0].initialize_params[0].image", 'metadata["user-data"]'),
    "openstack": ("openstack_compute_instance_v2", "image_id", "user_data"),
}
"""Folder: the machine's resource, and where its image and its user-data are."""
META_ARGUMENTS = {"lifecycle", "depends_on", "count", "for_each", "provider", "timeouts", "dynamic"}
SSH = {"ssh_username", "ssh_clear_authorized_keys"}
PACKER = {
    "amazon-ebs": {
        "needed": {"region", "source_ami", "instance_type", "ami_name"},
        "known": {*SSH, "imds_support", "metadata_options", "launch_block_device_mappings"},
    },
    "googlecompute": {
        "needed": {"project_id", "source_image", "zone"},
        "known": {*SSH, "machine_type", "image_name", "disk_size"},
    },
    "openstack": {
        "needed": {"image_name", "source_image", "flavor"},
        "known": {*SSH, "cloud", "networks"},
    },
}
"""Arguments in the plugins' own specifications (builder.hcl2spec.go), as far as we use them."""
hcl_files = pytest.mark.parametrize(
    "path",
    sorted([*DEPLOY.glob("opentofu/*/*.tf"), *DEPLOY.glob("packer/*.pkr.hcl")]),
    ids=lambda path: f"{path.parent.name}-{path.name}",
)
each_example = pytest.mark.parametrize("example", list(OPENTOFU))

Block = dict[str, Any]


def without_marks(value: Any) -> Any:
    """What python-hcl2 read, without its notes and the quotes around labels and strings."""
    if isinstance(value, dict):
        kept = {name: item for name, item in value.items() if not name.startswith("__")}
        return {name.strip('"'): without_marks(item) for name, item in kept.items()}
    if isinstance(value, list):
        return [without_marks(item) for item in value]
    return value.strip('"') if isinstance(value, str) else value


def read(folder: Path) -> dict[str, list[Block]]:
    """The top-level blocks of all files of a folder, by kind."""
    blocks: dict[str, list[Block]] = {}
    for path in sorted(folder.glob("*.tf")) or sorted(folder.glob("*.pkr.hcl")):
        for kind, found in without_marks(hcl2.loads(path.read_text())).items():
            blocks.setdefault(kind, []).extend(found)
    return blocks


def opentofu(example: str) -> dict[str, list[Block]]:
    return read(DEPLOY / "opentofu" / example)


def code(folder: Path) -> str:
    """All of a folder's text but comments."""
    files = [path for path in sorted(folder.iterdir()) if path.suffix in (".tf", ".hcl")]
    return "\n".join(re.sub(r"(?m)^\s*#.*$", "", path.read_text()) for path in files)


def resources(blocks: dict[str, list[Block]]) -> Iterator[tuple[str, str, Block]]:
    for block in blocks["resource"]:
        for kind, named in block.items():
            for name, body in named.items():
                yield kind, name, body


def machine(example: str) -> Block:
    [body] = [body for kind, _, body in resources(opentofu(example)) if kind == INSTANCE[example][0]]
    return body


def problems(where: str, body: Block, schema: Block) -> list[str]:
    """Arguments that the provider does not know, and required ones that are missing; blocks within, too."""
    dynamic = {name: block["content"] for entry in body.get("dynamic", []) for name, block in entry.items()}
    given = {name: value for name, value in body.items() if name not in META_ARGUMENTS} | dynamic
    found = [f"{where} has no argument {name}" for name in given if name not in schema]
    found += [f"{where} needs {name}" for name, facts in schema.items() if "required" in facts and name not in given]
    for name, value in given.items():
        inner = schema.get(name, {}).get("block")
        if inner is not None:
            for block in value if isinstance(value, list) else [value]:
                found += problems(f"{where}.{name}", block, inner)
    return found


@hcl_files
def test_an_example_is_formatted_as_the_tools_format(path: Path):
    """Two spaces a level, `=` in one column in a run of one-line arguments. The real one is asked too, where it is."""
    text = path.read_text()
    assert unformatted(text) == []
    if terraform := shutil.which("tofu") or shutil.which("terraform"):
        environment = {"PATH": os.environ["PATH"], "TF_CLI_CONFIG_FILE": os.devnull, "CHECKPOINT_DISABLE": "1"}
        done = subprocess.run([terraform, "fmt", "-"], input=text, env=environment, capture_output=True, text=True)
        assert done.stdout == text


def unformatted(text: str) -> list[str]:
    found = [] if text.endswith("}\n") and "\n\n\n" not in text else ["blank lines, or none at the end"]
    depth = 0
    run: list[tuple[int, int, int]] = []
    """Line, length of the name and column of `=`, of arguments without a blank line or a block between them."""
    for number, line in enumerate([*text.splitlines(), ""], 1):
        bare = line.strip()
        signs = "" if bare.startswith("#") else re.sub(r'"(\\.|[^"\\])*"', "", bare)
        opened = sum(signs.count(sign) for sign in "([{") - sum(signs.count(sign) for sign in ")]}")
        level = depth - (1 if bare.startswith((")", "]", "}")) else 0)
        if line != ("  " * level + bare if bare else ""):
            found.append(f"line {number}: expected {level} levels, no trailing space")
        depth += opened
        if argument := re.match(r"([\w-]+)( *)= \S", bare):
            run.append((number, len(argument[1]), len(argument[1] + argument[2])))
        if not argument or opened:
            column = max((length for _, length, _ in run), default=0) + 1
            found += [f"line {number}: = is not in column {column}" for number, _, at in run if at != column]
            run = []
    return found


@each_example
def test_an_example_has_only_what_its_provider_knows(example: str):
    schema = SCHEMAS[OPENTOFU[example]]
    blocks = opentofu(example)
    assert set(blocks) == {"terraform", "provider", "resource", "variable", "output"}
    [needed] = blocks["terraform"][0]["required_providers"]
    assert {name: facts["source"] for name, facts in needed.items()} == {OPENTOFU[example]: schema["source"]}
    found = []
    for kind, name, body in resources(blocks):
        assert kind in schema["resources"], f"there is no resource {kind}"
        found += problems(f"{kind}.{name}", body, schema["resources"][kind])
    [provider] = blocks["provider"]
    found += problems("provider", provider[OPENTOFU[example]], schema["resources"]["provider"])
    assert found == []


def test_the_check_against_a_schema_finds_what_is_wrong():
    schema = SCHEMAS["google"]["resources"]["google_compute_instance"]
    body = {
        "name": "x",
        "machine_typ": "y",
        "network_interface": [{}],
        "boot_disk": [{"initialize_params": [{"imag": 1}]}],
    }
    assert problems("vm", body, schema) == [
        "vm has no argument machine_typ",
        "vm needs machine_type",
        "vm.boot_disk.initialize_params has no argument imag",
    ]


@pytest.mark.parametrize("place", [*(f"opentofu/{name}" for name in OPENTOFU), "packer"])
def test_every_variable_is_declared_described_and_used(place: str):
    folder = DEPLOY / place
    folder = DEPLOY / place
    declared = {name: body for block in read(folder)["variable"] for name, body in block.items()}
    assert set(re.findall(r"\bvar\.(\w+)", code(folder))) == set(declared)
    assert [name for name, body in declared.items() if not body.get("description") or "type" not in body] == []


@each_example
def test_every_reference_is_to_a_resource_that_is_there(example: str):
    there = {f"{kind}.{name}" for kind, name, _ in resources(opentofu(example))}
    referred = set(re.findall(rf"\b({OPENTOFU[example]}_\w+\.\w+)", code(DEPLOY / "opentofu" / example)))
    assert referred <= there


@each_example
def test_user_data_is_a_rendered_file_encoded_once(example: str):
    text = code(DEPLOY / "opentofu" / example)
    assert len(re.findall(r"\bfilebase64\(var\.user_data_file\)", text)) == 1
    assert len(re.findall(r"var\.user_data_file", text)) == 1
    assert not re.search(r"\b(base64encode|base64gzip|cloudinit_config|templatefile)\b", text)
    body = machine(example)
    assert not {"user_data", "user_data_base64"} <= set(body)
    if example == "gcp":
        assert body["metadata"]["user-data-encoding"] == "base64"


@each_example
def test_a_newer_image_or_user_data_never_replaces_a_machine_that_trains(example: str):
    _, image, user_data = INSTANCE[example]
    [lifecycle] = machine(example)["lifecycle"]
    ignored = {re.sub(r"^\$\{(.*)\}$", r"\1", name) for name in lifecycle["ignore_changes"]}
    assert {image, user_data} <= ignored


@each_example
def test_only_ssh_is_open_and_from_where_the_owner_said(example: str):
    inward = {
        "aws": [("aws_vpc_security_group_ingress_rule", "cidr_ipv4", "from_port", "to_port")],
        "gcp": [("google_compute_firewall", "source_ranges", "allow", "allow")],
        "openstack": [
            ("openstack_networking_secgroup_rule_v2", "remote_ip_prefix", "port_range_min", "port_range_max")
        ],
    }[example]
    [(kind, source, first, last)] = inward
    rules = [body for found, _, body in resources(opentofu(example)) if found == kind]
    assert len(rules) == 1
    ports = rules[0]["allow"][0]["ports"] if example == "gcp" else [str(rules[0][first]), str(rules[0][last])]
    assert set(ports) == {"22"}
    sources = rules[0][source] if isinstance(rules[0][source], list) else [rules[0][source]]
    assert sources == ["${var.ssh_from}"]
    [ssh_from] = [block["ssh_from"] for block in opentofu(example)["variable"] if "ssh_from" in block]
    assert "default" not in ssh_from


def test_aws_wants_tokens_of_its_metadata_service_and_ends_the_charge_at_poweroff():
    body = machine("aws")
    [options] = body["metadata_options"]
    assert (options["http_tokens"], options["http_put_response_hop_limit"]) == ("required", 1)
    assert body["instance_initiated_shutdown_behavior"] == "${var.on_poweroff}"
    assert body["root_block_device"][0]["encrypted"] in (True, "true")


def test_gcp_stops_for_maintenance_and_comes_back_unless_it_is_spot():
    [scheduling] = machine("gcp")["scheduling"]
    assert scheduling["on_host_maintenance"] == "TERMINATE"
    assert scheduling["automatic_restart"] == "${!var.spot}"


def test_openstack_lets_a_server_that_shelved_itself_be():
    assert "power_state" in machine("openstack")["lifecycle"][0]["ignore_changes"]


def packer() -> dict[str, list[Block]]:
    return read(DEPLOY / "packer")


def test_the_image_has_only_what_packer_and_its_plugins_know():
    blocks = packer()
    assert set(blocks) == {"packer", "variable", "locals", "source", "build"}
    sources = {kind: body for block in blocks["source"] for kind, named in block.items() for body in named.values()}
    assert set(sources) == set(PACKER)
    for kind, body in sources.items():
        assert PACKER[kind]["needed"] <= set(body) <= PACKER[kind]["needed"] | PACKER[kind]["known"], kind
    [build] = blocks["build"]
    assert {name.removeprefix("source.").removesuffix(".machine") for name in build["sources"]} == set(sources)
    text = code(DEPLOY / "packer")
    [local] = blocks["locals"]
    assert set(re.findall(r"\blocal\.(\w+)", text)) == set(local)


def test_the_image_is_made_by_the_program_of_a_first_boot_and_sealed_last():
    [build] = packer()["build"]
    steps = [(kind, body) for entry in build["provisioner"] for kind, body in entry.items()]
    ran = [body["script"] if "script" in body else "\n".join(body["inline"]) for kind, body in steps if kind == "shell"]
    baked = [number for number, text in enumerate(ran) if "cloud-init/finetuned-provision --bake" in text]
    assert len(baked) == 2
    assert "reboot" in ran[baked[0] + 1]
    assert "finetuned-bootstrap" in ran[baked[0]]
    assert [kind for kind, _ in steps][-1] == "shell"
    assert ran[-1] == "${path.root}/seal"
    for _, body in steps:
        for name in re.findall(
            r"\$\{path\.root\}/(\S+)", str(body.get("source", "")) + " " + str(body.get("script", ""))
        ):
            assert (DEPLOY / "packer" / name).is_file()


def test_the_image_is_provisioned_with_settings_that_the_program_knows():
    text = code(DEPLOY / "packer")
    [settings] = re.findall(r"settings = merge\(\s*\{(.*?)\},", text, re.S)
    names = {name.split("=")[0].strip() for name in settings.split(",")}
    known = (ROOT / "cloud-init/provision/settings.py").read_text()
    assert [name for name in names - {"format"} if f"\n    {name}: " not in known] == []
    assert {"version", "bundle", "sha256"} <= names


CARRIED = {
    "etc/ssh/ssh_host_ed25519_key": "a key",
    "etc/finetuned/credentials/hub_token": "a token",
    "etc/finetuned/provision.json": "{}",
    "etc/finetuned/stop-machine": "#!/bin/sh",
    "root/.bash_history": "secrets",
    "home/ubuntu/.bash_history": "secrets",
    "var/lib/finetuned/provision/done": "{}",
    "var/lib/finetuned/provision/driver.json": "{}",
    "var/lib/systemd/credential.secret": "a secret",
    "var/lib/systemd/random-seed": "a seed",
    "var/log/journal/1f3a/system.journal": "lines",
    "var/spool/finetuned/receipts/x.json": "{}",
    "var/tmp/finetuned-0.1.0.tar.gz": "a bundle",
}
KEPT = {
    "etc/finetuned/finetuned.yaml": "settings",
    "etc/ssh/sshd_config": "Port 22",
    "opt/finetuned/releases/0.1.0/daemon/bin/python": "an interpreter",
    "opt/finetuned/bundles/0.1.0/deploy/install": "a program",
}


def test_seal_takes_out_what_an_image_must_not_carry_and_nothing_else(tmp_path: Path):
    root, commands, said = tmp_path / "root", tmp_path / "bin", tmp_path / "said"
    for name, content in {**CARRIED, **KEPT}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    commands.mkdir()
    (commands / "cloud-init").write_text(f'#!/bin/sh\necho "$@" >{said}\n')
    (commands / "cloud-init").chmod(0o755)
    run = [DEPLOY / "packer" / "seal", "--root", root]
    for _ in range(2):  # an image is sometimes made from an image
        subprocess.run(run, env={"PATH": f"{commands}:{os.environ['PATH']}"}, check=True)
    left = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert left == set(KEPT)
    assert (root / "etc/finetuned/credentials").is_dir()
    assert said.read_text().split() == ["clean", "--logs", "--machine-id"]


@pytest.mark.parametrize(
    "spoilt",
    [
        "a {\n  b   = 1\n  cc = 2\n}\n",
        "a {\n    b = 1\n}\n",
        'a {\n  b = [\n  "c",\n  ]\n}\n',
        "a {\n  b = 1 \n}\n",
        "a {\n  b = 1\n\n\n  c = 2\n}\n",
        "a {\n  b = 1\n}",
    ],
)
def test_the_check_of_form_finds_what_the_tools_would_change(spoilt: str):
    assert unformatted(spoilt) != []
