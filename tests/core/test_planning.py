"""What `auto` means: spec + facts + machine → plan, as a table of promises."""

import pytest

from finetuned.core.plan import (
    AdapterFacts,
    DataFacts,
    Device,
    Facts,
    FreezeTuning,
    LoraTuning,
    Machine,
    ModelFacts,
    Quantization,
    RunPlan,
)
from finetuned.core.planning import digest, make_plan
from finetuned.core.problems import CannotRun
from finetuned.core.spec import JobSpec, parse_spec

GIGABYTE = 10**9
LAPTOP = Machine(
    devices=(Device(id="cpu:0", name="CPU", memory_bytes=24 * GIGABYTE, has_bf16=False),),
    memory_bytes=24 * GIGABYTE,
    free_disk_bytes=100 * GIGABYTE,
)
H100 = Machine(
    devices=(Device(id="cuda:0", name="NVIDIA H100", memory_bytes=80 * GIGABYTE, has_bf16=True),),
    memory_bytes=200 * GIGABYTE,
    free_disk_bytes=1000 * GIGABYTE,
)

AN_ADAPTER = AdapterFacts(path="/a", files=(), r=8, alpha=16, target_modules=("q_proj", "v_proj"))


def facts(rows: int = 1000, *, eval_rows: int = 50, tokens_a_row: int = 100, parameters: int = 135_000_000) -> Facts:
    model = ModelFacts(
        name="smol",
        path="/srv/models/smol",
        files=(),
        architecture="LlamaForCausalLM",
        parameters=parameters,
        weight_bytes=2 * parameters,
        vocab_size=50_000,
        hidden_size=4096 if parameters > GIGABYTE else 576,
        layers=32,
        max_position_embeddings=2048,
        tied_embeddings=True,
    )
    data = DataFacts(
        prepared="rows",
        sources=(),
        train_rows=rows,
        eval_rows=eval_rows,
        train_tokens=rows * tokens_a_row,
        train_target_tokens=rows * tokens_a_row // 2,
        eval_tokens=eval_rows * tokens_a_row,
        eval_target_tokens=eval_rows * tokens_a_row // 2,
        longest_tokens=tokens_a_row,
        p50_tokens=tokens_a_row,
        p99_tokens=tokens_a_row,
        max_seq_length=2048,
    )
    return Facts(model=model, data=data)


def spec(lines: str = "") -> JobSpec:
    return parse_spec(f"base_model: /m\ndatasets: [{{path: /d.jsonl}}]\n{lines}", "job.yaml").spec


def plan(lines: str = "", *, machine: Machine = LAPTOP, **about: int) -> RunPlan:
    return make_plan(spec(lines), facts(**about), machine)


@pytest.mark.parametrize(
    ("rows", "size", "steps"), [(20, 1, 60), (200, 3, 201), (1000, 15, 201), (100_000, 16, 18_750)]
)
def test_the_batch_grows_with_the_data_between_1_and_16(rows, size, steps):
    found = plan(rows=rows)
    assert (found.batches.global_batch_size, found.schedule.total_steps) == (size, steps)


def test_the_last_batch_of_an_epoch_counts_as_a_step():
    assert plan("global_batch_size: 16\nnum_train_epochs: 2", rows=17).schedule.total_steps == 4


def test_max_steps_is_the_number_of_steps():
    assert plan("max_steps: 7").schedule.total_steps == 7


def test_a_run_of_few_steps_is_noticed_with_numbers():
    (notice,) = plan("max_steps: 7").notices
    assert "7 steps are few" in notice


@pytest.mark.parametrize(
    ("lines", "steps"),
    [
        ("", 6),
        ("max_steps: 1", 0),
        ("warmup_ratio: 0.1", 21),
        ("warmup_steps: 5", 5),
        ("warmup_ratio: 0", 0),
        ("warmup_steps: 999", 201),
    ],
)
def test_warm_up_is_3_percent_unless_asked(lines, steps):
    assert plan(lines).schedule.warmup_steps == steps


