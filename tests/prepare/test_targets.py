"""What a job file names of a model is looked for before the GPU is taken."""

import pytest
from transformers import AutoConfig

from finetuned.core.problems import StageFailed
from finetuned.core.spec import JobSpec, parse_spec
from finetuned.prepare.skeleton import skeleton_of
from finetuned.prepare.targets import require_targets


@pytest.fixture(scope="module")
def config():
    return AutoConfig.for_model(
        "llama",
        vocab_size=100,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        tie_word_embeddings=True,
    )


def spec(lines: str = "") -> JobSpec:
    return parse_spec(f"base_model: /m\ndatasets: [/d.jsonl]\n{lines}", "job.yaml").spec


def problems(lines, config):
    with pytest.raises(StageFailed) as refused:
        require_targets(spec(lines), config, lambda: skeleton_of(config))
    return refused.value.problems


@pytest.mark.parametrize(
    "lines",
    [
        "",
        "lora_target_modules: [q_proj, v_proj]",
        "lora_target_modules: [self_attn.q_proj]",
        r"lora_target_modules: .*layers\.1\..*_proj",
        "modules_to_save: [embed_tokens, lm_head]",
    ],
)
def test_modules_that_exist_are_taken(lines, config):
    assert require_targets(spec(lines), config, lambda: skeleton_of(config)) == 0


def test_a_misspelt_module_is_told_with_the_nearest(config):
    (problem,) = problems("lora_target_modules: [q_proj, v_porj]", config)
    assert (problem.place, problem.hint) == ("lora_target_modules", "did you mean v_proj?")


def test_a_pattern_must_match_a_whole_name(config):
    (problem,) = problems(r"lora_target_modules: layers\.1", config)
    assert "matches no module's whole name" in problem.what
    assert "model.layers.0" in problem.hint


def test_a_module_to_save_that_is_not_there_is_told(config):
    (problem,) = problems("modules_to_save: [score]", config)
    assert problem.place == "modules_to_save"
    assert "lm_head" in problem.hint


def test_freeze_counts_what_its_patterns_train(config):
    # Two norms of 16 a layer, and one after the last.
    assert (
        require_targets(
            spec("finetuning_type: freeze\nunfrozen_parameters: [norm]"), config, lambda: skeleton_of(config)
        )
        == 5 * 16
    )


def test_a_tied_head_is_found_by_its_name_and_counted_once(config):
    lines = "finetuning_type: freeze\nunfrozen_parameters: [lm_head, embed_tokens]"
    assert require_targets(spec(lines), config, lambda: skeleton_of(config)) == 100 * 16


def test_a_pattern_of_freeze_that_finds_nothing_is_told_with_names(config):
    lines = "finetuning_type: freeze\nunfrozen_parameters: [norm, layer.9]"
    (problem,) = problems(lines, config)
    assert "'layer.9'" in problem.what
    assert "model.embed_tokens.weight" in problem.hint


@pytest.mark.parametrize("export", ["{merge: true}", "{gguf: q8_0}"])
def test_merging_into_a_base_that_is_stored_quantized_is_refused_before_training(export):
    quantized = AutoConfig.for_model("llama", quantization_config={"quant_method": "bitsandbytes"})
    with pytest.raises(StageFailed, match="is stored quantized; merging into rounded weights would lose the tuning"):
        require_targets(spec(f"export: {export}"), quantized, lambda: skeleton_of(quantized))


def test_a_name_that_would_take_others_along_is_refused_with_the_whole_name(config):
    (problem,) = problems("modules_to_save: [norm]", config)
    assert "input_layernorm" in problem.what
    assert problem.hint == "write the whole name, such as model.norm"
    assert require_targets(spec("modules_to_save: [model.norm]"), config, lambda: skeleton_of(config)) == 0
