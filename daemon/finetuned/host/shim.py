"""The parent of one stage process: `python -m finetuned.host.shim JOB STAGE LAUNCH STOP_TIMEOUT COMMAND...`.

It outlives the daemon, passes on the request to stop, kills a stage that is silent for longer than it announced, leaves
nothing of its process tree behind and writes how it ended. It stays as long as the run, so it imports nothing heavy and
writes its two records as plain JSON:
launches/NNNN.child.json (launch.Child) before and after the start, launches/NNNN.exit.json (core.job.Exit) at the end.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import sys
import time
from math import inf
from pathlib import Path

from finetuned.host.files import sync_directory, write_whole
from finetuned.host.notifications import NotifySocket, Patience
from finetuned.host.process import children_of, read_stat

_STOPS = (signal.SIGTERM, signal.SIGINT)
_WATCHED = (*_STOPS, signal.SIGHUP, signal.SIGCHLD)
_PR_SET_CHILD_SUBREAPER = 36
_FIRST_WORDS_BYTES = 64 << 10
_EXIT_BYTES = 4096
_DRAIN_SECONDS = 2.0
_KILL_SECONDS = 10.0
_ABORT_SECONDS = 30.0
"""Between SIGABRT, on which a hung stage writes down where its threads stand, and SIGKILL."""


def main() -> None:
    job, stage, launch, stop_timeout, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    Shim(Path(job), stage, int(launch), float(stop_timeout)).run(command)


class Shim:
    def __init__(self, job: Path, stage: str, launch: int, stop_timeout_seconds: float):
        self._stage, self._launch, self._stop_timeout = stage, launch, stop_timeout_seconds
        self._log = Path(f"{stage}.log")
        self._launches = Path("launches")
        self._job = job
        # Kept open: from here on the job is this directory, wherever it is moved.
        self._directory = os.open(job, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._asked_to_stop = False
        self._hung = False
        self._signals = _watch_signals()
        self._notifications = NotifySocket()
        self._patience = Patience()

    def run(self, command: list[str]) -> None:
        self._write_child(stage_pid=None)
        exit_file = self._reserve_exit()
        kills_before = oom_kills()
        first_words = _first_words_file()
        try:
            pid = _spawn(command, first_words, self._notifications.address)
        except OSError as error:
            os.fchdir(self._directory)
            self._append_to_log(f"cannot start {command[0]}: {error.strerror}\n".encode())
            self._write_exit(exit_file, 127, None, False)
            return
        os.fchdir(self._directory)
        self._job = Path()
        self._write_child(stage_pid=pid)
        code = os.waitstatus_to_exitcode(self._supervise(pid))
        _end_the_rest(self._signals)
        self._append_to_log(os.pread(first_words, _FIRST_WORDS_BYTES, 0).rstrip(b"\0"))
        killed_by_kernel = code == -signal.SIGKILL and oom_kills() > kills_before
        returncode, number = (code, None) if code >= 0 else (None, -code)
        self._write_exit(exit_file, returncode, number, killed_by_kernel)

    def _supervise(self, pid: int) -> int:
        """Wait for the stage and return its wait status.

        A stop is passed on once; SIGKILL follows when its time is up, later while the stage asks for more. A stage
        that has hung gets SIGABRT first.
        """
        kill_at = inf
        while (status := _reap(pid)) is None:
            is_ending = kill_at < inf
            due = max(kill_at, self._patience.extended_until) if is_ending else self._patience.hangs_at
            received = _await_signals(self._signals, due - time.monotonic(), self._notifications)
            now = time.monotonic()
            self._patience.hear(self._notifications.hear(pid), now)
            if received & set(_STOPS) and not self._asked_to_stop:
                self._asked_to_stop = True
                _signal_and_wake(pid, signal.SIGTERM)
                kill_at = min(kill_at, now + self._stop_timeout)
            elif is_ending and now >= max(kill_at, self._patience.extended_until):
                os.kill(pid, signal.SIGKILL)
                kill_at = now + _KILL_SECONDS
            elif not is_ending and now >= self._patience.hangs_at:
                self._hung = True
                _signal_and_wake(pid, signal.SIGABRT)
                kill_at = now + _ABORT_SECONDS
        return status

    def _write_child(self, stage_pid: int | None) -> None:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        record = {
            "format": 1,
            "launch": self._launch,
            "stage": self._stage,
            "boot_id": boot_id,
            "pid": os.getpid(),
            "start_time": _start_time(os.getpid()),
            "stage_pid": stage_pid,
            "stage_start_time": None if stage_pid is None else _start_time(stage_pid),
        }
        try:
            write_whole(self._job / self._launches / f"{self._launch:04d}.child.json", json.dumps(record).encode())
        except OSError:
            if stage_pid is None:
                raise
            # On a full disk the first record stands: it names this process, which is enough while it lives.

    def _reserve_exit(self) -> int | None:
        """The file that will become the exit record, with its room taken now, while there is some."""
        try:
            path = self._job / self._launches / self._unfinished_exit
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
            os.posix_fallocate(descriptor, 0, _EXIT_BYTES)
        except OSError:
            return None
        return descriptor

    @property
    def _unfinished_exit(self) -> str:
        return f".{self._launch:04d}.exit.json.tmp"

    def _write_exit(
        self, descriptor: int | None, returncode: int | None, number: int | None, out_of_memory: bool
    ) -> None:
        record = {
            "format": 1,
            "launch": self._launch,
            "returncode": returncode,
            "signal": number,
            "out_of_memory": out_of_memory,
            "hung": self._hung,
            "asked_to_stop": self._asked_to_stop,
            "ended": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        content = json.dumps(record).encode() + b"\n"
        final = self._launches / f"{self._launch:04d}.exit.json"
        if descriptor is None:
            write_whole(final, content)
            return
        os.pwrite(descriptor, content, 0)
        os.ftruncate(descriptor, len(content))
        os.fsync(descriptor)
        os.rename(self._launches / self._unfinished_exit, final)
        sync_directory(self._launches)

    def _append_to_log(self, words: bytes) -> None:
        if not words:
            return
        with contextlib.suppress(OSError):
            descriptor = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
            os.write(descriptor, words)
            os.close(descriptor)


def oom_kills(root: Path = Path("/")) -> int:
    """Processes of our control group that the kernel killed for want of memory so far; 0 where it does not count."""
    total = 0
    with contextlib.suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _number, controllers, group = line.split(":", 2)
            folder = root / "sys/fs/cgroup"
            if controllers == "":
                counter = folder / group.lstrip("/") / "memory.events"
            elif controllers == "memory":
                counter = folder / "memory" / group.lstrip("/") / "memory.oom_control"
            else:
                continue
            with contextlib.suppress(OSError):
                counts = dict(entry.split(" ", 1) for entry in counter.read_text().splitlines())
                total += int(counts.get("oom_kill", 0))
    return total


def _start_time(pid: int) -> int | None:
    stat = read_stat(pid)
    return None if stat is None else stat.start_time


def _first_words_file() -> int:
    """Memory of a fixed size for what is said before the stage has its log, such as why it could not be imported."""
    descriptor = os.memfd_create("first-words", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, _FIRST_WORDS_BYTES)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    return descriptor


def _spawn(command: list[str], output: int, notify_socket: str) -> int:
    return os.posix_spawnp(
        command[0],
        command,
        os.environ | {"NOTIFY_SOCKET": notify_socket},
        file_actions=[(os.POSIX_SPAWN_DUP2, output, 1), (os.POSIX_SPAWN_DUP2, output, 2)],
        setsigmask=[],
        setsigdef=[*_WATCHED, signal.SIGPIPE, signal.SIGXFSZ],
    )


def _signal_and_wake(pid: int, number: signal.Signals) -> None:
    """As systemd does: a process that somebody stopped (SIGSTOP) hears nothing before it goes on."""
    os.kill(pid, number)
    os.kill(pid, signal.SIGCONT)


def _watch_signals() -> int:
    """A descriptor from which the numbers of the watched signals are read as they arrive."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in _WATCHED:
        signal.signal(number, lambda _number, _frame: None)
    return reading


def _await_signals(signals: int, seconds: float, notifications: NotifySocket | None = None) -> set[int]:
    """Return when a watched signal has arrived (which ones), something was notified, or the time is over."""
    timeout = None if seconds == inf else max(0.0, seconds)
    select.select([signals, *([notifications.fileno()] if notifications else [])], [], [], timeout)
    try:
        return set(os.read(signals, 1024))
    except BlockingIOError:
        return set()


def _reap(stage: int) -> int | None:
    """Bury every child that has ended; the wait status of the stage when it is among them."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == stage:
                found = status
    return found


def _end_the_rest(signals: int) -> None:
    """Give the log pump time to write its last lines, then kill what the stage left behind, escaped or not.

    Only direct children are ever killed: nobody else buries them, so their pids cannot have been reused. Their orphans
    become ours (subreaper) and are killed in turn.
    """
    patience = time.monotonic() + _DRAIN_SECONDS
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        now = time.monotonic()
        if now > patience + _KILL_SECONDS:
            return  # Stuck in the kernel; the exit record must not wait for it.
        if now > patience:
            for pid in children_of(os.getpid()):
                os.kill(pid, signal.SIGKILL)
        _await_signals(signals, 0.02 if now > patience else patience - now)


if __name__ == "__main__":
    main()
