"""What was measured on the way to the result: one line a step, folded from the events of all attempts."""

import csv
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from finetuned.core.events import Evaluated, Event, Restored, Stepped

_STEP_FIELDS = (
    "step",
    "epoch",
    "loss",
    "grad_norm",
    "learning_rate",
    "tokens",
    "target_tokens",
    "micro_batches",
    "seconds",
    "time",
)
_EVALUATION_FIELDS = {
    "step": "step",
    "eval_loss": "eval_loss",
    "target_tokens": "eval_target_tokens",
    "is_best": "is_best",
    "seconds": "eval_seconds",
    "time": "time",
}
_CSV_FIELDS = (*_STEP_FIELDS[:3], "eval_loss", *_STEP_FIELDS[3:])


@dataclass(frozen=True)
class Metrics:
    """Steps and evaluations that led to the result, each in ascending order of their step, each step once."""

    steps: tuple[Stepped, ...] = ()
    evaluations: tuple[Evaluated, ...] = ()

    def eval_loss_at(self, step: int) -> float | None:
        return next((each.eval_loss for each in self.evaluations if each.step == step), None)

    @property
    def last_step(self) -> int:
        return self.steps[-1].step if self.steps else 0

    @property
    def tokens(self) -> int:
        return sum(each.tokens for each in self.steps)

    @property
    def target_tokens(self) -> int:
        return sum(each.target_tokens for each in self.steps)

    @property
    def step_seconds(self) -> float:
        """Time spent in steps alone: no loading, evaluation or saving."""
        return sum(each.seconds for each in self.steps)


def metrics_of(events: Iterable[Event]) -> Metrics:
    """The metrics after `events`. Of a step that was done twice the later line counts, and what an attempt did
    beyond the checkpoint that the next one went on from counts for nothing."""
    steps: dict[int, Stepped] = {}
    evaluations: dict[int, Evaluated] = {}
    for event in events:
        match event:
            case Stepped():
                steps[event.step] = event
            case Evaluated():
                evaluations[event.step] = event
            case Restored(step=step):
                steps = {key: value for key, value in steps.items() if key <= step}
                evaluations = {key: value for key, value in evaluations.items() if key <= step}
    return Metrics(
        steps=tuple(steps[step] for step in sorted(steps)),
        evaluations=tuple(evaluations[step] for step in sorted(evaluations)),
    )


def write_jsonl(metrics: Metrics, path: Path) -> None:
    """One JSON object a step and one an evaluation, in order; the evaluation of a step stands after it."""
    lines = [(each.step, 0, _step_line(each)) for each in metrics.steps]
    lines += [(each.step, 1, _evaluation_line(each)) for each in metrics.evaluations]
    lines.sort(key=lambda line: line[:2])
    path.write_text("".join(json.dumps(line) + "\n" for _step, _kind, line in lines))


def write_csv(metrics: Metrics, path: Path) -> None:
    """One row a step for a spreadsheet, with `eval_loss` where that step was evaluated; step 0 is before training."""
    rows: dict[int, dict[str, object]] = {each.step: _step_line(each) for each in metrics.steps}
    for each in metrics.evaluations:
        row = rows.setdefault(each.step, {"step": each.step, "time": each.time.isoformat()})
        row["eval_loss"] = each.eval_loss
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, _CSV_FIELDS, restval="")
        writer.writeheader()
        writer.writerows(rows[step] for step in sorted(rows))


def _step_line(event: Stepped) -> dict[str, object]:
    values = event.model_dump(mode="json")
    return {name: values[name] for name in _STEP_FIELDS}


def _evaluation_line(event: Evaluated) -> dict[str, object]:
    values = event.model_dump(mode="json")
    return {name: values[field] for field, name in _EVALUATION_FIELDS.items()}
