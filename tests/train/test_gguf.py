"""The GGUF file: the last step, which can fail without hurting anything. tests/llama_cpp.py stands in for llama.cpp."""

import json
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gguf import GGUFReader

import llama_cpp
import tiny
from finetuned.core.events import Noticed
from finetuned.core.job import Stage
from finetuned.core.problems import StageFailed, StopRequested
from finetuned.host.journal import read_events
from finetuned.host.stage import StopFlag
from finetuned.train.artifacts import fresh, gguf
from finetuned.train.artifacts.export import export
from trained import Trained, a_full_run, a_lora_run, proofs_in_this_process

STAND_IN = shlex.join([sys.executable, str(Path(llama_cpp.__file__))])


@pytest.fixture(autouse=True)
def proven_here() -> Iterator[None]:
    with proofs_in_this_process(charts=False):
        yield


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`settings(mode, minutes)`: llama.cpp is installed, and its converter does what `mode` says."""
    monkeypatch.setenv("FINETUNED_CONFIG", str(tmp_path))

    def write(mode: str, minutes: float = 1) -> None:
        content = {
            "gguf_converter": f"{STAND_IN} {shlex.quote(mode)}",
            "gguf_quantizer": f"{STAND_IN} quantizes",
            "gguf_minutes": minutes,
        }
        (tmp_path / "finetuned.yaml").write_text(json.dumps(content))

    return write


def exported(trained: Trained) -> str:
    return export(trained.run, trained.plan, trained.network, trained.tokenizer, step=12)


def notices_of(trained: Trained) -> list[str]:
    return [event.text for event in read_events(trained.run.job.events_file(Stage.TRAIN)) if isinstance(event, Noticed)]


def assert_all_else_is_there(trained: Trained, folder: str) -> None:
    assert (trained.artifacts / folder / "README.md").is_file()
    assert trained.exported().step == 12
    assert not (trained.artifacts / "gguf").exists()
    assert not (trained.run.job.path / ".export").exists()


def test_the_model_is_converted_after_everything_is_published(
    tmp_path: Path, base: Path, settings: Callable[..., None]
) -> None:
    settings("works")
    trained = a_full_run(tmp_path / "spool", base, gguf="f32")
    assert exported(trained) == ""
    reader = GGUFReader(trained.artifacts / "gguf" / "model-f32.gguf")
    assert "model.embed_tokens.weight" in {tensor.name for tensor in reader.tensors}
    [notice] = notices_of(trained)
    assert notice.startswith("gguf/model-f32.gguf is written")
    assert "gguf/model-f32.gguf" in (trained.artifacts / "report.html").read_text()


def test_an_adapter_is_merged_aside_for_its_gguf_file_and_quantized_by_llama_quantize(
    tmp_path: Path, base: Path, settings: Callable[..., None]
) -> None:
    settings("works")
    trained = a_lora_run(tmp_path / "spool", base, gguf="q4_k_m")
    assert exported(trained) == ""
    assert [path.name for path in (trained.artifacts / "gguf").iterdir()] == ["model-q4_k_m.gguf"]
    assert not (trained.artifacts / "merged").exists()
    assert not (trained.run.job.path / ".export").exists()


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("fails", "ended with status 1: INFO:hf-to-gguf:Loading model; NotImplementedError: Architecture"),
        ("writes nothing", "ended well and wrote no file"),
        ("writes rubbish", "does not begin as a GGUF file does (b'<html>no')"),
        ("cuts short", "is a damaged GGUF file"),
        ("leaves a pipe", "left a pipe, not a file, at model-f32.gguf"),
        ("writes elsewhere", "left a symbolic link, not a file, at model-f32.gguf"),
        pytest.param("leaves a folder", "left a folder, not a file, at model-f32.gguf", marks=pytest.mark.slow),
    ],
)
def test_a_converter_that_goes_wrong_costs_the_gguf_file_alone(
    tmp_path: Path, base: Path, settings: Callable[..., None], mode: str, why: str
) -> None:
    settings(mode)
    trained = a_full_run(tmp_path / "spool", base, gguf="f32")
    shortfall = exported(trained)
    assert "no GGUF file could be made, all else is there" in shortfall
    assert why in shortfall
    assert notices_of(trained) == [shortfall]
    assert why.split(" (")[0] in (trained.artifacts / "report.html").read_text().replace("&#39;", "'")
    assert_all_else_is_there(trained, "model")


@pytest.mark.slow
def test_a_converter_that_hangs_is_given_up_after_its_time(
    tmp_path: Path, base: Path, settings: Callable[..., None]
) -> None:
    settings("hangs", minutes=0.02)
    trained = a_full_run(tmp_path / "spool", base, gguf="f32")
    assert "ran out of time (gguf_minutes: 0.02)" in exported(trained)
    assert_all_else_is_there(trained, "model")


@pytest.mark.slow
def test_a_converter_that_is_gone_by_then_costs_the_gguf_file_alone(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINETUNED_CONFIG", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    trained = a_full_run(tmp_path / "spool", base, gguf="f32")
    assert "needs llama.cpp's convert_hf_to_gguf.py" in exported(trained)
    assert_all_else_is_there(trained, "model")


@pytest.mark.slow
def test_a_merge_for_it_that_cannot_be_proven_costs_the_gguf_file_alone(
    tmp_path: Path, base: Path, settings: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings("works")
    trained = a_lora_run(tmp_path / "spool", base, gguf="f32")
    prove = fresh.prove

    def killed_while_merging(run, task):  # type: ignore[no-untyped-def]
        if task.merges_into is not None:
            raise StageFailed("the process that loads it again was killed (SIGKILL)", retry=True)
        return prove(run, task)

    monkeypatch.setattr(fresh, "prove", killed_while_merging)
    assert "was killed (SIGKILL)" in exported(trained)
    assert_all_else_is_there(trained, "adapter")


@pytest.mark.slow
def test_a_full_disk_costs_the_gguf_file_alone(
    tmp_path: Path, base: Path, settings: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings("works")
    trained = a_full_run(tmp_path / "spool", base, gguf="f32")

    def no_room(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf, "sync_file", no_room)
    assert "No space left on device" in exported(trained)
    assert_all_else_is_there(trained, "model")


@pytest.mark.slow
def test_a_stop_during_the_conversion_stops_and_leaves_the_artifacts_proven(
    tmp_path: Path, base: Path, settings: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings("hangs")
    trained = a_full_run(tmp_path / "spool", base, gguf="f32")
    run_program = gguf.run_program

    def asked_to_stop(*command, **more):  # type: ignore[no-untyped-def]
        more["stop"] = StopFlag("asked to stop (SIGTERM)")
        return run_program(*command, **more)

    monkeypatch.setattr(gguf, "run_program", asked_to_stop)
    with pytest.raises(StopRequested):
        exported(trained)
    assert (trained.artifacts / "report.html").is_file()
