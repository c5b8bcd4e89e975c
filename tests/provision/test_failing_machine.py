"""A machine that boots and whose bundle never arrives: it tells its owner, and stops itself."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from answering import Server
from blank_machine import CLOUD_INIT
from spools import require
from system.guest.image import image
from system.guest.nspawn import NspawnGuest

OFF = 255
"""What a command in a guest that is down ends with."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def user_data(*options: str) -> bytes:
    release = ["--release=/nowhere/finetuned-1.2.3.tar.gz", f"--sha256={'0' * 64}", "--grace-minutes=0.2"]
    return subprocess.run([CLOUD_INIT / "render", *release, *options], check=True, capture_output=True).stdout


def test_a_machine_that_cannot_be_provisioned_tells_it_and_stops_itself(tmp_path: Path):
    require(os.geteuid() == 0, "needs root: it boots a machine with systemd-nspawn")
    for program, package in (("mmdebstrap", "mmdebstrap"), ("systemd-nspawn", "systemd-container")):
        require(shutil.which(program) is not None, f"needs {program}: deploy/apt-install {package}")
    server = Server()  # The guest shares this machine's network.
    server.serves(b"thanks")
    told = user_data("--hook=poweroff", "--hook-options=--i-know-it-still-bills", f"--webhook={server.address}")
    guest = NspawnGuest(image("bookworm"), tmp_path / "guest", told, {})
    try:
        guest.start()
        guest.until(lambda: guest.shell("true").returncode == OFF, 90, "the guest to stop itself")
    finally:
        guest.remove()
    said = json.loads(server.bodies[0])
    assert said["stage"] == "bootstrap"
    assert said["reason"] == "/nowhere/finetuned-1.2.3.tar.gz is not there"
    assert said["next"].startswith("This machine stops itself (hook poweroff) in 0.2 minutes")
