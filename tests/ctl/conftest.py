"""Spools with jobs in every phase, and finetunectl called as a person calls it: arguments in, text and status out."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import exports
import spools
from finetuned.core.events import Event, Finished
from finetuned.core.job import Claim, Launch, Outcome, Phase, Result, Stage, Wish
from finetuned.core.plan import Facts
from finetuned.ctl.main import main
from finetuned.host.claim import Arrivals, copy_spec
from finetuned.host.files import take_lock
from finetuned.host.jobdir import JobDir, write_record
from finetuned.host.journal import Journal
from finetuned.host.receipts import write_receipt
from finetuned.host.settings import Settings
from finetuned.host.spool import Spool


@dataclass
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class Bench:
    """A spool, and builders of jobs that state only what matters."""

    spool: Spool
    folder: Path
    """For files of one's own."""
    _held: list[int] = field(default_factory=list)
    _started: "list[subprocess.Popen[str]]" = field(default_factory=list)

    def ctl(self, *args: str, stdin: str = "") -> Answer:
        """Run finetunectl on this spool."""
        return call(*args, spool=self.spool.path, stdin=stdin)

    def start(self, *args: str) -> "subprocess.Popen[str]":
        """The same as a process of its own, to be met while it works."""
        command = [sys.executable, "-u", "-c", "from finetuned.ctl.main import main; main()"]
        where = ["--spool", str(self.spool.path)]
        pipe = subprocess.PIPE
        process = subprocess.Popen([*command, *where, *args], stdout=pipe, stderr=pipe, text=True)
        self._started.append(process)
        return process

    def job(
        self,
        phase: Phase = Phase.QUEUED,
        slug: str = "tone",
        number: int = 1,
        *,
        name: str | None = None,
        spec: str = spools.SOUND,
        prepare: Sequence[Event] = (),
        train: Sequence[Event] = (),
        wishes: Sequence[Wish] = (),
        is_planned: bool = False,
        result: Result | None = None,
    ) -> JobDir:
        """`number` makes the id unique and says how old it is: higher is younger."""
        job = JobDir(self.spool.path / phase / f"20261130-2215{number:02d}-{slug}-7f3a09{number:02d}")
        job.path.mkdir()
        claim = Claim(job=job.job, name=name or f"{slug}.yaml", uid=os.getuid(), claimed=exports.EVENING)
        write_record(job.claim_file, claim)
        job.dropped.write_text(spec)
        job.spec_file.write_text(spec)
        for stage, events in ((Stage.PREPARE, prepare), (Stage.TRAIN, train)):
            self.say(job, stage, *events)
        if is_planned:
            self.plan(job)
        for wish in wishes:
            job.wish_file(wish).touch()
        if phase.is_terminal and result is None:
            result = a_result(phase)
        if result is not None:
            write_record(job.result_file, result)
        return job

    def plan(self, job: JobDir, prepared: str = "prepared-1") -> None:
        plan = exports.a_plan(prepared=prepared)
        write_record(job.facts_file, Facts(model=plan.model, data=plan.data))
        write_record(job.plan_file, plan)

    def say(self, job: JobDir, stage: Stage, *events: Event) -> None:
        if events:
            journal = Journal(job.events_file(stage))
            for event in events:
                journal.append(event)

    def launch(
        self, job: JobDir, number: int = 1, stage: Stage = Stage.TRAIN, asked: datetime = exports.EVENING
    ) -> None:
        job.launches.mkdir(exist_ok=True)
        launch = Launch(number=number, stage=stage, boot_id="boot", release=sys.executable, asked=asked)
        write_record(job.launch_file(number), launch)

    def run(self, job: JobDir, stage: Stage) -> None:
        """Hold the lock of a stage, as its process does, until the test ends."""
        self.hold(job.lock_file(stage))

    def run_daemon(self) -> None:
        """Hold the daemon's lock until the test ends."""
        self.hold(self.spool.path / ".daemon.lock")

    def hold(self, path: Path) -> None:
        """Hold a lock until the test ends."""
        lock = take_lock(path)
        assert lock is not None
        self._held.append(lock)

    def end(self, job: JobDir, phase: Phase, reason: str = "as the test says", hint: str = "") -> JobDir:
        """What is left to do for a job that has come to its end: ending, result, its last place."""
        if phase is Phase.DONE:
            self.say(job, Stage.TRAIN, Finished(time=datetime.now(UTC), step=12))
        write_record(job.result_file, a_result(phase, reason, hint))
        return self.spool.move(job, phase)

    def let_go(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()
        for lock in self._held:
            os.close(lock)
        self._held.clear()

    def checkpoint(self, job: JobDir, step: int, size_bytes: int = 100) -> Path:
        folder = job.checkpoints / f"step-{step:08d}"
        folder.mkdir(parents=True)
        (folder / "weights").write_bytes(b"w" * size_bytes)
        manifest = {"format": 1, "step": step, "files": [{"path": "weights", "size_bytes": size_bytes}]}
        (folder / "manifest.json").write_text(json.dumps(manifest))
        return folder

    def artifacts(self, job: JobDir) -> Path:
        (job.artifacts / "adapter").mkdir(parents=True)
        (job.artifacts / "adapter" / "adapter_model.safetensors").write_bytes(b"a" * 1000)
        (job.artifacts / "README.md").write_text("a card")
        return job.artifacts

    def a_model(self) -> Path:
        """A folder that passes the look that does not load it."""
        model = self.folder / "model"
        model.mkdir()
        (model / "config.json").write_text("{}")
        (model / "model.safetensors").write_bytes(b"w")
        (model / "tokenizer.json").write_text("{}")
        (model / "chat_template.jinja").write_text("{{ messages }}")
        return model

    def a_spec(self, name: str = "tone.yaml", extra: str = "") -> Path:
        """A sound job file beside its model and data, named by relative paths."""
        if not (self.folder / "model").exists():
            self.a_model()
        row = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}
        (self.folder / "chats.jsonl").write_text(json.dumps(row) + "\n")
        spec = self.folder / name
        spec.write_text(f"# mine\nbase_model: ./model   # here\ndatasets: [{{path: chats.jsonl}}]\n{extra}")
        return spec


