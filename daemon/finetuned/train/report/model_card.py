"""The model card (README.md) beside the weights: where they come from, how good they are, how to load them."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from finetuned.core.plan import ModelFacts
from finetuned.host.files import write_whole
from finetuned.train.report.page import Report, render

if TYPE_CHECKING:
    from finetuned.train.artifacts.proof import Proof


def write_model_card(report: Report, folder: Path, proof: "Proof") -> None:
    """Write README.md with Hugging Face front matter, in place of any that a library left there.

    `proof`: of this folder.
    """
    text = render("README.md.jinja", report, front_matter=_front_matter(report, proof), proof=proof)
    write_whole(folder / "README.md", text.encode())


def hub_name(model: ModelFacts) -> str | None:
    """The name under which the hub has this base, or None for a folder."""
    if model.revision is None:
        return None
    return model.name.removeprefix("hub:").partition("@")[0]


def _front_matter(report: Report, proof: "Proof") -> str:
    """YAML (of JSON values, which YAML contains). A folder is no valid `base_model` to the hub, so it is left out."""
    values: dict[str, object] = {
        "base_model": hub_name(report.plan.model),
        "library_name": "peft" if proof.folder == "adapter" else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["finetuned", report.plan.method, report.plan.tuning.kind],
    }
    return "\n".join(f"{name}: {json.dumps(value)}" for name, value in values.items() if value is not None)