@pytest.mark.parametrize(("kind", "rate", "kept"), [("lora", 2e-4, 2), ("full", 1e-5, 1)])
def test_learning_rate_and_kept_checkpoints_depend_on_the_tuning(kind, rate, kept):
    found = plan(f"finetuning_type: {kind}")
    assert (found.optimizer.learning_rate, found.cadence.save_total_limit) == (rate, kept)


def test_evaluation_happens_about_ten_times_and_takes_at_most_a_twentieth_of_the_time():
    assert plan(eval_rows=20).cadence.eval_steps == 21
    # 500 evaluation rows against 1000 x 3: one evaluation is 5.6 % of training already.
    assert plan(eval_rows=500).cadence.eval_steps == 201


def test_the_best_weights_are_exported_where_there_is_evaluation():
    assert plan().selection.load_best
    assert not plan(eval_rows=0).selection.load_best
    assert plan(eval_rows=0).cadence.eval_steps == 0


@pytest.mark.parametrize(
    "line", ["load_best_model_at_end: true", "early_stopping_patience: 2", "metric_for_best_model: eval_loss"]
)
def test_what_needs_evaluation_is_refused_where_there_are_no_rows_for_it(line):
    with pytest.raises(CannotRun, match="0 evaluation rows"):
        plan(line, rows=100, eval_rows=0)


def test_checkpoints_come_every_ten_minutes_unless_steps_are_asked_for():
    assert (plan().cadence.save_minutes, plan().cadence.save_steps) == (10, 0)
    assert (plan("save_steps: 5").cadence.save_minutes, plan("save_steps: 5").cadence.save_steps) == (0, 5)


def test_bf16_is_used_where_the_device_has_it_unless_asked_otherwise():
    assert plan().precision == "fp32"
    assert plan(machine=H100).precision == "bf16"
    assert plan("bf16: false", machine=H100).precision == "fp32"


def test_the_cpu_can_be_asked_for_on_a_machine_with_a_gpu():
    assert plan(machine=H100).device == "cuda"
    assert plan("device: cpu", machine=H100).device == "cpu"


def test_full_tuning_of_8b_on_80_gb_is_refused_with_its_sum_and_a_way_out():
    with pytest.raises(CannotRun) as refused:
        plan("finetuning_type: full", machine=H100, parameters=8 * GIGABYTE)
    assert "at least 128 GB (weights 32 GB, gradients 32 GB, optimizer 64 GB)" in str(refused.value)
    assert "lora" in str(refused.value)
    assert plan(machine=H100, parameters=8 * GIGABYTE).tuning.kind == "lora"


def test_micro_batches_shrink_with_the_memory_that_is_left():
    small = Machine(
        devices=(Device(id="cuda:0", name="small", memory_bytes=24 * GIGABYTE, has_bf16=True),),
        memory_bytes=24 * GIGABYTE,
        free_disk_bytes=GIGABYTE,
    )
    large = plan(machine=H100, parameters=8 * GIGABYTE).batches.micro_batch_tokens
    assert plan(machine=small, parameters=8 * GIGABYTE).batches.micro_batch_tokens < large == 16384


def test_the_digest_covers_what_defines_the_result_and_nothing_else():
    base = plan()
    for same in (
        "save_steps: 5",
        "save_total_limit: 9",
        "logging_steps: 3",
        "priority: 7",
        "gradient_checkpointing: true",
    ):
        assert plan(same).digest == base.digest, same
    for other in ("learning_rate: 1e-4", "seed: 1", "lora_r: 8", "global_batch_size: 4", "max_steps: 9", "bf16: true"):
        assert plan(other).digest != base.digest, other
    assert digest(base) == base.digest


def test_a_plan_survives_its_file():
    assert RunPlan.model_validate_json(plan().model_dump_json()) == plan()


def test_qlora_is_an_adapter_on_a_base_of_four_bits_with_double_quantization():
    tuning = plan("finetuning_type: qlora").tuning
    assert isinstance(tuning, LoraTuning)
    assert tuning.quantization == Quantization(kind="nf4", double_quant=True)


def test_eight_bits_are_asked_for_by_name():
    tuning = plan("finetuning_type: qlora\nload_in_8bit: true").tuning
    assert isinstance(tuning, LoraTuning)
    assert tuning.quantization == Quantization(kind="int8")