def a_result(phase: Phase = Phase.FAILED, reason: str = "as the test says", hint: str = "") -> Result:
    outcome = next(outcome for outcome in Outcome if outcome.phase is phase)
    return Result(outcome=outcome, reason=reason, hint=hint, attempts=1, last_launch=1, ended=datetime.now(UTC))


def call(*args: str, spool: Path | None = None, stdin: str = "") -> Answer:
    """finetunectl in this process, as the installed script calls it."""
    saved = sys.argv, sys.stdin, sys.stdout, sys.stderr
    pipe_signal = signal.getsignal(signal.SIGPIPE)
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    where = ["--spool", str(spool)] if spool else []
    sys.argv, sys.stdin, sys.stdout, sys.stderr = ["finetunectl", *where, *args], io.StringIO(stdin), out, err
    code = 0
    try:
        main()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 0
    finally:
        sys.argv, sys.stdin, sys.stdout, sys.stderr = saved
        signal.signal(signal.SIGPIPE, pipe_signal)
    return Answer(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))  # type: ignore[attr-defined]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    folder = tmp_path / "mine"
    folder.mkdir()
    bench = Bench(spools.a_spool(tmp_path), folder)
    yield bench
    bench.let_go()


@pytest.fixture
def daemon(bench: Bench) -> Iterator[Callable[..., None]]:
    """Starts a claimer on the bench's spool: what is dropped becomes a job at once, and `then` is done to it."""
    bench.run_daemon()
    ending = threading.Event()
    settings = Settings(file_settle_seconds=0)
    threads: list[threading.Thread] = []

    def work(then: Callable[[JobDir], None]) -> None:
        arrivals = Arrivals(bench.spool, settings, arrived_by_rename=lambda _name: True)
        while not ending.wait(0.01):
            for job in arrivals.claim():
                copy_spec(job)
                write_receipt(bench.spool, job)
                then(job)

    def start(then: Callable[[JobDir], None] = lambda _job: None) -> None:
        threads.append(threading.Thread(target=work, args=(then,)))
        threads[-1].start()

    yield start
    ending.set()
    for thread in threads:
        thread.join()
