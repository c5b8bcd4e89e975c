"""The loss curve, drawn for people who look before they read: train loss, evaluations, learning rate below."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from finetuned.train.report.metrics import Metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FEW_STEPS = 40
"""Up to here single steps are marked, and a smoothed line would only hide them."""


@dataclass(frozen=True)
class Palette:
    background: str
    text: str
    faint: str
    train: str
    evaluation: str
    rate: str


LIGHT = Palette("#ffffff", "#1f2430", "#d9dde5", "#2f6fde", "#d1571b", "#7a8194")
DARK = Palette("#171a21", "#e6e9f0", "#333a48", "#6ea3ff", "#ff9a5c", "#98a1b5")


def draw(metrics: Metrics, title: str, exported_step: int, kind: Literal["png", "svg"], palette: Palette) -> bytes:
    """The chart as an image file. Works from nothing measured at all to any number of steps."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # Letters as paths: the same look on a machine without our font; the salt makes equal charts equal files.
    with rc_context({"font.size": 10, "font.family": "DejaVu Sans", "svg.hashsalt": "finetuned"}):
        figure = Figure(figsize=(9, 5), dpi=144, facecolor=palette.background)
        # Fixed margins: letting matplotlib find them draws everything twice.
        figure.subplots_adjust(left=0.085, right=0.985, top=0.925, bottom=0.1, hspace=0.13)
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(5, 1))
        _draw_losses(top, metrics, exported_step, palette)
        _draw_learning_rate(bottom, metrics, palette)
        for axes in (top, bottom):
            _dress(axes, palette)
        top.set_title(title, color=palette.text, loc="left", fontsize=11, fontweight="bold", pad=10)
        return _image(figure, kind)


def smoothed(losses: Sequence[float], span: int) -> list[float]:
    """Exponential mean over about `span` steps, without the pull towards zero at its start."""
    decay = 1 - 1 / span
    total = weight = 0.0
    means = []
    for loss in losses:
        total = decay * total + loss
        weight = decay * weight + 1
        means.append(total / weight)
    return means


def _draw_losses(axes: Any, metrics: Metrics, exported_step: int, palette: Palette) -> None:
    steps = [each.step for each in metrics.steps]
    losses = [each.loss for each in metrics.steps]
    if len(steps) <= _FEW_STEPS:
        axes.plot(steps, losses, color=palette.train, linewidth=1.6, marker="o", markersize=3.5, label="train loss")
    else:
        axes.plot(steps, losses, color=palette.train, linewidth=0.8, alpha=0.3)
        mean = smoothed(losses, span=max(5, len(losses) // 40))
        axes.plot(steps, mean, color=palette.train, linewidth=2.0, label="train loss, smoothed")
    if metrics.evaluations:
        evaluated = [each.step for each in metrics.evaluations]
        eval_losses = [each.eval_loss for each in metrics.evaluations]
        axes.plot(
            evaluated,
            eval_losses,
            color=palette.evaluation,
            linewidth=1.4,
            marker="o",
            markersize=5.5,
            markeredgecolor=palette.background,
            label="eval loss",
        )
        _name_ends(axes, metrics, exported_step, palette)
    axes.set_ylabel("loss (nats a token)")
    if steps or metrics.evaluations:
        axes.margins(x=0.02, y=0.12)
        axes.legend(loc="upper right", frameon=False, labelcolor=palette.text)


def _name_ends(axes: Any, metrics: Metrics, exported_step: int, palette: Palette) -> None:
    """Write the eval loss at the first evaluation and at the exported weights, where it was measured."""
    first = metrics.evaluations[0]
    exported = next((each for each in metrics.evaluations if each.step == exported_step), None)
    for event in dict.fromkeys(event for event in (first, exported) if event is not None):
        axes.annotate(
            f"{event.eval_loss:.3f}",
            (event.step, event.eval_loss),
            textcoords="offset points",
            xytext=(8, 8) if event is first else (-6, 10),
            ha="left" if event is first else "right",
            color=palette.evaluation,
            fontweight="bold",
        )


def _draw_learning_rate(axes: Any, metrics: Metrics, palette: Palette) -> None:
    steps = [each.step for each in metrics.steps]
    rates = [each.learning_rate for each in metrics.steps]
    axes.plot(steps, rates, color=palette.rate, linewidth=1.4, marker="o" if len(steps) == 1 else None, markersize=3.5)
    axes.fill_between(steps, rates, color=palette.rate, alpha=0.15, linewidth=0)
    axes.set_ylabel("learning\nrate")
    axes.set_xlabel("step")
    axes.set_ylim(bottom=0)
    axes.ticklabel_format(axis="y", style="sci", scilimits=(0, 0), useMathText=True)
    axes.yaxis.get_offset_text().set(color=palette.text, fontsize=8)
    axes.locator_params(axis="y", nbins=2)


def _dress(axes: Any, palette: Palette) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_facecolor(palette.background)
    axes.grid(color=palette.faint, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=palette.text, length=0)
    axes.xaxis.label.set_color(palette.text)
    axes.yaxis.label.set_color(palette.text)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10))
    for side in axes.spines.values():
        side.set_visible(False)


def _image(figure: "Figure", kind: Literal["png", "svg"]) -> bytes:
    file = io.BytesIO()
    figure.savefig(
        file, format=kind, facecolor=figure.get_facecolor(), metadata={"Date": None} if kind == "svg" else {}
    )
    return file.getvalue()
