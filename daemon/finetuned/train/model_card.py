"""The model card (README.md) beside the weights: where they come from, how good they are, how to load them."""

import json
from pathlib import Path

from finetuned.core.plan import LoraTuning, ModelFacts
from finetuned.train.report import Report, render


def write_model_card(report: Report, folder: Path) -> None:
    """Write README.md with Hugging Face front matter, in place of any that a library left there."""
    (folder / "README.md").write_text(render("README.md.jinja", report, front_matter=_front_matter(report)))


def hub_name(model: ModelFacts) -> str | None:
    """The name under which the hub has this base, or None for a folder."""
    if model.revision is None:
        return None
    return model.name.removeprefix("hub:").partition("@")[0]


def _front_matter(report: Report) -> str:
    """YAML (of JSON values, which YAML contains). A folder is no valid `base_model` to the hub, so it is left out."""
    is_lora = isinstance(report.plan.tuning, LoraTuning)
    values: dict[str, object] = {
        "base_model": hub_name(report.plan.model),
        "library_name": "peft" if is_lora else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["finetuned", report.plan.method, report.plan.tuning.kind],
    }
    return "\n".join(f"{name}: {json.dumps(value)}" for name, value in values.items() if value is not None)