def test_70b_fits_80_gb_as_qlora_and_not_as_lora():
    plan("finetuning_type: qlora", machine=H100, parameters=70 * GIGABYTE)
    with pytest.raises(CannotRun) as refused:
        plan("finetuning_type: lora", machine=H100, parameters=70 * GIGABYTE)
    assert "hint: finetuning_type: qlora needs about " in str(refused.value)


def test_eight_bit_states_need_a_quarter_of_the_optimizers_memory():
    terms = {}
    for optim in ("adamw_torch", "adamw_8bit"):
        with pytest.raises(CannotRun) as refused:
            plan(f"finetuning_type: full\noptim: {optim}", machine=H100, parameters=8 * GIGABYTE)
        terms[optim] = str(refused.value).split("optimizer ")[1].split(")")[0]
    assert terms == {"adamw_torch": "64 GB", "adamw_8bit": "16 GB"}


def test_freeze_is_planned_with_what_it_trains():
    frozen = facts(parameters=8 * GIGABYTE).model_copy(update={"unfrozen_parameters": GIGABYTE})
    found = make_plan(spec("finetuning_type: freeze\nunfrozen_parameters: [norm]"), frozen, H100)
    assert found.tuning == FreezeTuning(unfrozen_parameters=("norm",))
    assert found.optimizer.learning_rate == 1e-5


def test_an_adapter_to_go_on_from_keeps_its_shape():
    tuning = make_plan(spec("init_adapter: /a"), facts().model_copy(update={"adapter": AN_ADAPTER}), LAPTOP).tuning
    assert isinstance(tuning, LoraTuning)
    assert (tuning.r, tuning.alpha, tuning.target_modules) == (8, 16, ("q_proj", "v_proj"))
    assert tuning.init_adapter == AN_ADAPTER


def test_an_adapter_to_go_on_from_of_another_shape_is_refused_with_both():
    with pytest.raises(CannotRun) as refused:
        make_plan(spec("init_adapter: /a\nlora_r: 16"), facts().model_copy(update={"adapter": AN_ADAPTER}), LAPTOP)
    assert "lora_r  is 16, but init_adapter was trained with 8" in str(refused.value)


def test_lora_plus_and_optimizer_are_planned():
    optimizer = plan("loraplus_lr_ratio: 16\noptim: paged_adamw_8bit").optimizer
    assert (optimizer.loraplus_lr_ratio, optimizer.optim) == (16, "paged_adamw_8bit")
    assert plan("loraplus_lr_ratio: 16\nfinetuning_type: full").optimizer.loraplus_lr_ratio == 1


@pytest.mark.parametrize(
    ("lines", "decay"),
    [
        ("lr_scheduler_type: wsd", 10),
        ("lr_scheduler_type: wsd\nlr_decay_ratio: 0.25", 25),
        ("lr_scheduler_type: wsd\nlr_decay_ratio: 1", 97),
        ("lr_scheduler_type: cosine", 0),
    ],
)
def test_a_decay_of_its_own_takes_the_last_part_of_the_run(lines, decay):
    assert plan(f"max_steps: 100\n{lines}").schedule.decay_steps == decay


def test_new_tokens_are_part_of_what_defines_the_result():
    assert plan("added_tokens: [<a>]").added_tokens == ("<a>",)
    assert plan("added_tokens: [<a>]").digest != plan().digest


def test_other_forms_of_the_result_do_not_change_what_is_trained():
    found = plan("export: {merge: true, gguf: q8_0}")
    assert (found.exports.merge, found.exports.gguf) == (True, "q8_0")
    assert found.digest == plan().digest


@pytest.mark.parametrize("export", ["merge: true", "gguf: q8_0"])
def test_a_merge_that_main_memory_cannot_hold_is_refused_before_training(export):
    small = H100.model_copy(update={"memory_bytes": 64 * GIGABYTE})
    lines = f"finetuning_type: qlora\nexport: {{{export}}}"
    with pytest.raises(CannotRun) as refused:
        plan(lines, machine=small, parameters=70 * GIGABYTE)
    assert "merging takes the base's 140 GB of main memory, and there are 64 GB" in str(refused.value)
    plan(lines, machine=H100, parameters=70 * GIGABYTE)
