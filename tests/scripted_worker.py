"""A stage without a model: `python scripted_worker.py STAGE JOB LAUNCH WORD...` does what its words say, in order.

open       what every stage does first: take the lock, write *Started*, say that it is ready
watched:S  announce that silence for more than S seconds is a hang
beat:S     say for S seconds that it moves
save:S     ask for S seconds for more time to stop, as while the bytes of a checkpoint grow
mark       make the file JOB/mark
say:TEXT   print a line
tree       leave three processes behind: a child, one in a session of its own, one that was forked twice; all of them
           ignore SIGTERM. Their pids are in JOB/tree, one a line, when this word is done
deaf       ignore SIGTERM from now on
wait       until SIGTERM comes
sleep:S    for S seconds
finish     write *Finished*
exit:N     leave with status N
kill:N     die of signal N
"""

import os
import signal
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

from finetuned.core.events import Finished, Started
from finetuned.core.job import Launch, Stage
from finetuned.host.files import take_lock
from finetuned.host.jobdir import JobDir
from finetuned.host.journal import Journal, read_events
from finetuned.host.machine import boot_id
from finetuned.host.systemd import notify


def main() -> None:
    stage, job, launch = Stage(sys.argv[1]), JobDir(Path(sys.argv[2])), int(sys.argv[3])
    asked_to_stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked_to_stop.set())
    for word in sys.argv[4:]:
        name, _, value = word.partition(":")
        match name:
            case "open":
                _open(job, stage, launch)
            case "watched":
                notify("WATCHDOG=1", f"WATCHDOG_USEC={round(float(value) * 1e6)}")
            case "beat":
                _repeat(float(value), "WATCHDOG=1")
            case "save":
                _repeat(float(value), "EXTEND_TIMEOUT_USEC=1000000")
            case "mark":
                (job.path / "mark").touch()
            case "say":
                print(value, flush=True)
            case "tree":
                _leave_a_tree(job)
            case "deaf":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            case "wait":
                while not asked_to_stop.wait(0.02):
                    pass
            case "sleep":
                time.sleep(float(value))
            case "finish":
                Journal(job.events_file(stage)).append(Finished(time=datetime.now(UTC)))
            case "exit":
                os._exit(int(value))
            case "kill":
                signal.signal(int(value), signal.SIG_DFL) if int(value) != signal.SIGKILL else None
                os.kill(os.getpid(), int(value))


def words(*script: str):
    """A command for ChildLauncher that runs this file with these words."""

    def command(job: JobDir, launch: Launch) -> list[str]:
        return [launch.release, __file__, launch.stage, str(job.path), str(launch.number), *script]

    return command


def _open(job: JobDir, stage: Stage, launch: int) -> None:
    if take_lock(job.lock_file(stage)) is None:
        raise SystemExit("the lock is taken")
    attempt = 1 + sum(isinstance(event, Started) for event in read_events(job.events_file(stage)))
    started = Started(time=datetime.now(UTC), launch=launch, attempt=attempt, pid=os.getpid(), boot_id=boot_id())
    Journal(job.events_file(stage)).append(started)
    notify("READY=1")


def _repeat(seconds: float, line: str) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        notify(line)
        time.sleep(0.1)


def _leave_a_tree(job: JobDir) -> None:
    pids = job.path / "tree"
    for steps in ("", "s", "fs"):
        if os.fork() == 0:
            for step in steps:
                if step == "f" and os.fork():
                    os._exit(0)
                if step == "s":
                    os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            with pids.open("a") as file:
                file.write(f"{os.getpid()}\n")
            time.sleep(600)
            os._exit(0)
    while not pids.exists() or len(pids.read_text().splitlines()) < 3:
        time.sleep(0.005)


if __name__ == "__main__":
    main()
