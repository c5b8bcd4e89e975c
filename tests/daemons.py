"""The real daemon as a process, on a spool of its own, with tiny jobs: what the end-to-end tests drive."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import tiny
from finetuned import __version__
from finetuned.core.job import Phase, Stage
from finetuned.host.jobdir import JobDir
from finetuned.host.journal import read_events
from finetuned.host.spool import Spool
from until import until

QUICK = {
    "turn_seconds": 0.1,
    "file_settle_seconds": 0.3,
    "folder_settle_seconds": 1.0,
    "arriving_seconds": 1.0,
    "stop_timeout_seconds": 60,
    "cpu_threads": 1,
}

_PATIENCE_SECONDS = 300.0
"""Each worker and each proof imports torch: 5 s where nothing else runs, a minute beside other tests."""

RUN = [sys.executable, "-c", "from finetuned.service.main import main; main()", "run"]
"""The command line of `finetuned run`, of the release under test."""


class Daemon:
    """`finetuned run` on `home/spool`. Stages that it leaves behind are ended by `close`."""

    def __init__(self, home: Path, launcher: str = "children", **settings: object):
        self.home = home
        self._launcher = launcher
        self.spool = Spool(home / "spool")
        config = home / "config"
        config.mkdir(parents=True, exist_ok=True)
        (config / "finetuned.yaml").write_text(json.dumps(QUICK | settings))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        return (self.home / "daemon.log").read_text()

    def start(self) -> "Daemon":
        arguments = ["--spool", str(self.spool.path), "--config", str(self.home / "config")]
        arguments += ["--launcher", self._launcher]
        with open(self.home / "daemon.log", "ab") as log:
            self._process = subprocess.Popen(
                [*RUN, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        until(lambda: f"finetuned {__version__} works on {self.spool.path}" in self.log.rsplit("\n--\n", 1)[-1])
        return self

    def kill(self) -> None:
        """SIGKILL: nothing in the daemon answers it."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        with open(self.home / "daemon.log", "a") as log:
            log.write("\n--\n")

    def stop(self) -> int:
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(timeout=30)

    def close(self) -> None:
        """End the daemon and every process that works on this spool."""
        if self._process is not None and self._process.poll() is None:
            self.kill()
        for pid in self.processes():
            _signal(pid, signal.SIGKILL)

    def processes(self, module: str = "finetuned.") -> list[int]:
        """Pids of shims and stages (log pumps included) that work on this spool."""
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit():
                words = _command_line(int(name))
                if str(self.spool.path).encode() in words and module.encode() in words and b"-m\0" in words:
                    found.append(int(name))
        return found

    def drop(self, text: str, name: str = "job.yaml") -> None:
        """As `mv` into incoming/ does."""
        aside = self.home / f"aside-{name}"
        aside.write_text(text)
        os.rename(aside, self.spool.incoming / name)

    def jobs(self, *phases: Phase) -> list[JobDir]:
        return self.spool.jobs(*phases)

    def job(self, name: str = "") -> JobDir:
        found = [job for job in self.spool.jobs() if name in job.job]
        assert len(found) == 1, f"{len(found)} jobs are called {name!r}: {[job.path for job in found]}"
        return found[0]

    def wait_for(self, name: str, phase: Phase, seconds: float = _PATIENCE_SECONDS) -> JobDir:
        until(lambda: any(name in job.job for job in self.spool.jobs(phase)), seconds)
        return next(job for job in self.spool.jobs(phase) if name in job.job)

    def wait_for_event(
        self, name: str, kind: type, seconds: float = _PATIENCE_SECONDS, stage: Stage = Stage.TRAIN
    ) -> None:
        def happened() -> bool:
            jobs = [job for job in self.spool.jobs() if name in job.job]
            return any(isinstance(e, kind) for job in jobs for e in read_events(job.events_file(stage)))

        until(happened, seconds)

    def ask(self, job: JobDir, request: str) -> None:
        (self.spool.requests / f"{job.job}.{request}").touch()


def a_home(parent: Path) -> Path:
    """A folder with a tiny model and 40 rows of chat."""
    (parent / "model").mkdir(parents=True)
    tiny.build_model(parent / "model", attention_dropout=0.1)
    tiny.write_jsonl(parent / "chat.jsonl", tiny.chat_rows(40))
    return parent


def a_spec(home: Path, **fields: object) -> str:
    """A job file (JSON is YAML) that trains 20 steps of 4 examples with dropout, in fp32."""
    spec = {
        "base_model": str(home / "model"),
        "datasets": [{"path": str(home / "chat.jsonl")}],
        "lora_r": 4,
        "lora_dropout": 0.1,
        "global_batch_size": 4,
        "num_train_epochs": 2,
        "bf16": False,
    }
    return json.dumps(spec | fields)


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
