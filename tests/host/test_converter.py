"""llama.cpp's programs: found when a job is claimed, or named with where they were looked for."""

import sys
from pathlib import Path

import pytest

from finetuned.host.converter import GgufPrograms, NoProgram, gguf_problems
from finetuned.host.settings import Settings


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH, and holds the settings."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("FINETUNED_CONFIG", str(tmp_path))
    return tmp_path


def program(path: Path, mode: int = 0o755) -> Path:
    path.touch(mode)
    return path


def test_a_machine_without_a_converter_is_told_what_was_looked_for_and_where(machine: Path) -> None:
    [problem] = gguf_problems("q8_0")
    assert problem.place == "export.gguf"
    assert "neither is gguf_converter set in" in problem.what
    assert f"nor is convert_hf_to_gguf.py or convert-hf-to-gguf on PATH ({machine})" in problem.what
    assert f"set gguf_converter to its path in {machine / 'finetuned.yaml'}" in problem.hint


def test_a_job_without_gguf_needs_none(machine: Path) -> None:
    assert not list(gguf_problems("none"))


@pytest.mark.parametrize("name", ["convert_hf_to_gguf.py", "convert-hf-to-gguf"])
def test_a_converter_on_path_is_found(machine: Path, name: str) -> None:
    found = program(machine / name)
    assert GgufPrograms.find("bf16", Settings()) == GgufPrograms((str(found),), None)


def test_types_of_few_bits_need_llama_quantize_too(machine: Path) -> None:
    program(machine / "convert-hf-to-gguf")
    [problem] = gguf_problems("q4_k_m")
    assert "llama-quantize on PATH" in problem.what
    program(machine / "llama-quantize")
    assert not list(gguf_problems("q4_k_m"))


def test_the_settings_may_name_a_command_or_a_script(machine: Path) -> None:
    script = program(machine / "my converter.py", 0o644)
    python = program(machine / "python3")
    named = Settings(gguf_converter=f"{python} '{script}' --verbose")
    assert GgufPrograms.find("f16", named).converter == (str(python), str(script), "--verbose")
    script = program(machine / "convert.py", 0o644)
    assert GgufPrograms.find("f16", Settings(gguf_converter=str(script))).converter == (sys.executable, str(script))


def test_a_setting_that_names_nothing_is_told(machine: Path) -> None:
    with pytest.raises(NoProgram, match=r"gguf_converter in .* is '/nowhere/x.py', and there is no such program"):
        GgufPrograms.find("f16", Settings(gguf_converter="/nowhere/x.py"))


def test_few_bits_are_quantized_from_16(machine: Path) -> None:
    programs = GgufPrograms(("convert",), ("quantize",))
    first, second = programs.commands("q4_k_m", Path("/model"), Path("/out/model-q4_k_m.gguf"))
    assert first == ("convert", "/model", "--outfile", "/out/f16.model-q4_k_m.gguf", "--outtype", "f16")
    assert second == ("quantize", "/out/f16.model-q4_k_m.gguf", "/out/model-q4_k_m.gguf", "Q4_K_M")


def test_settings_that_cannot_be_read_are_a_problem_of_the_job(machine: Path) -> None:
    (machine / "finetuned.yaml").write_text("gguf_convertor: x\n")
    assert "gguf_convertor" in next(gguf_problems("f16")).what
