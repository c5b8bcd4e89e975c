import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import tiny
from exports import LORA, a_plan, a_stage_run, a_whole_run
from finetuned.core.events import Exported
from finetuned.core.job import Stage
from finetuned.core.plan import FullTuning, RunPlan
from finetuned.core.problems import StageFailed, StopRequested
from finetuned.host.journal import read_events
from finetuned.host.stage import StageRun, StopFlag
from finetuned.train import samples
from finetuned.train.export import export
from finetuned.train.probes import Probe
from finetuned.train.samples import AnswerEnd, before_and_after

STOPS = (2, 0)
"""<|im_end|>, and <|pad|> as a second one."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def bf16_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny.build_model(tmp_path_factory.mktemp("models") / "tiny-bf16")
    transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).save_pretrained(folder)
    return folder


class Trained:
    """A tuned model that is about to be exported in its own spool."""

    def __init__(self, spool: Path, base: Path, plan: RunPlan, network: Any):
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(base)
        self.plan, self.network = plan, network
        self.rows = [
            self.tokenizer.apply_chat_template(row["messages"][:1], add_generation_prompt=True)["input_ids"]
            for row in tiny.chat_rows(2)
        ]
        self.probes = [
            {"prompt": f"add {i}", "prompt_ids": row, "reference": f"gives {i}"} for i, row in enumerate(self.rows)
        ]
        self.run: StageRun = a_stage_run(spool, plan, self.probes, a_whole_run())
        self.artifacts = self.run.job.artifacts

    def export(self) -> "Trained":
        export(self.run, self.plan, self.network, self.tokenizer, step=12)
        return self

    def exported(self) -> Exported:
        return next(e for e in read_events(self.run.job.events_file(Stage.TRAIN)) if isinstance(e, Exported))


def a_lora_run(spool: Path, base: Path, dtype: torch.dtype = torch.float32, **changes: Any) -> Trained:
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=dtype)
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    network = peft.get_peft_model(model, config)
    for name, weight in network.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight.data, std=0.3)
    network.train()
    plan = a_plan(LORA, str(base), **{"chat_template": tiny.CHATML, "stop_token_ids": STOPS} | changes)
    return Trained(spool, base, plan, network)


def a_full_run(spool: Path, base: Path, **changes: Any) -> Trained:
    torch.manual_seed(1)
    network = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    network.config.use_cache = False
    for weight in network.parameters():
        weight.data += 0.05 * torch.randn_like(weight)
    network.train()
    plan = a_plan(FullTuning(), str(base), **{"chat_template": tiny.CHATML, "stop_token_ids": STOPS} | changes)
    return Trained(spool, base, plan, network)


@pytest.fixture(scope="module")
def lora(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Trained:
    return a_lora_run(tmp_path_factory.mktemp("spool"), base).export()


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Trained:
    return a_full_run(tmp_path_factory.mktemp("spool"), base).export()


@pytest.fixture(params=["lora", "full"])
def either(request: pytest.FixtureRequest) -> Trained:
    trained: Trained = request.getfixturevalue(request.param)
    return trained


def folder_of(trained: Trained) -> Path:
    return trained.artifacts / ("model" if isinstance(trained.plan.tuning, FullTuning) else "adapter")


@torch.no_grad()
def logits(model: Any, rows: Sequence[Sequence[int]]) -> torch.Tensor:
    model.eval()
    return torch.cat([model(input_ids=torch.tensor([row]), use_cache=False).logits[0].float() for row in rows])


def test_the_three_lines_of_the_card_load_the_trained_model(either: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    card = (folder_of(either) / "README.md").read_text()
    lines = re.findall(r"```python\n(.*?)```", card, re.DOTALL)[0].strip()
    assert len(lines.splitlines()) == 3
    monkeypatch.chdir(either.artifacts)
    scope: dict[str, Any] = {}
    exec(lines, scope)
    torch.testing.assert_close(
        logits(scope["model"], either.rows), logits(either.network, either.rows), rtol=1e-5, atol=1e-5
    )
    assert scope["tokenizer"].chat_template == tiny.CHATML


def test_the_card_answers_a_chat_as_it_says(
    either: Trained, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(either.artifacts)
    scope: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", (folder_of(either) / "README.md").read_text(), re.DOTALL):
        exec(block, scope)
    assert "Hello!" in capsys.readouterr().out


def test_the_adapter_loads_onto_a_base_that_is_already_there(lora: Trained, base: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    loaded = peft.PeftModel.from_pretrained(model, lora.artifacts / "adapter")
    torch.testing.assert_close(logits(loaded, lora.rows), logits(lora.network, lora.rows), rtol=1e-5, atol=1e-5)


def test_the_exported_model_is_whole(full: Trained, base: Path) -> None:
    files = {path.name for path in (full.artifacts / "model").iterdir()}
    assert files >= {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "README.md"}
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (base, full.artifacts / "model"))
    assert after == before


def test_the_artifacts_hold_everything_a_person_looks_at(either: Trained) -> None:
    files = {path.name for path in either.artifacts.iterdir() if path.is_file()}
    assert files == {"metrics.jsonl", "metrics.csv", "loss.png", "samples.md", "report.html"}


def test_the_event_names_every_file_and_the_step(either: Trained) -> None:
    event = either.exported()
    assert event.step == 12
    assert event.largest_logit_difference < 1e-4
    assert all((either.artifacts / file).is_file() for file in event.files)
    assert "report.html" in event.files
    assert len(event.files) == sum(path.is_file() for path in either.artifacts.rglob("*"))


def test_generation_stops_on_every_stop_of_the_data(either: Trained) -> None:
    settings = transformers.GenerationConfig.from_pretrained(folder_of(either))
    assert settings.eos_token_id == list(STOPS)
    assert settings.pad_token_id == either.tokenizer.pad_token_id


def test_the_exported_tokenizer_reads_probes_as_the_trained_one(either: Trained) -> None:
    exported = transformers.AutoTokenizer.from_pretrained(folder_of(either))
    for row in either.rows:
        assert exported.encode(exported.decode(row), add_special_tokens=False) == list(row)


def test_samples_show_answers_before_and_after(either: Trained) -> None:
    text = (either.artifacts / "samples.md").read_text()
    answers = re.findall(r"\*\*(Before|After)\*\* \(.*?\)\n\n(`{3,}text\n.*?\n`{3,})\n", text, re.DOTALL)
    assert [name for name, _ in answers] == ["Before", "After"] * 2
    assert answers[0][1] != answers[1][1]
    assert "gives 0" in text


def test_exporting_leaves_the_model_and_randomness_as_they_were(tmp_path: Path, base: Path) -> None:
    trained = a_lora_run(tmp_path, base)
    weights = {name: weight.clone() for name, weight in trained.network.state_dict().items()}
    trainable = [name for name, weight in trained.network.named_parameters() if weight.requires_grad]
    random = torch.get_rng_state()
    trained.export()
    assert torch.equal(torch.get_rng_state(), random)
    assert trained.network.training
    assert [name for name, weight in trained.network.named_parameters() if weight.requires_grad] == trainable
    after = trained.network.state_dict()
    assert after.keys() == weights.keys()
    assert all(torch.equal(after[name], weight) for name, weight in weights.items())


def test_a_full_model_is_stored_in_its_bases_own_type(tmp_path: Path, bf16_base: Path) -> None:
    trained = a_full_run(tmp_path, bf16_base).export()
    weights = load_file(trained.artifacts / "model" / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    assert json.loads((trained.artifacts / "model" / "config.json").read_text())["dtype"] == "bfloat16"
    assert 0 < trained.exported().largest_logit_difference < 0.5
    assert "bfloat16, the base model's own type" in (trained.artifacts / "model" / "README.md").read_text()


def test_an_adapter_over_a_bf16_base_keeps_its_fp32_weights(tmp_path: Path, bf16_base: Path) -> None:
    trained = a_lora_run(tmp_path, bf16_base, torch.bfloat16, precision="bf16").export()
    weights = load_file(trained.artifacts / "adapter" / "adapter_model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
    assert trained.exported().largest_logit_difference == 0


def test_an_adapter_of_a_hub_model_names_it_and_its_revision(tmp_path: Path, base: Path) -> None:
    trained = a_lora_run(tmp_path, base, name="acme/tiny", revision="c0ffee").export()
    config = json.loads((trained.artifacts / "adapter" / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["revision"]) == ("acme/tiny", "c0ffee")


class StopsLater(StopFlag):
    """Is set when it has been looked at so often."""

    def __init__(self, looks: int):
        super().__init__()
        self.looks = looks

    def raise_if_set(self) -> None:
        self.looks -= 1
        if self.looks == 0:
            self.why = "asked to stop (SIGTERM)"
        super().raise_if_set()


def corrupting(network: Any, change: Any) -> Any:
    """The same network, on a disk that changes what it saves."""
    honest = type(network)

    class Corrupting(honest):  # type: ignore[misc, valid-type]
        def save_pretrained(self, folder: Any, **more: Any) -> None:
            super().save_pretrained(folder, **more)
            change(next(Path(folder).glob("*.safetensors")))

    Corrupting.__name__ = honest.__name__
    network.__class__ = Corrupting
    return network


def one_weight_off(file: Path) -> None:
    weights = load_file(file)
    next(iter(weights.values())).view(-1)[0] += 1e-3
    save_file(weights, file, metadata={"format": "pt"})


def truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


@pytest.mark.parametrize("a_run", [a_lora_run, a_full_run])
@pytest.mark.parametrize("change", [one_weight_off, truncated])
def test_a_corrupted_save_fails_the_job_and_leaves_no_artifacts(
    tmp_path: Path, base: Path, a_run: Any, change: Any
) -> None:
    trained = a_run(tmp_path, base)
    trained.network = corrupting(trained.network, change)
    with pytest.raises(StageFailed, match=r"not the trained ones|cannot be loaded again") as failed:
        trained.export()
    assert not failed.value.retry
    assert not trained.artifacts.exists()


@pytest.mark.parametrize("a_run", [a_lora_run, a_full_run])
def test_a_weight_that_is_not_finite_fails_the_job(tmp_path: Path, base: Path, a_run: Any) -> None:
    trained = a_run(tmp_path, base)
    weight = next(weight for weight in trained.network.parameters() if weight.requires_grad)
    weight.data.view(-1)[0] = float("nan")
    with pytest.raises(StageFailed, match=r"1 of .* not finite"):
        trained.export()
    assert not trained.artifacts.exists()


def test_a_stop_leaves_no_artifacts_and_the_next_attempt_exports(tmp_path: Path, base: Path) -> None:
    trained = a_lora_run(tmp_path, base)
    trained.run.stop = StopsLater(looks=3)
    with pytest.raises(StopRequested):
        trained.export()
    assert not trained.artifacts.exists()
    trained.run.stop = StopFlag()
    trained.export()
    assert (trained.artifacts / "report.html").is_file()
    assert not [path for path in trained.run.job.path.iterdir() if path.name.startswith(".artifacts")]


def test_artifacts_of_an_earlier_attempt_are_replaced(tmp_path: Path, base: Path) -> None:
    trained = a_lora_run(tmp_path, base)
    trained.artifacts.mkdir()
    (trained.artifacts / "stale").touch()
    trained.export()
    assert not (trained.artifacts / "stale").exists()
    assert (trained.artifacts / "adapter" / "adapter_model.safetensors").is_file()


def test_artifacts_are_readable_by_the_group(lora: Trained) -> None:
    assert all(path.stat().st_mode & 0o040 for path in lora.artifacts.rglob("*"))


def test_samples_keep_to_their_time(lora: Trained) -> None:
    probes = [Probe.model_validate(probe) for probe in lora.probes]
    lora.network.eval()
    answers = before_and_after(lora.run, lora.plan, lora.network, lora.tokenizer, probes, budget_seconds=0)
    assert {answer.end for sample in answers for answer in (sample.before, sample.after)} <= {
        AnswerEnd.TIME,
        AnswerEnd.STOP,
    }
    lengths = [len(lora.tokenizer.encode(sample.after.text)) for sample in answers]
    assert max(lengths) < samples.MAX_NEW_TOKENS / 2


@pytest.mark.slow
@pytest.mark.parametrize("family", [family for family in tiny.FAMILIES if family != "llama"])
@pytest.mark.parametrize("a_run", [a_lora_run, a_full_run])
def test_every_family_exports(tmp_path: Path, family: str, a_run: Any) -> None:
    base = tiny.build_model(tmp_path / "base", family)
    trained = a_run(tmp_path / "spool", base).export()
    assert trained.exported().largest_logit_difference < 1e-3


def test_plain_text_without_a_template_exports(tmp_path: Path, base: Path) -> None:
    trained = a_lora_run(tmp_path, base, chat_template=None, stop_token_ids=(), method="pretrain").export()
    settings = transformers.GenerationConfig.from_pretrained(trained.artifacts / "adapter")
    assert settings.eos_token_id == [trained.tokenizer.eos_token_id]
