"""From a blank guest to a machine that trains: what it is told by user data, and how one sees that it is done."""

import subprocess
import sys
from pathlib import Path

from finetuned import __version__
from system.guest.guest import Guest
from system.guest.image import ROOT
from system.guest.jobs import MEMBER, MODEL, ROWS
from system.guest.supply import SUPPLY, Supply, bundle_name

STAMP = "/var/lib/finetuned/provision/done"
CREDENTIALS = "/etc/finetuned/credentials"


def become_one_that_trains(guest: Guest) -> None:
    """Wait, with nobody's hand in it, until it is provisioned; then an ordinary user brings a model and rows."""
    guest.wait_for_boot()
    guest.until(lambda: is_ready(guest), 180, "the machine to be provisioned and its daemon to be ready")
    for source, target in (("tiny", MODEL), ("chat.jsonl", ROWS)):
        guest.run("cp", "-r", f"{SUPPLY}/models/{source}", target, user=MEMBER)


def is_ready(guest: Guest) -> bool:
    """Fails at once where provisioning has."""
    assert guest.unit("finetuned-provision.service", "ActiveState") != "failed", guest.evidence()
    return guest.read(STAMP) is not None and guest.unit("finetuned.service", "ActiveState") == "active"


def install(guest: Guest, given: Supply, version: str, *options: str) -> str:
    """Run the installer of a bundle in the guest, as its administrator would on a machine as busy as one that tests."""
    guest.run("tar", "-xzf", f"{SUPPLY}/bundles/{bundle_name(version)}", "-C", "/root")
    patient = ["--gate-seconds=600"]
    return guest.run(f"/root/finetuned-{version}/deploy/install", *options, *patient, *_install_options(given))


def user_data(given: Supply, *options: str | Path) -> bytes:
    """What cloud-init/render makes for this guest."""
    bundle = bundle_name(__version__)
    release = [f"--release={SUPPLY}/bundles/{bundle}", f"--bundle={given.bundles / bundle}", "--gpu=none"]
    command = [sys.executable, ROOT / "cloud-init/render", *release, *_install_options(given), *options]
    return subprocess.run(command, check=True, capture_output=True).stdout


def _install_options(given: Supply) -> list[str]:
    python = [f"--python={given.interpreter}"] if given.interpreter else []
    return [f"--wheelhouse={SUPPLY}/wheels", f"--worker-site={SUPPLY}/site", *python]
