import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import tiny
from exports import LORA
from finetuned.core.plan import AdapterFacts, FreezeTuning, FullTuning
from finetuned.core.problems import StageFailed, StopRequested
from finetuned.host.stage import StopFlag
from finetuned.train.artifacts import samples
from finetuned.train.artifacts.export import release
from finetuned.train.artifacts.probes import Probe
from finetuned.train.artifacts.samples import AnswerEnd, answers_after
from trained import (
    STOPS,
    Trained,
    a_full_run,
    a_lora_run,
    a_tuned_run,
    logits,
    proofs_in_this_process,
    stored_as,
    with_a_token_the_model_lacks,
)


@pytest.fixture(scope="module", autouse=True)
def proven_here() -> Iterator[None]:
    """tests/train/test_proof.py has the fresh process; here it would cost 5 to 10 s a test."""
    with proofs_in_this_process():
        yield


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def bf16_base(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Path:
    return stored_as("bfloat16", base, tmp_path_factory.mktemp("models") / "tiny-bf16")


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


def test_the_three_lines_of_the_card_load_the_trained_model(either: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    card = (folder_of(either) / "README.md").read_text()
    lines = re.findall(r"```python\n(.*?)```", card, re.DOTALL)[0].strip()
    assert len(lines.splitlines()) == 3
    monkeypatch.chdir(either.artifacts)
    scope: dict[str, Any] = {}
    exec(lines, scope)
    torch.testing.assert_close(logits(scope["model"], either.rows), either.logits, rtol=1e-5, atol=1e-5)
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
    torch.testing.assert_close(logits(loaded, lora.rows), lora.logits, rtol=1e-5, atol=1e-5)


def test_the_exported_model_is_whole(full: Trained, base: Path) -> None:
    files = {path.name for path in (full.artifacts / "model").iterdir()}
    assert files >= {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "README.md"}
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (base, full.artifacts / "model"))
    assert after == before | {"eos_token_id": list(STOPS)}


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


@pytest.mark.parametrize("a_run", [a_lora_run, a_full_run])
def test_the_memory_of_the_trained_model_is_given_back_whoever_still_names_it(
    tmp_path: Path, base: Path, a_run: Any
) -> None:
    network = a_run(tmp_path, base).network
    weights = list(network.parameters())
    release(network)
    assert sum(weight.numel() for weight in weights) == 0
    assert not list(network.parameters())


def test_a_full_model_is_stored_in_its_bases_own_type(tmp_path: Path, bf16_base: Path) -> None:
    trained = a_full_run(tmp_path, bf16_base).export()
    weights = load_file(trained.artifacts / "model" / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    assert json.loads((trained.artifacts / "model" / "config.json").read_text())["dtype"] == "bfloat16"
    assert 0 < trained.exported().largest_logit_difference < 0.5
    assert "bfloat16, the base model's own type" in (trained.artifacts / "model" / "README.md").read_text()


def test_an_adapter_over_a_bf16_base_keeps_its_fp32_weights(tmp_path: Path, bf16_base: Path) -> None:
    trained = a_lora_run(tmp_path, bf16_base, precision="bf16").export()
    weights = load_file(trained.artifacts / "adapter" / "adapter_model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
    assert trained.exported().largest_logit_difference == 0


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
    trained.run.stop = StopsLater(looks=4)
    with pytest.raises(StopRequested):
        trained.export()
    assert not trained.artifacts.exists()
    trained.run.stop = StopFlag()
    trained.export()
    assert (trained.artifacts / "report.html").is_file()
    assert not [path for path in trained.run.job.path.iterdir() if path.name.startswith(".")]


def test_artifacts_of_an_earlier_attempt_are_replaced(tmp_path: Path, base: Path) -> None:
    trained = a_lora_run(tmp_path, base)
    trained.artifacts.mkdir()
    (trained.artifacts / "stale").touch()
    trained.export()
    assert not (trained.artifacts / "stale").exists()
    assert (trained.artifacts / "adapter" / "adapter_model.safetensors").is_file()


def test_artifacts_are_readable_by_the_group(lora: Trained) -> None:
    assert all(path.stat().st_mode & 0o040 for path in lora.artifacts.rglob("*"))


def test_samples_keep_to_their_time(tmp_path: Path, base: Path) -> None:
    trained = a_lora_run(tmp_path, base)
    probes = [Probe.model_validate(probe) for probe in trained.probes]
    trained.network.eval()
    answers = answers_after(trained.run, trained.plan, trained.network, trained.tokenizer, probes, budget_seconds=0)
    assert {answer.end for answer in answers} <= {AnswerEnd.TIME, AnswerEnd.STOP}
    lengths = [len(trained.tokenizer.encode(answer.text)) for answer in answers]
    assert max(lengths) < samples.MAX_NEW_TOKENS / 2


@pytest.mark.parametrize("a_run", [a_lora_run, pytest.param(a_full_run, marks=pytest.mark.slow)])
def test_a_padding_token_that_the_model_has_no_row_for_is_never_filled_up_with(
    tmp_path: Path, base: Path, a_run: Any
) -> None:
    padded = with_a_token_the_model_lacks(base, tmp_path / "padded")
    trained = a_run(tmp_path / "spool", padded, merge=a_run is a_lora_run)
    assert trained.tokenizer.pad_token == "[PAD]"
    trained.probes[0] |= {"prompt_ids": [*trained.rows[0], *trained.rows[0]]}  # The other one is filled up.
    del trained.probes[0]["messages"]
    trained.rewrite_probes()
    trained.export()
    for folder in {"adapter", "merged", "model"} & {path.name for path in trained.artifacts.iterdir()}:
        settings = transformers.GenerationConfig.from_pretrained(trained.artifacts / folder)
        assert settings.pad_token_id in STOPS
    if a_run is a_lora_run:
        loaded = peft.AutoPeftModelForCausalLM.from_pretrained(trained.artifacts / "adapter")
        rows = trained.logits.shape[1]
        torch.testing.assert_close(logits(loaded, trained.rows)[:, :rows], trained.logits, rtol=1e-5, atol=1e-5)
        merged = load_file(trained.artifacts / "merged" / "model.safetensors")
        assert merged["model.embed_tokens.weight"].shape[0] == rows


@pytest.mark.parametrize("change", [{"modules_to_save": ("lm_head",)}, {"target_modules": ("q_proj", "embed_tokens")}])
def test_an_adapter_that_nobody_could_load_is_refused_before_it_is_trained(
    tmp_path: Path, base: Path, change: dict[str, Any]
) -> None:
    padded = with_a_token_the_model_lacks(base, tmp_path / "padded")
    with pytest.raises(StageFailed, match=r"which has 319 rows, and the tokenizer has 320 tokens") as failed:
        a_tuned_run(tmp_path / "spool", padded, LORA.model_copy(update=change))
    assert not failed.value.retry
    assert "resize_token_embeddings" in failed.value.hint


@pytest.mark.slow
@pytest.mark.parametrize("family", [family for family in tiny.FAMILIES if family != "llama"])
@pytest.mark.parametrize("a_run", [a_lora_run, a_full_run])
def test_every_family_exports(tmp_path: Path, family: str, a_run: Any) -> None:
    base = tiny.build_model(tmp_path / "base", family)
    trained = a_run(tmp_path / "spool", base).export()
    assert trained.exported().largest_logit_difference < 1e-3


@pytest.mark.parametrize(
    ("stored", "precision"),
    [
        ("float16", "bf16"),
        pytest.param("float32", "bf16", marks=pytest.mark.slow),
        pytest.param("bfloat16", "bf16", marks=pytest.mark.slow),
        pytest.param("bfloat16", "fp32", marks=pytest.mark.slow),
    ],
)
def test_a_partly_trained_model_is_exported_whole_and_what_stayed_frozen_is_the_base_s_own(
    tmp_path: Path, base: Path, stored: str, precision: str
) -> None:
    stored_base = stored_as(stored, base, tmp_path / "base")
    tuning = FreezeTuning(unfrozen_parameters=(r"layers\.1\.", "lm_head"))
    trained = a_tuned_run(tmp_path / "spool", stored_base, tuning, precision=precision).export()
    before, after = (load_file(folder / "model.safetensors") for folder in (stored_base, trained.artifacts / "model"))
    assert {weight.dtype for weight in after.values()} == {getattr(torch, stored)}
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if "layers.1." in name or "lm_head" in name}
    page = (trained.artifacts / "report.html").read_text()
    assert "partial fine-tuning" in page
    assert "unfrozen_parameters" in page


@pytest.mark.slow
def test_answers_before_are_those_of_the_adapter_that_training_went_on_from(tmp_path: Path, base: Path) -> None:
    first = a_lora_run(tmp_path / "first", base).export()
    folder = first.artifacts / "adapter"
    earlier = AdapterFacts(path=str(folder), files=(), r=LORA.r, alpha=LORA.alpha, target_modules="all-linear")
    tuning = LORA.model_copy(update={"init_adapter": earlier})
    second = a_tuned_run(tmp_path / "second", base, tuning).export()
    answers = r"\*\*{}\*\* \(.*?\)\n\n(`{{3,}}text\n.*?\n`{{3,}})\n"
    after_first, before_second = (
        re.findall(answers.format(word), (trained.artifacts / "samples.md").read_text(), re.DOTALL)
        for word, trained in (("After", first), ("Before", second))
    )
    assert after_first == before_second


def test_plain_text_without_a_template_exports(tmp_path: Path, base: Path) -> None:
    trained = a_lora_run(tmp_path, base, chat_template=None, stop_token_ids=(), method="pretrain").export()
    settings = transformers.GenerationConfig.from_pretrained(trained.artifacts / "adapter")
    assert settings.eos_token_id == [trained.tokenizer.eos_token_id]
