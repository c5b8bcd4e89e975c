"""The adapter that a job goes on from, as prepare finds it."""

import json
from pathlib import Path
from typing import Any

import pytest

import tiny
from finetuned.core.problems import InvalidSpec, StageFailed
from finetuned.core.spec import Dataset
from finetuned.host.store import hash_files
from preparing import InProcess, a_chat, a_model_folder, write_safetensors

LAYER = "model.layers.0.mlp.up_proj"


@pytest.fixture
def stage(tmp_path: Path, chatml: Any) -> InProcess:
    """Its model has one linear layer of 8 outputs and 4 inputs."""
    model = a_model_folder(tmp_path / "model", chatml)
    write_safetensors(model / "model.safetensors", {"model.embed_tokens.weight": (600, 4), f"{LAYER}.weight": (8, 4)})
    return InProcess(tmp_path, model)


def an_adapter(folder: Path, base: str, outputs: int = 8, inputs: int = 4) -> Path:
    folder.mkdir(parents=True)
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": base,
        "r": 2,
        "lora_alpha": 4,
        "target_modules": ["up_proj", "down_proj"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    shapes = {f"base_model.model.{LAYER}.lora_A.weight": (2, inputs)}
    shapes |= {f"base_model.model.{LAYER}.lora_B.weight": (outputs, 2)}
    write_safetensors(folder / "adapter_model.safetensors", shapes)
    return folder


def test_the_adapter_to_go_on_from_is_hashed_and_its_shape_is_a_fact(stage: InProcess) -> None:
    folder = an_adapter(stage.root / "adapter", str(stage.model))
    facts = stage.prepare(stage.spec(a_chat("a", "b"), init_adapter=str(folder)))
    assert facts.adapter is not None
    assert facts.adapter.path == str(folder)
    assert facts.adapter.files == tuple(hash_files(folder, ["adapter_config.json", "adapter_model.safetensors"]))
    assert (facts.adapter.r, facts.adapter.alpha, facts.adapter.target_modules) == (2, 4, ("down_proj", "up_proj"))
    assert not any("init_adapter" in notice for notice in facts.notices)


def test_an_adapter_of_another_base_by_name_is_noticed(stage: InProcess) -> None:
    folder = an_adapter(stage.root / "adapter", "org/other")
    facts = stage.prepare(stage.spec(a_chat("a", "b"), init_adapter=str(folder)))
    expected = f"init_adapter says that it was trained on org/other; this job goes on with {stage.model}"
    assert expected in facts.notices


@pytest.mark.parametrize(
    ("sizes", "what"), [({"outputs": 6}, "6 outputs, and the base model's has 8"), ({"inputs": 16}, "16 inputs, and")]
)
def test_an_adapter_of_other_sizes_than_the_base_is_refused_before_the_gpu_is_taken(
    stage: InProcess, sizes: dict[str, int], what: str
) -> None:
    folder = an_adapter(stage.root / "adapter", str(stage.model), **sizes)
    with pytest.raises(StageFailed) as failure:
        stage.prepare(stage.spec(a_chat("a", "b"), init_adapter=str(folder)))
    [problem] = failure.value.problems
    assert problem.place == "init_adapter"
    assert what in problem.what
    assert not failure.value.retry


def test_an_adapter_that_is_cut_off_is_refused(stage: InProcess) -> None:
    folder = an_adapter(stage.root / "adapter", str(stage.model))
    (folder / "adapter_model.safetensors").write_bytes(b"\x10")
    with pytest.raises(StageFailed) as failure:
        stage.prepare(stage.spec(a_chat("a", "b"), init_adapter=str(folder)))
    assert "adapter_model.safetensors is not a readable" in failure.value.problems[0].what


def test_an_adapter_that_is_not_there_is_a_problem_of_the_job_file(stage: InProcess) -> None:
    with pytest.raises(InvalidSpec, match="does not exist"):
        stage.prepare(stage.spec(a_chat("a", "b"), init_adapter=str(stage.root / "lost")))


def test_an_adapter_that_came_in_a_dropped_folder_is_kept_in_the_store(stage: InProcess) -> None:
    run = stage.new_run()
    an_adapter(run.job.dropped / "adapter", str(stage.model))
    tiny.write_jsonl(run.job.dropped / "rows.jsonl", [a_chat("a", "b")])
    spec = stage.spec(init_adapter="adapter").model_copy(update={"datasets": (Dataset(path="rows.jsonl"),)})
    facts = stage.prepare(spec, run)
    assert facts.adapter is not None
    kept = Path(facts.adapter.path)
    assert kept.parent == stage.root / "spool/store/models"
    assert facts.adapter.files == tuple(hash_files(kept, ["adapter_config.json", "adapter_model.safetensors"]))
