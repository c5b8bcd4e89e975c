"""The polkit rule, asked as polkit asks it: what the daemon's user may have systemd do, and that it is nothing else."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from unit_files import STAGES, UNITS

TRAIN = "finetuned-train@20261130-221500-support-tone-7f3a09c1.service"
MANAGE_UNITS = "org.freedesktop.systemd1.manage-units"
STOP_MACHINE = "finetuned-stop-machine.service"

QUESTIONS: list[tuple[str, str, str | None, str | None, bool]] = [
    # user, action, verb, unit; allowed
    *(
        ("finetuned", MANAGE_UNITS, verb, f"finetuned-{stage}@a-1.service", True)
        for verb in ("start", "stop")
        for stage in STAGES
    ),
    ("finetuned", MANAGE_UNITS, "start", STOP_MACHINE, True),
    ("finetuned", MANAGE_UNITS, "stop", STOP_MACHINE, False),
    ("finetuned", MANAGE_UNITS, "restart", STOP_MACHINE, False),
    *(
        ("finetuned", MANAGE_UNITS, verb, TRAIN, False)
        for verb in ("restart", "reload", "kill", "freeze", "set-property", "reset-failed", "Start", "starts", "", None)
    ),
    *(
        ("finetuned", MANAGE_UNITS, "start", unit, False)
        for unit in (
            "finetuned.service",
            "finetuned.slice",
            "finetuned-provision.service",
            "ssh.service",
            "",
            None,
            "finetuned-train@.service",
            "finetuned-train.service",
            "finetuned-traine@a.service",
            "finetuned-@a.service",
            "xfinetuned-train@a.service",
            "finetuned-train@a.service.d",
            "finetuned-train@a.socket",
            "finetuned-train@a.service\n",
            "ssh.service\nfinetuned-train@a.service",
            "finetuned-train@a.service\nssh.service",
            "finetuned-train@a.service ssh.service",
            "finetuned-train@a\n.service",
            "finetuned-train@a\0.service",
            "finetuned-train@A.service",
            "finetuned-train@../a.service",
            "finetuned-train@a_b.service",
            "finetuned-train@a\\x2fb.service",
            "finetuned-train@a@b.service",
            "finetuned-train@a-service",
            "finetuned-train@ä.service",
            "Finetuned-train@a.service",
            "finetuned-launch@a.service",
            "finetuned-stop-machine.service\n",
            "finetuned-stop-machine@a.service",
        )
    ),
    *(
        (user, MANAGE_UNITS, "start", unit, False)
        for user in ("root", "anna", "finetuned2", "", None)
        for unit in (TRAIN, STOP_MACHINE)
    ),
    *(
        ("finetuned", action, "start", TRAIN, False)
        for action in (
            "org.freedesktop.systemd1.manage-unit-files",
            "org.freedesktop.systemd1.reload-daemon",
            "org.freedesktop.login1.power-off",
            MANAGE_UNITS + ".more",
            "",
        )
    ),
]

ASK_POLKIT = """
var rules = [], answers = [];
var polkit = {Result: {YES: "yes", NO: "no", NOT_HANDLED: null}, addRule: function (rule) { rules.push(rule); }};
%s
questions.forEach(function (asked) {
    var details = {verb: asked[2], unit: asked[3]};
    var action = {id: asked[1], lookup: function (key) { return details[key] === null ? undefined : details[key]; }};
    var answer = rules[0](action, {user: asked[0], groups: ["finetuned"]});
    answers.push(answer === undefined ? null : answer);
});
(typeof print === "function" ? print : console.log)(JSON.stringify([rules.length, answers]));
"""
"""polkit's side, in the JavaScript of 2009 that its own engine understands."""


def test_the_daemons_user_may_start_and_stop_stages_start_the_stop_hook_and_nothing_else(tmp_path: Path):
    engine = shutil.which("duk") or shutil.which("node")
    if engine is None:
        pytest.skip("needs duk: install the Debian package duktape")
    script = tmp_path / "ask.js"
    questions = f"var questions = {json.dumps(QUESTIONS)};\n"
    script.write_text(questions + ASK_POLKIT % (UNITS / "50-finetuned.rules").read_text())
    said = subprocess.run([engine, str(script)], capture_output=True, text=True, check=True).stdout
    rules, answers = json.loads(said)
    assert rules == 1
    expected = ["yes" if is_allowed else None for *_, is_allowed in QUESTIONS]
    assert list(zip(QUESTIONS, answers, strict=True)) == list(zip(QUESTIONS, expected, strict=True))
