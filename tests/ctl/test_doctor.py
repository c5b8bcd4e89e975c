"""doctor: what it looks at, and that a failed check is exit 1 with what to do."""

import pytest

from finetuned.core.plan import Device, Machine
from finetuned.ctl import machine_checks

CPU_TORCH = {"version": "2.11", "cuda": None, "usable": False, "error": ""}


@pytest.fixture(autouse=True)
def torch_without_waiting(request, monkeypatch):
    if "slow" not in request.keywords:
        monkeypatch.setattr(machine_checks, "_ask_torch", lambda: CPU_TORCH)


def checks(answer):
    return {check["name"]: check for check in answer.json["checks"]}


def test_a_fit_machine_passes(bench):
    bench.run_daemon()
    answer = bench.ctl("doctor", "--json")
    assert (answer.code, answer.json["ok"]) == (0, True)
    assert {"python", "settings", "spool", "daemon", "disk", "gpu", "torch", "clock", "inotify", "jobs"} <= set(
        checks(answer)
    )


def test_a_missing_daemon_fails_with_what_to_do(bench):
    answer = bench.ctl("doctor")
    assert answer.code == 1
    assert "fail  daemon" in answer.out
    assert "hint: " in answer.out
    assert "1 of" in answer.err


def test_a_missing_spool_fails(bench, tmp_path):
    answer = bench.ctl("doctor", "--json", "--spool", str(tmp_path / "nowhere"))
    assert answer.code == 1
    assert checks(answer)["spool"]["state"] == "fail"


def test_bad_settings_fail(bench, tmp_path, monkeypatch):
    (tmp_path / "finetuned.yaml").write_text("cpu_slot: 2\n")
    monkeypatch.setenv("FINETUNED_CONFIG", str(tmp_path))
    assert checks(bench.ctl("doctor", "--json"))["settings"]["state"] == "fail"


def test_each_mistake_in_the_settings_has_a_line_of_its_own(bench, tmp_path, monkeypatch):
    monkeypatch.setenv("FINETUNED_CONFIG", str(tmp_path))
    (tmp_path / "finetuned.yaml").write_text("hang_minuets: 1\nturn_secnods: 2\n")
    lines = bench.ctl("doctor").out.splitlines()
    (first,) = (number for number, line in enumerate(lines) if line.startswith("fail  settings"))
    assert lines[first].endswith("finetuned.yaml:")
    assert [line.split()[0] for line in lines[first + 1 : first + 4]] == ["hang_minuets:", "turn_secnods:", "hint:"]


def test_unreadable_jobs_fail(bench):
    job = bench.job()
    job.claim_file.write_text("{")
    found = checks(bench.ctl("doctor", "--json"))["jobs"]
    assert found["state"] == "fail"
    assert job.job in found["what"]


def a_gpu_machine():
    gpu = Device(id="cuda:0", name="H200", memory_bytes=1, has_bf16=True)
    return Machine(devices=(gpu,), memory_bytes=1, free_disk_bytes=1, driver_version="535.1")


def test_a_gpu_that_torch_cannot_use_fails_naming_driver_and_cuda(bench, monkeypatch):
    monkeypatch.setattr(machine_checks.machine, "look_at", lambda _place: a_gpu_machine())
    monkeypatch.setattr(machine_checks, "_ask_torch", lambda: CPU_TORCH | {"cuda": "13.0"})
    found = checks(bench.ctl("doctor", "--json"))
    assert found["gpu"]["state"] == "ok"
    assert found["torch"]["state"] == "fail"
    assert "535.1" in found["torch"]["what"]
    assert "13.0" in found["torch"]["hint"]


def test_a_python_without_torch_fails(bench, monkeypatch):
    monkeypatch.setattr(machine_checks, "_ask_torch", lambda: "No module named 'torch'")
    found = checks(bench.ctl("doctor", "--json"))["torch"]
    assert found["state"] == "fail"
    assert "pip install" in found["hint"]


@pytest.mark.slow
def test_torch_is_asked_in_a_process_of_its_own(bench):
    assert "torch 2" in checks(bench.ctl("doctor", "--json"))["torch"]["what"]


def test_a_machine_without_llama_cpp_is_fit_and_a_setting_that_finds_nothing_is_told(bench, tmp_path, monkeypatch):
    monkeypatch.setenv("FINETUNED_CONFIG", str(tmp_path))
    monkeypatch.setenv("PATH", "/usr/bin")
    found = checks(bench.ctl("doctor", "--json"))["gguf"]
    assert (found["state"], found["what"]) == ("ok", "no llama.cpp here; jobs that ask for export.gguf are refused")
    (tmp_path / "finetuned.yaml").write_text("gguf_converter: /nowhere/convert.py\n")
    found = checks(bench.ctl("doctor", "--json"))["gguf"]
    assert found["state"] == "warn"
    assert "gguf_converter" in found["what"]
    assert "/nowhere/convert.py" in found["what"]
