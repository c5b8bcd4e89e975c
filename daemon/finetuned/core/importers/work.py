"""What a translation works with, and what it comes to."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from finetuned.core.importers.draft import Draft
from finetuned.core.importers.keys import Keys
from finetuned.core.importers.ledger import Ledger, Note
from finetuned.core.jobfile import text
from finetuned.core.problems import Problem
from finetuned.core.record import Record

Kind = Literal["axolotl", "llamafactory", "openai", "together"]
TOOL_NAMES: Mapping[Kind, str] = {
    "axolotl": "axolotl",
    "llamafactory": "LLaMA-Factory",
    "openai": "OpenAI",
    "together": "Together",
}


@dataclass(frozen=True)
class DatasetInfo:
    """LLaMA-Factory's dataset_info.json: `shown` names it in messages, `folder` is where its files are."""

    text: str
    shown: str
    folder: str


@dataclass(frozen=True)
class Supplied:
    """What a foreign file leaves open and a person adds."""

    base_model: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    """Their name of a set of rows → the path of a file or folder."""
    rows_per_pack: float | None = None
    """How many rows the other tool packed into one; it counts packs in a batch, we count rows."""
    dataset_info: DatasetInfo | None = None


class Translation(Record):
    """`job_file` is empty when there are problems. `kept`, `changed`, `ignored` and `problems` name every key."""

    kind: Kind
    job_file: str
    kept: tuple[str, ...]
    changed: tuple[Note, ...]
    ignored: tuple[Note, ...]
    problems: tuple[Problem, ...]


@dataclass
class Work:
    """A translation under way."""

    kind: Kind
    tree: text.Mapping
    supplied: Supplied
    ledger: Ledger = field(default_factory=Ledger)
    keys: Keys = field(init=False)
    draft: Draft = field(init=False)

    def __post_init__(self) -> None:
        self.keys = Keys(self.tree, self.ledger)
        self.draft = Draft(self.ledger)

    @property
    def tool(self) -> str:
        return TOOL_NAMES[self.kind]
