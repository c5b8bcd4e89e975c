"""render: one user-data for Ubuntu 24.04 and 26.04, Debian 12 and 13, whichever the cloud.

It is told what the machine fetches and how it stops paying, and writes a MIME message, compressed, that fits every
cloud's limit. Never a secret: tokens come later, into /etc/finetuned/credentials.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .fill import Request, SeededFile, fill
from .pack import BUDGET_BYTES, LIMITS, pack, unpack
from .secrets import find_secret

HERE = Path(__file__).resolve().parents[1]
UNITS = (
    "finetuned-provision.service",
    "finetuned-provision-failed.service",
    "finetuned-scratch.service",
    "finetuned-stop-machine.service",
)
UNIT_PLACE = "/usr/local/lib/systemd/system"
"""Where deploy/install puts them too, so that an upgrade replaces these."""
PUBLIC_KEY = re.compile(r"(ssh-(ed25519|rsa)|ecdsa-sha2-\S+|sk-(ssh|ecdsa)-\S+) [A-Za-z0-9+/=]+( .*)?")
USER_NAME = re.compile(r"[a-z_][a-z0-9_-]{0,31}")


class CannotRender(Exception):
    """Which option, why, and what to give instead."""


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cloud-init/render", description=__doc__)
    add = parser.add_argument
    add("--release", required=True, metavar="URL|PATH", help="the release bundle, as the machine reaches it")
    add("--bundle", type=Path, metavar="FILE", help="the same bundle here: gives --sha256 and --release-version")
    add("--sha256", help="of the bundle; computed from --bundle, or from --release when that is a file here")
    add("--release-version", metavar="VERSION", help="taken from the bundle or its name, finetuned-VERSION.tar.gz")
    add("--hook", default="none", metavar="NAME", help="how a machine here stops its bill, of deploy/hooks")
    add("--hook-options", default="", metavar="WORDS", help="for the hook, in place of its default: terminate, say")
    add("--grace-minutes", type=float, default=15, help="after provisioning failed, before the hook (15)")
    add("--webhook", metavar="URL", help="is told when provisioning fails")
    add("--authorized-key", type=Path, action="append", default=[], metavar="FILE", help="a public key; repeatable")
    add("--user", metavar="NAME", help="make this account too, and let it submit jobs")
    add("--spool-disk", metavar="DEVICE", help="keep the spool on this disk: /dev/disk/by-id/...")
    add("--scratch-disk", action="append", default=[], metavar="GLOB", help="may be wiped for caches; repeatable")
    add("--gpu", choices=("auto", "required", "none"), default="auto", help="required: no GPU is a failure (auto)")
    add("--driver-branch", type=int, default=580, help="580, 595, 620 (580)")
    add("--upgrade-driver", action="store_true", help="replace an image's driver below 580 instead of failing")
    add("--python", metavar="PATH", help="on the machine: the interpreter of the environments")
    add("--wheelhouse", metavar="DIR", help="on the machine: install from these wheels, without an index")
    add("--worker-site", metavar="DIR", help="on the machine: torch and friends are in this directory already")
    add("--no-gzip", action="store_true", help="for a platform that spoils binary user-data")
    add("--out", type=Path, metavar="FILE", help="write it here rather than to standard output")
    return parser


def render(asked: argparse.Namespace) -> bytes:
    """Raises CannotRender."""
    refuse_secrets(asked)
    text = fill((HERE / "user-data").read_text(), request(asked), files_packed=asked.no_gzip)
    kind = find_secret(text)
    if kind:
        raise CannotRender(f"the user-data would hold what looks like {kind}")
    data = pack(text, compress=not asked.no_gzip)
    if unpack(data) != [text]:
        raise CannotRender("the packed user-data does not unpack to what was packed; this is a fault of render")
    if len(data) > BUDGET_BYTES:
        raise CannotRender(f"the user-data has {len(data)} bytes, more than {BUDGET_BYTES}; fewer or shorter keys?")
    return data


def refuse_secrets(asked: argparse.Namespace) -> None:
    for name, value in vars(asked).items():
        for text in value if isinstance(value, list) else [value]:
            kind = find_secret(str(text))
            if kind:
                raise CannotRender(
                    f"--{name.replace('_', '-')} looks like {kind}, and every process of the machine can read the "
                    "user-data; put it in /etc/finetuned/credentials/ on the machine"
                )


def request(asked: argparse.Namespace) -> Request:
    settings: dict[str, Any] = {
        "format": 1,
        **release(asked),
        "hook": asked.hook,
        "grace_minutes": asked.grace_minutes,
        "gpu": asked.gpu,
        "driver_branch": asked.driver_branch,
        "driver_too_old": "upgrade" if asked.upgrade_driver else "fail",
    }
    optional = {
        "webhook": web_address(asked.webhook),
        "spool_disk": absolute("--spool-disk", asked.spool_disk),
        "scratch_disks": [absolute("--scratch-disk", glob) for glob in asked.scratch_disk],
        "users": [user_name(asked.user)] if asked.user else [],
        "python": absolute("--python", asked.python),
        "wheelhouse": absolute("--wheelhouse", asked.wheelhouse),
        "worker_site": absolute("--worker-site", asked.worker_site),
    }
    return Request(
        settings={**settings, **{name: value for name, value in optional.items() if value}},
        files=seeded_files(asked.hook, asked.hook_options.split()),
        authorized_keys=[key for path in asked.authorized_key for key in public_keys(path)],
        user=asked.user,
    )


def release(asked: argparse.Namespace) -> dict[str, str]:
    """Where the bundle is, what its content hashes to, and which release it holds."""
    local = asked.bundle or (Path(asked.release) if "://" not in asked.release else None)
    if local and not local.is_file():
        if asked.bundle or not asked.sha256:
            raise CannotRender(f"{local} is no file here; give --sha256 and --release-version, or --bundle")
        local = None
    where = asked.release if "://" in asked.release else os.path.abspath(asked.release)
    if not where.startswith(("https://", "http://", "/")):
        raise CannotRender(f"--release is {where}; expected https://, http:// or a path on the machine")
    found = hashlib.sha256(local.read_bytes()).hexdigest() if local else None
    if found and asked.sha256 and found != asked.sha256.lower():
        raise CannotRender(f"--sha256 is {asked.sha256}, and {local} has {found}")
    sha256 = (asked.sha256 or found or "").lower()
    if not re.fullmatch("[0-9a-f]{64}", sha256):
        raise CannotRender("--sha256 of the bundle is needed, or --bundle FILE to compute it from")
    named = re.search(r"finetuned-([^/?]+)\.tar\.gz", where)
    version = asked.release_version or (version_in(local) if local else named[1] if named else None)
    if not version or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.+_-]*", version):
        raise CannotRender("--release-version is needed: the bundle's name is not finetuned-VERSION.tar.gz")
    return {"version": version, "bundle": where, "sha256": sha256}


def version_in(bundle: Path) -> str:
    try:
        with tarfile.open(bundle, "r:gz") as tar:
            first = tar.next()
    except (tarfile.TarError, OSError) as error:
        raise CannotRender(f"{bundle} is no tar.gz: {error}") from error
    top = first.name.split("/")[0] if first else ""
    if not top.startswith("finetuned-"):
        raise CannotRender(f"{bundle} holds {top!r} and not finetuned-VERSION; make it with deploy/build")
    return top[len("finetuned-") :]


def seeded_files(hook_name: str, hook_options: Sequence[str] = ()) -> list[SeededFile]:
    """What must be there even when the bundle never arrives: the fetcher, the units, and how to stop paying."""
    files = [SeededFile("/usr/local/sbin/finetuned-bootstrap", (HERE / "finetuned-bootstrap").read_text(), True)]
    program = hook(hook_name)
    if program:
        files.append(SeededFile("/etc/finetuned/stop-machine", program, True))
    if unknown := [word for word in hook_options if word not in (program or "")]:
        raise CannotRender(
            f"--hook-options: hook {hook_name} knows no {', '.join(unknown)}; see deploy/hooks/README.md"
        )
    if hook_options:
        files.append(SeededFile("/etc/finetuned/stop-machine.options", " ".join(hook_options) + "\n"))
    units = HERE.parent / "units"
    return files + [SeededFile(f"{UNIT_PLACE}/{name}", (units / name).read_text()) for name in UNITS]


def hook(name: str) -> str | None:
    hooks = HERE.parent / "deploy" / "hooks"
    if name == "none":
        return None
    known = sorted(path.name for path in hooks.iterdir() if path.is_file() and "." not in path.name)
    if name not in known:
        raise CannotRender(f"--hook is {name}; expected none, {', '.join(known)}")
    return (hooks / name).read_text()


def public_keys(path: Path) -> list[str]:
    try:
        lines = [line.strip() for line in path.read_text().splitlines()]
    except OSError as error:
        raise CannotRender(f"--authorized-key {path}: {error.strerror}") from error
    keys = [line for line in lines if line and not line.startswith("#")]
    if any("PRIVATE KEY" in key for key in keys):
        raise CannotRender(f"--authorized-key {path} is a private key; give the .pub file beside it")
    if not keys or not all(PUBLIC_KEY.fullmatch(key) for key in keys):
        raise CannotRender(f"--authorized-key {path} is no public key of OpenSSH")
    return keys


def user_name(name: str) -> str:
    if not USER_NAME.fullmatch(name) or name in ("root", "finetuned"):
        raise CannotRender(f"--user is {name}; expected the name of a person's account, like anna")
    return name


def absolute(option: str, path: str | None) -> str | None:
    if path and not path.startswith("/"):
        raise CannotRender(f"{option} is {path}; expected an absolute path on the machine")
    return path


def web_address(url: str | None) -> str | None:
    if url and not url.startswith(("https://", "http://")):
        raise CannotRender(f"--webhook is {url}; expected https://")
    return url


def tell_limits(data: bytes) -> None:
    print(f"{len(data)} bytes of {BUDGET_BYTES}", file=sys.stderr)
    for limit in LIMITS:
        used = limit.measured(data)
        verdict = "fits" if used <= limit.limit_bytes else "TOO LARGE"
        print(f"  {limit.cloud:<28} {verdict:<9} {used} of {limit.limit_bytes} ({limit.how})", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    asked = parser().parse_args(arguments)
    try:
        data = render(asked)
    except CannotRender as error:
        print(f"render: {error}", file=sys.stderr)
        return 1
    tell_limits(data)
    if asked.hook == "none":
        print("no --hook: if provisioning fails, the machine stays on and goes on costing money", file=sys.stderr)
    if asked.webhook:
        print(
            "every process of the machine can read the webhook's address: let it be good for no more",
            file=sys.stderr,
        )
    if asked.out:
        asked.out.write_bytes(data)
    else:
        sys.stdout.buffer.write(data)
    return 0
