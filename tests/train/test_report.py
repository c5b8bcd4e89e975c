import csv
import json
import re
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path

import pytest

from exports import (
    EVENING,
    JOB,
    LORA,
    a_plan,
    a_whole_run,
    evaluated,
    noticed,
    restored,
    started,
    stepped,
)
from finetuned.core.events import Event, Stopped
from finetuned.core.plan import FullTuning, Quantization
from finetuned.train.artifacts.gguf import Gguf
from finetuned.train.artifacts.proof import Proof
from finetuned.train.artifacts.samples import Answer, AnswerEnd, Sample
from finetuned.train.report import chart
from finetuned.train.report.metrics import Metrics, metrics_of, write_csv, write_jsonl
from finetuned.train.report.model_card import write_model_card
from finetuned.train.report.page import Report, duration, fenced, inline, write_report
from finetuned.train.report.particulars import settings_of

SAMPLE = Sample(
    "what is 2 and 3?",
    "gives 5",
    before=Answer("I like trains", AnswerEnd.LENGTH),
    after=Answer("gives 5", AnswerEnd.STOP),
)


A_PROOF = Proof(
    folder="adapter",
    tensors=8,
    largest_logit_difference=1e-6,
    largest_logit=12.0,
    tolerance=1e-4,
    tokens=99,
    chats=3,
    answer_tokens=7,
    answer_stopped=True,
    dtype="float32",
)


def a_report(events: list[Event] | None = None, **changes: object) -> Report:
    facts: dict[str, object] = {
        "job": JOB,
        "plan": a_plan(),
        "step": 12,
        "events": tuple(a_whole_run() if events is None else events),
        "samples": (SAMPLE,),
        "proofs": (A_PROOF,),
        "written": EVENING + timedelta(minutes=75),
    }
    return Report(**(facts | changes))  # type: ignore[arg-type]


def written(report: Report, into: Path) -> str:
    write_report(report, into)
    return (into / "report.html").read_text()


