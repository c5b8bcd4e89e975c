"""The files that tell a person how the run went: metrics, the loss curve, samples, and a page that stands alone."""

import base64
import re
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from finetuned.core.events import Event, History, SetAside, extend
from finetuned.core.plan import RunPlan
from finetuned.host.files import write_whole
from finetuned.train.artifacts.gguf import Gguf
from finetuned.train.artifacts.samples import Sample
from finetuned.train.report import chart
from finetuned.train.report.metrics import Metrics, metrics_of, write_csv, write_jsonl
from finetuned.train.report.particulars import proven, settings_of, touched_rows, tuning_word, versions

if TYPE_CHECKING:
    from jinja2 import Environment

    from finetuned.train.artifacts.proof import Proof

_MOST_DROPPED_ROWS = 50
"""Named on the page; touched-rows.jsonl beside it names all."""


@dataclass(frozen=True)
class Report:
    """All that the report files tell."""

    job: str
    plan: RunPlan
    step: int
    """Of the exported weights."""
    events: tuple[Event, ...]
    """All that the train stage said so far, over all attempts."""
    samples: tuple[Sample, ...]
    proofs: tuple["Proof", ...]
    """Of each exported folder; the trained weights themselves come first."""
    written: datetime
    gguf: Gguf = field(default_factory=Gguf)

    @cached_property
    def metrics(self) -> Metrics:
        return metrics_of(self.events)

    @cached_property
    def history(self) -> History:
        return extend(History(), self.events)

    @property
    def set_aside(self) -> tuple[SetAside, ...]:
        return tuple(event for event in self.events if isinstance(event, SetAside))

    @property
    def proof(self) -> "Proof":
        """Of the trained weights themselves, not of another form of them."""
        return self.proofs[0]

    @property
    def merged(self) -> "Proof | None":
        return next((proof for proof in self.proofs if proof.folder == "merged"), None)

    @property
    def folder(self) -> str:
        """Where the trained weights stand inside the artifacts."""
        return self.proof.folder

    @property
    def title(self) -> str:
        return f"{tuning_word(self.plan)} fine-tuning of {Path(self.plan.model.name).name}"

    @property
    def base_came_with_the_job(self) -> bool:
        """The base lay in the dropped folder, and a copy of it in our own store is all that is left of it."""
        return self.plan.model.revision is None and Path(self.plan.model.path).name.startswith("dropped--")

    @property
    def eval_loss_before(self) -> float | None:
        return self.metrics.eval_loss_at(0)

    @property
    def eval_loss_after(self) -> float | None:
        """Of the exported weights; the newest one where they were not evaluated themselves."""
        newest = self.metrics.evaluations[-1].eval_loss if self.metrics.last_step and self.metrics.evaluations else None
        exact = self.metrics.eval_loss_at(self.step)
        return newest if exact is None else exact

    @property
    def is_best(self) -> bool:
        """The exported weights are not the last ones but the best ones."""
        return self.step < self.metrics.last_step

    @property
    def seconds(self) -> float:
        """From the first attempt's start to now, pauses between attempts included; 0 before any."""
        attempts = self.history.attempts
        return (self.written - attempts[0].started.time).total_seconds() if attempts else 0.0

    @property
    def resumptions(self) -> int:
        """How often training was interrupted and went on."""
        return max(0, len(self.history.attempts) - 1)

    @property
    def notices(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.plan.notices, *self.history.progress.notices)))


def write_report(report: Report, into: Path) -> None:
    """Write metrics.jsonl, metrics.csv, loss.png, samples.md and report.html."""
    write_jsonl(report.metrics, into / "metrics.jsonl")
    write_csv(report.metrics, into / "metrics.csv")
    (into / "loss.png").write_bytes(chart.draw(report.metrics, report.title, report.step, "png", chart.LIGHT))
    (into / "samples.md").write_text(render("samples.md.jinja", report))
    write_page(report, into)


def write_page(report: Report, into: Path) -> None:
    """Write report.html, whole or not at all, also where an older one is published already."""
    page = render(
        "report.html.jinja",
        report,
        chart_light=_data_uri(report, chart.LIGHT),
        chart_dark=_data_uri(report, chart.DARK),
        most_dropped_rows=_MOST_DROPPED_ROWS,
    )
    write_whole(into / "report.html", page.encode())


def render(template: str, report: Report, **more: Any) -> str:
    """The text of one of our templates about `report`."""
    text = (
        _environment()
        .get_template(template)
        .render(
            report=report,
            plan=report.plan,
            data=report.plan.data,
            model=report.plan.model,
            metrics=report.metrics,
            settings=settings_of(report.plan),
            versions=versions(),
            word=tuning_word(report.plan),
            touched=touched_rows(report.plan.data),
            proven={proof.folder: proven(proof) for proof in report.proofs},
            **more,
        )
    )
    return text.rstrip() + "\n"


def duration(seconds: float) -> str:
    """A span of time as a person says it: 8.4 s, 12 min 05 s, 3 h 20 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def count(number: float) -> str:
    """A whole number with its thousands apart: 1,234,567."""
    return f"{number:,.0f}"


def moment(time: datetime) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC")


def fenced(text: str) -> str:
    """Text as a Markdown code block that nothing in it can end."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def inline(text: object) -> str:
    """Text as inline code inside a Markdown table: on one line, with nothing that ends the code or the cell."""
    flat = " ".join(str(text).split()).replace("|", "\\|")
    longest = max((len(run) for run in re.findall(r"`+", flat)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if flat.startswith("`") or flat.endswith("`") else ""
    return f"{fence}{pad}{flat}{pad}{fence}"


def _data_uri(report: Report, palette: chart.Palette) -> Markup:
    image = chart.draw(report.metrics, report.title, report.step, "svg", palette)
    # Base64 has nothing to escape; as Markup its "+" stays readable to people who look at the source.
    return Markup("data:image/svg+xml;base64,") + Markup(base64.b64encode(image).decode())


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        # Prompts, paths and notices come from strangers: on the page everything is escaped.
        autoescape=lambda name: name is not None and name.endswith(".html.jinja"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "count": count,
        "duration": duration,
        "fenced": fenced,
        "inline": inline,
        "moment": moment,
    }
    return environment
