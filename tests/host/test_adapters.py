"""A folder with an adapter to go on from: what can be gone on from, and what is said of everything else."""

import json
from pathlib import Path
from typing import Any

import pytest

from finetuned.core.spec import Dataset, JobSpec
from finetuned.host.adapters import read_adapter
from finetuned.host.paths import Unusable
from finetuned.host.sources import source_problems

CONFIG = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "base_model_name_or_path": "org/name",
    "r": 8,
    "lora_alpha": 16,
    "target_modules": ["v_proj", "q_proj"],
    "bias": "none",
    "init_lora_weights": True,
    "modules_to_save": None,
    "use_dora": True,
}


def an_adapter(folder: Path, weights: str = "adapter_model.safetensors", **changes: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | changes))
    (folder / weights).write_bytes(b"x")
    return folder


def refusal(folder: Path) -> tuple[str, str]:
    with pytest.raises(Unusable) as refused:
        read_adapter(folder)
    return str(refused.value), refused.value.hint


def test_the_shape_of_an_adapter_is_read_from_its_config(tmp_path: Path) -> None:
    adapter = read_adapter(an_adapter(tmp_path))
    assert (adapter.base_model, adapter.r, adapter.alpha, adapter.use_dora) == ("org/name", 8, 16, True)
    assert adapter.target_modules == ("q_proj", "v_proj")
    assert adapter.modules_to_save == ()


def test_what_peft_carries_over_by_itself_is_no_obstacle(tmp_path: Path) -> None:
    patterns = {"rank_pattern": {"q_proj": 4}, "alpha_pattern": {"q_proj": 8}, "layers_to_transform": [1]}
    assert read_adapter(an_adapter(tmp_path, target_modules=".*_proj", **patterns)).target_modules == ".*_proj"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"peft_type": "LOHA"}, "LOHA"),
        ({"peft_type": "PROMPT_TUNING"}, "PROMPT_TUNING"),
        ({"bias": "all"}, "bias: all"),
        ({"task_type": "SEQ_CLS"}, "task_type: SEQ_CLS"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights: pissa"),
        ({"layer_replication": [[0, 2], [1, 3]]}, "layer_replication"),
        ({"target_parameters": ["experts.up"]}, "target_parameters"),
    ],
)
def test_adapters_of_other_kinds_are_refused_by_what_was_found(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    assert named in refusal(an_adapter(tmp_path, **changes))[0]


@pytest.mark.parametrize(
    "text", ["{", "[]", '"x"', '{"peft_type": "LORA"}', "[" * 5000, '{"peft_type": "LORA", "r": {}}']
)
def test_a_config_that_makes_no_sense_is_refused_with_its_path(tmp_path: Path, text: str) -> None:
    (an_adapter(tmp_path) / "adapter_config.json").write_text(text)
    assert str(tmp_path) in refusal(tmp_path)[0]


def test_pickled_weights_are_refused_with_how_to_convert_them(tmp_path: Path) -> None:
    what, hint = refusal(an_adapter(tmp_path, weights="adapter_model.bin"))
    assert "could run code" in what
    assert "save_pretrained" in hint


def test_a_whole_model_and_the_artifacts_around_an_adapter_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert "whole model" in refusal(tmp_path)[0]
    an_adapter(tmp_path / "artifacts" / "adapter")
    assert refusal(tmp_path / "artifacts")[1] == f"did you mean {tmp_path}/artifacts/adapter?"


def test_an_adapter_that_cannot_be_used_is_a_problem_of_the_job_file(tmp_path: Path) -> None:
    spec = JobSpec(
        base_model="org/name",
        datasets=(Dataset(path=str(tmp_path / "rows.jsonl")),),
        init_adapter=str(tmp_path / "lost"),
    )
    [problem] = [problem for problem in source_problems(spec, None) if problem.place == "init_adapter"]
    assert problem.what == f"{tmp_path}/lost does not exist"


def test_another_shape_than_the_adapters_is_told_at_the_claim(tmp_path: Path) -> None:
    spec = JobSpec(
        base_model="org/name",
        datasets=(Dataset(path=str(tmp_path / "rows.jsonl")),),
        init_adapter=str(an_adapter(tmp_path / "adapter")),
        lora_r=16,
    )
    problems = {problem.place: problem.what for problem in source_problems(spec, None)}
    assert problems["lora_r"] == "is 16, but init_adapter was trained with 8"


def test_the_tokens_that_an_adapter_brings_have_to_be_named_again(tmp_path: Path) -> None:
    folder = an_adapter(tmp_path / "adapter", trainable_token_indices={"embed_tokens": [600, 601]})
    asked = {
        "base_model": "org/name",
        "datasets": [{"path": str(tmp_path / "rows.jsonl")}],
        "init_adapter": str(folder),
    }
    found = source_problems(JobSpec.model_validate(asked), None)
    [problem] = [problem for problem in found if problem.place == "init_adapter"]
    assert "added_special_tokens" in problem.hint
    found = source_problems(JobSpec.model_validate(asked | {"added_tokens": ("<a>", "<b>")}), None)
    assert "init_adapter" not in {problem.place for problem in found}
