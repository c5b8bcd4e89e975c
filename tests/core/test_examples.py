"""The job files that people copy are right: read without a notice, and planned for one 80 GB card."""

import re
from pathlib import Path

import pytest

from finetuned.core.memory import static_bytes
from finetuned.core.plan import (
    AdapterFacts,
    DataFacts,
    Device,
    Facts,
    FullTuning,
    LoraTuning,
    Machine,
    ModelFacts,
    Quantization,
    RunPlan,
)
from finetuned.core.planning import make_plan
from finetuned.core.spec import JobSpec, parse_spec

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = sorted(path.name for path in EXAMPLES.glob("*.yaml"))
GIGABYTE = 10**9
H100 = Machine(
    devices=(Device(id="cuda:0", name="NVIDIA H100 80GB HBM3", memory_bytes=80 * GIGABYTE, has_bf16=True),),
    memory_bytes=200 * GIGABYTE,
    free_disk_bytes=1000 * GIGABYTE,
)


def a_model(
    name: str, parameters: int, layers: int, hidden: int, vocabulary: int, *, is_tied: bool = False
) -> ModelFacts:
    return ModelFacts(
        name=name,
        path="/srv/finetuned/models/m",
        files=(),
        architecture="LlamaForCausalLM",
        parameters=parameters,
        weight_bytes=2 * parameters,
        vocab_size=vocabulary,
        hidden_size=hidden,
        layers=layers,
        max_position_embeddings=131_072,
        tied_embeddings=is_tied,
    )


MODELS = {
    "meta-llama/Llama-3.1-8B-Instruct": a_model("8B", 8_030_261_248, 32, 4096, 128_256),
    "meta-llama/Llama-3.3-70B-Instruct": a_model("70B", 70_553_706_496, 80, 8192, 128_256),
    "meta-llama/Llama-3.2-1B-Instruct": a_model("1B", 1_235_814_400, 16, 2048, 128_256, is_tied=True),
    "Qwen/Qwen2.5-7B": a_model("7B", 7_615_616_512, 28, 3584, 152_064),
    "Qwen/Qwen2.5-7B-Instruct": a_model("7B", 7_615_616_512, 28, 3584, 152_064),
}
"""As their config.json say."""


def the_spec(name: str) -> JobSpec:
    return parse_spec((EXAMPLES / name).read_text(), name).spec


def the_plan(name: str) -> RunPlan:
    spec = the_spec(name)
    length = spec.max_seq_length or 4096
    data = DataFacts(
        prepared="rows",
        sources=(),
        train_rows=40_000,
        eval_rows=500,
        train_tokens=40_000 * 400,
        train_target_tokens=40_000 * 200,
        eval_tokens=500 * 400,
        eval_target_tokens=500 * 200,
        longest_tokens=length,
        p50_tokens=300,
        p99_tokens=length // 2,
        max_seq_length=length,
    )
    adapter = (
        AdapterFacts(path="/a", files=(), r=16, alpha=32, target_modules="all-linear") if spec.init_adapter else None
    )
    return make_plan(spec, Facts(model=MODELS[spec.base_model], data=data, adapter=adapter), H100)


def test_there_is_an_example_for_each_thing_that_people_ask_for():
    assert NAMES == [
        "chat-lora-8b.yaml",
        "continued-pretraining.yaml",
        "export.yaml",
        "full-1b.yaml",
        "qlora-70b.yaml",
        "resume.yaml",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_read_without_a_problem_or_a_notice(name: str):
    assert parse_spec((EXAMPLES / name).read_text(), name).notices == ()


@pytest.mark.parametrize("name", NAMES)
def test_an_example_says_at_its_head_what_it_is_for_and_is_short(name: str):
    lines = (EXAMPLES / name).read_text().splitlines()
    assert lines[0].startswith("# ")
    assert len(lines) < 40
    assert all(len(line) <= 130 for line in lines)


@pytest.mark.parametrize("name", NAMES)
def test_the_page_beside_the_examples_has_a_line_for_each(name: str):
    page = (EXAMPLES / "README.md").read_text()
    assert page.count(f"| [{name}]({name}) |") == 1


def test_what_the_page_links_to_is_there():
    for target in re.findall(r"\]\(([^)]+)\)", (EXAMPLES / "README.md").read_text()):
        assert (EXAMPLES / target).exists(), target


@pytest.mark.parametrize("name", NAMES)
def test_an_80_gb_card_can_carry_an_example_out(name: str):
    assert the_plan(name).notices == ()


def test_the_70b_model_is_tuned_in_4_bits_for_2400_steps_on_one_card():
    plan = the_plan("qlora-70b.yaml")
    assert isinstance(plan.tuning, LoraTuning)
    assert plan.tuning.quantization == Quantization(kind="nf4", double_quant=True)
    assert (plan.schedule.total_steps, plan.schedule.warmup_steps) == (2400, 60)
    assert plan.optimizer.optim == "paged_adamw_8bit"


def test_the_1b_model_is_tuned_in_full():
    assert isinstance(the_plan("full-1b.yaml").tuning, FullTuning)


@pytest.mark.parametrize(
    ("name", "gigabytes"), [("chat-lora-8b.yaml", 17), ("qlora-70b.yaml", 43), ("full-1b.yaml", 20)]
)
def test_the_memory_that_an_example_tells_of_is_what_a_plan_counts(name: str, gigabytes: int):
    plan = the_plan(name)
    facts = Facts(model=plan.model, data=plan.data)
    needed = static_bytes(plan.tuning, plan.optimizer, facts, base_bytes=2, new_tokens=False)
    assert needed.total / GIGABYTE == pytest.approx(gigabytes, abs=0.5)


def test_continued_pretraining_learns_text_at_a_rate_that_stays_up():
    plan = the_plan("continued-pretraining.yaml")
    assert (plan.method, plan.schedule.lr_scheduler_type) == ("pretrain", "warmup_stable_decay")
    assert plan.schedule.decay_steps > 0


def test_going_on_begins_with_the_adapter():
    tuning = the_plan("resume.yaml").tuning
    assert isinstance(tuning, LoraTuning)
    assert tuning.init_adapter is not None


def test_the_export_is_a_merged_model_and_one_for_llama_cpp():
    plan = the_plan("export.yaml")
    assert (plan.exports.merge, plan.exports.gguf) == (True, "q8_0")