@pytest.fixture(scope="module")
def of_a_whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report files of an ordinary run."""
    into = tmp_path_factory.mktemp("report")
    write_report(a_report(), into)
    return into


class Page(HTMLParser):
    """What a browser would fetch, run and show."""

    def __init__(self, html: str):
        super().__init__()
        self.elements: set[str] = set()
        self.fetched: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.fetched += [value or "" for name, value in attributes if name in ("src", "srcset", "href", "data")]

    def handle_data(self, data: str) -> None:
        self.text += data + " "


def test_the_later_line_of_a_repeated_step_counts() -> None:
    metrics = metrics_of([stepped(1, loss=9.0), stepped(2), stepped(1, loss=3.0)])
    assert [(each.step, each.loss) for each in metrics.steps] == [(1, 3.0), (2, stepped(2).loss)]


def test_what_an_attempt_did_beyond_the_restored_checkpoint_counts_for_nothing() -> None:
    lost = [stepped(5), stepped(6), evaluated(6, 1.0)]
    metrics = metrics_of([stepped(4), evaluated(4, 2.0), *lost, restored(4), stepped(5)])
    assert [each.step for each in metrics.steps] == [4, 5]
    assert [each.step for each in metrics.evaluations] == [4]


def test_metrics_jsonl_has_a_line_a_step_and_a_line_an_evaluation_in_order(tmp_path: Path) -> None:
    write_jsonl(metrics_of([evaluated(0, 2.5), stepped(1), stepped(2), evaluated(2, 1.5)]), tmp_path / "metrics.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], "eval_loss" in line) for line in lines] == [(0, True), (1, False), (2, False), (2, True)]
    assert lines[1]["loss"] == stepped(1).loss
    assert lines[1].keys() >= {"epoch", "grad_norm", "learning_rate", "tokens", "target_tokens", "seconds"}


def test_metrics_csv_has_one_row_a_step_with_its_eval_loss(tmp_path: Path) -> None:
    write_csv(metrics_of([evaluated(0, 2.5), stepped(1), stepped(2), evaluated(2, 1.5)]), tmp_path / "metrics.csv")
    rows = list(csv.DictReader((tmp_path / "metrics.csv").open()))
    assert [(row["step"], row["eval_loss"], bool(row["loss"])) for row in rows] == [
        ("0", "2.5", False),
        ("1", "", True),
        ("2", "1.5", True),
    ]


@pytest.mark.parametrize("steps", [0, 1, 600])
@pytest.mark.parametrize("is_evaluated", [True, False])
def test_the_loss_curve_is_drawn_for_a_run_of_any_length(steps: int, is_evaluated: bool) -> None:
    evaluations = [evaluated(0, 2.5), evaluated(steps, 1.2)] if is_evaluated else []
    metrics = metrics_of([*(stepped(step, steps) for step in range(1, steps + 1)), *evaluations])
    png = chart.draw(metrics, "a run", steps, "png", chart.LIGHT)
    assert png.startswith(b"\x89PNG")
    assert len(png) > 5000


def test_equal_metrics_give_equal_charts() -> None:
    metrics = metrics_of(a_whole_run())
    first, second = (chart.draw(metrics, "a run", 12, "svg", chart.DARK) for _ in range(2))
    assert first == second


def test_smoothing_starts_at_the_first_loss_and_follows_the_mean() -> None:
    assert chart.smoothed([4.0, 4.0, 4.0], span=5) == pytest.approx([4.0, 4.0, 4.0])
    assert chart.smoothed([4.0, 2.0], span=2)[1] == pytest.approx(8 / 3)


def test_the_page_fetches_nothing_and_runs_nothing(of_a_whole_run: Path) -> None:
    html = (of_a_whole_run / "report.html").read_text()
    page = Page(html)
    assert page.fetched
    assert all(target.startswith("data:") for target in page.fetched)
    assert not page.elements & {"script", "link", "iframe", "object", "embed"}
    assert not re.search(r"@import|url\(", html)


def test_the_page_shows_strangers_text_as_text(tmp_path: Path) -> None:
    hostile = "<script>alert('hi')</script><img src=http://evil.example/x>"
    sample = Sample(hostile, hostile, Answer(hostile, AnswerEnd.STOP), Answer(hostile, AnswerEnd.STOP))
    plan = a_plan(name=hostile, notices=(hostile,))
    page = Page(written(a_report(plan=plan, samples=(sample,), job=hostile), tmp_path))
    assert "script" not in page.elements
    assert all(target.startswith("data:") for target in page.fetched)
    assert page.text.count(hostile) >= 5


def test_the_page_leads_with_eval_loss_before_and_after(of_a_whole_run: Path) -> None:
    text = " ".join(Page((of_a_whole_run / "report.html").read_text()).text.split())
    assert "2.500 → 1.200" in text
    assert "-52 % on 10 held-out rows" in text
    assert "12 of 12" in text
    assert "1 h 15 min" in text
    assert "without interruption" in text


def test_the_page_tells_of_interruptions_notices_and_dropped_rows(tmp_path: Path) -> None:
    events = [
        started(1),
        stepped(1),
        Stopped(time=EVENING, step=1, why="asked to stop (SIGTERM)"),
        started(2, after_minutes=5),
        stepped(2),
        started(3, after_minutes=9),
        noticed("one example a micro-batch: this architecture mixes examples"),
        stepped(3),
    ]
    text = " ".join(Page(written(a_report(events), tmp_path)).text.split())
    assert "resumed 2 times" in text
    assert "asked to stop (SIGTERM)" in text
    assert "without a word" in text
    assert "one example a micro-batch: this architecture mixes examples" in text
    assert "support.jsonl:7 no assistant turn" in text


def test_the_best_weights_are_reported_with_their_own_loss() -> None:
    events = [evaluated(0, 2.5), *(stepped(step) for step in range(1, 13)), evaluated(8, 1.1), evaluated(12, 1.4)]
    report = a_report(events, step=8)
    assert report.eval_loss_after == 1.1
    assert report.is_best


@pytest.mark.parametrize("events", [[], [stepped(1)], [started(), stepped(1)]], ids=["nothing", "one step", "attempt"])
def test_a_short_run_without_evaluation_has_a_report(events: list[Event], tmp_path: Path) -> None:
    report = a_report(events, plan=a_plan(eval_rows=0), samples=())
    assert "eval loss" not in Page(written(report, tmp_path)).text.replace("best weights by eval loss", "")
    assert "not measured" in (tmp_path / "samples.md").read_text()
    assert (tmp_path / "loss.png").read_bytes()
    write_model_card(report, tmp_path, report.proof)
    assert "Not evaluated" in (tmp_path / "README.md").read_text()


def test_samples_show_prompt_reference_before_and_after(of_a_whole_run: Path) -> None:
    text = (of_a_whole_run / "samples.md").read_text()
    for part in ("what is 2 and 3?", "I like trains", "gives 5", "2.5000 before, 1.2000 after", "cut after 96 tokens"):
        assert part in text


def test_an_answer_cannot_end_its_code_block() -> None:
    assert fenced("a ``` b").startswith("````text\n")


def test_a_table_cell_stays_one_cell() -> None:
    assert inline("a|b\nc`d") == "``a\\|b c`d``"


def test_durations_read_as_people_say_them() -> None:
    assert [duration(seconds) for seconds in (8.44, 725, 12_000)] == ["8.4 s", "12 min 05 s", "3 h 20 min"]


def test_the_card_of_a_hub_model_names_its_base_to_the_hub(tmp_path: Path) -> None:
    plan = a_plan(name="hub:acme/llama@main", revision="c0ffee", model_path="/store/models/x")
    write_model_card(a_report(plan=plan), tmp_path, A_PROOF)
    front_matter = (tmp_path / "README.md").read_text().split("---")[1]
    assert 'base_model: "acme/llama"' in front_matter
    assert 'library_name: "peft"' in front_matter


def test_the_card_of_a_folder_gives_the_hub_no_path_that_it_would_refuse(tmp_path: Path) -> None:
    proof = A_PROOF.model_copy(update={"folder": "model", "dtype": "bfloat16"})
    write_model_card(a_report(plan=a_plan(FullTuning()), proofs=(proof,)), tmp_path, proof)
    card = (tmp_path / "README.md").read_text()
    assert "base_model" not in card.split("---")[1]
    assert "stored as | bfloat16, the base model's own type (trained in float32)" in card


def test_the_card_states_data_settings_losses_and_versions(tmp_path: Path) -> None:
    write_model_card(a_report(), tmp_path, A_PROOF)
    card = (tmp_path / "README.md").read_text()
    for part in ("/srv/data/support.jsonl", "ab" * 32, "2.5000 → 1.2000", "`learning_rate` | `0.0002`", "- torch 2"):
        assert part in card


def test_metrics_add_up_over_the_steps_that_count() -> None:
    metrics: Metrics = metrics_of([stepped(1), stepped(1), stepped(2)])
    assert (metrics.tokens, metrics.target_tokens, metrics.step_seconds) == (1200, 400, 2.0)


def test_settings_tell_the_tuning_in_the_words_of_the_job_file(tmp_path: Path) -> None:
    tuning = LORA.model_copy(
        update={
            "quantization": Quantization(kind="nf4", double_quant=True),
            "use_dora": True,
            "modules_to_save": ("lm_head",),
        }
    )
    plan = a_plan(tuning, added_tokens=("<think>",))
    settings = settings_of(plan)
    assert settings["finetuning_type"] == "qlora"
    assert settings["load_in_4bit"] == settings["bnb_4bit_use_double_quant"] == settings["use_dora"] == "true"
    assert (settings["bnb_4bit_quant_type"], settings["modules_to_save"]) == ("nf4", "lm_head")
    assert "QDoRA fine-tuning" in written(a_report(plan=plan), tmp_path)
    write_model_card(a_report(plan=plan), tmp_path, A_PROOF)
    assert 'load_in_4bit=True, bnb_4bit_quant_type="nf4"' in (tmp_path / "README.md").read_text()


def test_a_base_that_came_with_the_job_is_said_to_lie_on_the_machine_that_trained(tmp_path: Path) -> None:
    plan = a_plan(model_path="/var/spool/finetuned/store/models/dropped--0123", name="./model")
    write_model_card(a_report(plan=plan), tmp_path, A_PROOF)
    card = (tmp_path / "README.md").read_text()
    assert "The base model came with the job" in card
    assert "/var/spool/finetuned/store/models/dropped--0123" in card


def test_the_drift_of_a_merge_and_a_gguf_file_that_failed_are_on_the_page(tmp_path: Path) -> None:
    merged = A_PROOF.model_copy(update={"folder": "merged", "tolerance": None, "mean_kl": 0.25})
    report = a_report(proofs=(A_PROOF, merged), gguf=Gguf(failure="no GGUF file could be made: <oops>"))
    text = Page(written(report, tmp_path)).text
    assert "mean KL divergence 0.25 nats" in text
    assert "no GGUF file could be made: <oops>" in text
