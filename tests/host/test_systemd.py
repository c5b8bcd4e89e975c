"""What systemd is told: nothing where it does not listen, and never a secret."""

import logging
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from finetuned.core.messages import MESSAGE_IDS, Kind, Severity, Told
from finetuned.host import systemd
from finetuned.host.systemd import JournalHandler, SystemJournal

TOKEN = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345"


class FakeJournal:
    def __init__(self):
        self.sent: list[tuple[str, dict[str, str]]] = []

    def send(self, message: str, **fields: str) -> None:
        self.sent.append((message, fields))


def test_where_nobody_listens_nothing_is_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    systemd.notify("READY=1")


def test_a_supervisor_that_has_gone_stops_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    systemd.notify("READY=1")


def test_what_is_said_arrives_in_one_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        systemd.notify("READY=1", "STATUS=well")
        assert supervisor.recv(1000) == b"READY=1\nSTATUS=well"


def test_without_systemd_python_everything_goes_on(tmp_path: Path):
    text = """
import sys
sys.modules["systemd"] = None
from finetuned.host import systemd
systemd.notify("READY=1")
assert systemd.SystemJournal.open("x") is None
"""
    subprocess.run([sys.executable, "-c", text], env=os.environ | {"NOTIFY_SOCKET": str(tmp_path / "x")}, check=True)


def test_only_what_systemd_itself_connected_to_the_journal_goes_there(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JOURNAL_STREAM", "1:2")
    assert SystemJournal.open("x") is None
    found = os.fstat(2)
    monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino}")
    assert SystemJournal.open("x") is not None


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "60000000"}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, None),
    ],
)
def test_a_watchdog_is_that_of_this_process(monkeypatch: pytest.MonkeyPatch, variables, seconds):
    for name in ("WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert systemd.watchdog_seconds() == seconds


def test_an_entry_has_its_fields_and_no_secret():
    fake = FakeJournal()
    told = Told(Kind.FAILED_RETRY, f"401 for {TOKEN}; then s3cret-of-the-file", Severity.WARNING, step=7)
    SystemJournal(fake.send, "finetuned", frozenset({"s3cret-of-the-file"})).tell(told, "a-job")
    assert fake.sent == [
        (
            "401 for [secret]; then [secret]",
            {
                "PRIORITY": "4",
                "SYSLOG_IDENTIFIER": "finetuned",
                "MESSAGE_ID": MESSAGE_IDS[Kind.FAILED_RETRY],
                "FINETUNED_EVENT": "failed_retry",
                "FINETUNED_JOB": "a-job",
                "FINETUNED_STEP": "7",
            },
        )
    ]


def test_a_journal_that_does_not_answer_stops_nothing():
    def refuse(*_words: str, **_fields: str) -> None:
        raise ConnectionRefusedError

    SystemJournal(refuse, "finetuned").write("a word", Severity.INFO)


def test_of_a_log_line_only_the_redacted_text_and_named_fields_are_sent():
    fake = FakeJournal()
    logger = logging.Logger("test")
    logger.addHandler(JournalHandler(SystemJournal(fake.send, "finetuned")))
    logger.error("cannot log in with %s", TOKEN, extra={"token": TOKEN})
    told = Told(Kind.MOVED, "queued → active")
    logger.info("job a-job: %s", told.text, extra={"told": told, "job": "a-job"})
    assert fake.sent == [
        ("cannot log in with [secret]", {"PRIORITY": "3", "SYSLOG_IDENTIFIER": "finetuned"}),
        (
            "job a-job: queued → active",
            {
                "PRIORITY": "6",
                "SYSLOG_IDENTIFIER": "finetuned",
                "MESSAGE_ID": MESSAGE_IDS[Kind.MOVED],
                "FINETUNED_EVENT": "moved",
                "FINETUNED_JOB": "a-job",
            },
        ),
    ]


def test_the_contents_of_credentials_are_known_as_secrets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    assert systemd.credentials() == frozenset()
    (tmp_path / "hub_token").write_text("an-odd-token\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert systemd.credentials() == {"an-odd-token"}
