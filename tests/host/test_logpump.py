"""A stage's log: its first and its newest words, whatever it says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from finetuned.host.logpump import _CappedFile
from until import until


def test_a_log_that_fits_is_kept_whole(tmp_path: Path):
    log = _CappedFile(tmp_path / "train.log", head_bytes=100, tail_bytes=200)
    for line in range(20):
        log.write(f"line {line}\n".encode())
    assert (tmp_path / "train.log").read_text() == "".join(f"line {line}\n" for line in range(20))


def test_a_log_that_does_not_fit_keeps_its_head_and_its_newest_tail(tmp_path: Path):
    path = tmp_path / "train.log"
    log = _CappedFile(path, head_bytes=1000, tail_bytes=4000)
    lines = [f"line {line:06d}\n" for line in range(10_000)]
    for line in lines:
        log.write(line.encode())
    kept = path.read_text()
    assert len(kept) <= 5100
    assert kept.startswith("".join(lines)[:900])
    assert kept.endswith("".join(lines)[-1900:])
    assert "bytes left out here" in kept
    assert os.listdir(tmp_path) == ["train.log"]


def test_a_log_goes_on_after_what_an_earlier_attempt_wrote(tmp_path: Path):
    (tmp_path / "train.log").write_text("earlier\n")
    _CappedFile(tmp_path / "train.log", 100, 100).write(b"later\n")
    assert (tmp_path / "train.log").read_text() == "earlier\nlater\n"


def test_a_disk_that_is_full_costs_neither_descriptors_nor_the_old_log(tmp_path: Path, monkeypatch):
    path = tmp_path / "train.log"
    log = _CappedFile(path, 10, 10)
    log.write(b"x" * 20)
    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(_CappedFile, "_copy", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
        for _ in range(10):
            with pytest.raises(OSError):
                log.write(b"y")
    assert len(os.listdir("/proc/self/fd")) == before
    assert os.listdir(tmp_path) == ["train.log"]
    log.write(b"y")
    assert path.read_bytes().endswith(b"y")


def test_the_last_words_of_a_killed_process_and_of_its_children_reach_the_log(tmp_path: Path):
    log = tmp_path / "train.log"
    text = f"""
import os, subprocess, signal, sys
from pathlib import Path
from finetuned.host.logpump import redirect_output
redirect_output(Path({str(log)!r}))
print("printed", flush=True)
subprocess.run(["sh", "-c", "echo from a child; echo an error >&2"])
sys.stderr.write("last words\\n")
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", text], check=False)
    until(lambda: log.exists() and log.read_text() == "printed\nfrom a child\nan error\nlast words\n")


def test_a_request_to_stop_does_not_stop_the_pump_before_the_stage(tmp_path: Path):
    log = tmp_path / "train.log"
    text = f"""
import os, signal, time
from pathlib import Path
from finetuned.host.logpump import redirect_output
redirect_output(Path({str(log)!r}))
print("before", flush=True)
while not Path({str(log)!r}).exists(): time.sleep(0.01)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.killpg(0, signal.SIGTERM)
print("after", flush=True)
"""
    subprocess.run([sys.executable, "-c", text], check=True, start_new_session=True)
    until(lambda: log.read_text() == "before\nafter\n")


def test_a_pump_that_is_killed_is_replaced_and_its_stage_goes_on(tmp_path: Path):
    log = tmp_path / "train.log"
    text = f"""
import os, pathlib, signal, sys, time
from finetuned.host.logpump import redirect_output
redirect_output(pathlib.Path({str(log)!r}))
print("before", flush=True)
children = pathlib.Path(f"/proc/self/task/{{os.getpid()}}/children").read_text().split()
os.kill(int(children[0]), signal.SIGKILL)
for number in range(300):
    print("word", number, flush=True)
    time.sleep(0.01)
"""
    assert subprocess.run([sys.executable, "-c", text], timeout=60, check=False).returncode == 0
    until(lambda: log.read_text().endswith("word 299\n"))
    kept = log.read_text().split("word ", 1)[1].splitlines()
    assert kept == [kept[0], *(f"word {number}" for number in range(int(kept[0]) + 1, 300))]
    assert int(kept[0]) < 100
