"""docs/coming-from.md is true: each row of its tables is imported, or read, and comes to what stands on its right."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from finetuned.core.importers.kinds import translate
from finetuned.core.importers.work import DatasetInfo, Kind, Supplied
from finetuned.core.jobfile.words import JOB_WORDS
from finetuned.core.spec import JobSpec

PAGE = (Path(__file__).parents[2] / "docs" / "coming-from.md").read_text()
SECTIONS: Mapping[str, Kind] = {
    "axolotl": "axolotl",
    "LLaMA-Factory": "llamafactory",
    "OpenAI": "openai",
    "Together": "together",
}
INFO = {
    "mine": {"file_name": "mine.json"},
    "chats": {
        "file_name": "chats.json",
        "formatting": "sharegpt",
        "columns": {"messages": "messages"},
        "tags": {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"},
    },
    "pairs": {"file_name": "pairs.json", "ranking": True},
    "far": {"hf_hub_url": "org/far"},
}
BASES: Mapping[Kind, tuple[str, ...]] = {
    "axolotl": (
        "base_model: org/model",
        "datasets: [{path: a.jsonl, type: chat_template}]",
        "learning_rate: 1e-4",
        "micro_batch_size: 1",
        "gradient_accumulation_steps: 8",
    ),
    "llamafactory": ("model_name_or_path: org/model", "dataset: mine"),
    "openai": ("model: gpt-4o-mini", "training_file: file-1"),
    "together": ("model: org/model", "training_file: file-1"),
}
ADAPTER = ("lora_r: 8", "lora_alpha: 16", "lora_target_modules: [q_proj]")


@dataclass(frozen=True)
class TableRow:
    there: tuple[str, ...]
    here: tuple[str, ...]
    says: str
    """The middle column in plain words: refused, left out."""


def rows_of(section: str) -> list[list[str]]:
    """The cells of the section's table, without its head."""
    body = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    text = next(part for part in body if part.startswith(f"{section}\n"))
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def code(cell: str) -> tuple[str, ...]:
    return tuple(re.findall(r"`([^`]+)`", cell))


def importer_rows() -> Iterator[tuple[Kind, TableRow]]:
    for section, kind in SECTIONS.items():
        for there, here, *_ in rows_of(section):
            lines = () if there.startswith("no ") else code(there)
            yield kind, TableRow(lines, code(here), re.sub(r"`[^`]+`", "", here).strip())


def source_of(kind: Kind, row: TableRow) -> str:
    """A small file of that tool with the row's lines in the place of its own."""
    lines = {line.partition(":")[0]: line for line in BASES[kind]}
    if any(line.startswith("adapter:") for line in row.there):
        lines |= {line.partition(":")[0]: line for line in ADAPTER}
    if any(line.startswith("pretraining_dataset:") for line in row.there):
        del lines["datasets"]
    lines |= {line.partition(":")[0]: line for line in row.there}
    return "\n".join(lines.values()) + "\n"


ROWS = list(importer_rows())


def test_the_tables_are_there():
    assert {kind for kind, _ in ROWS} == set(SECTIONS.values())
    assert len(ROWS) > 70


@pytest.mark.parametrize(("kind", "row"), ROWS, ids=[f"{kind}: {' '.join(row.there)[:60]}" for kind, row in ROWS])
def test_a_row_of_the_page_is_what_the_importer_does(kind: Kind, row: TableRow):
    model = "Qwen/Qwen2.5-7B" if kind == "openai" else None
    info = DatasetInfo(json.dumps(INFO), "dataset_info.json", "data")
    translation = translate(source_of(kind, row), Supplied(model, {"file-1": "/d.jsonl"}, dataset_info=info), kind)
    if row.says == "refused":
        assert translation.problems != ()
        return
    assert translation.problems == ()
    written = [re.sub(r"  # .*", "", line).strip(" -") for line in translation.job_file.splitlines()]
    if row.says == "left out":
        ignored = {note.place.split()[-1].partition(".")[0] for note in translation.ignored}
        assert {line.partition(":")[0] for line in row.there} <= ignored
    else:
        assert row.here != ()
    assert [line for line in row.here if line not in written] == []


@pytest.mark.parametrize("cells", rows_of("TRL, ms-swift, unsloth"), ids=lambda cells: cells[-1])
def test_names_of_other_tools_mean_what_the_page_says(cells: list[str]):
    *theirs, ours = (code(cell)[0] for cell in cells)
    known = {**{name: name for name in JobSpec.model_fields}, **JOB_WORDS.other_names}
    known |= {name: reworded.field for name, reworded in JOB_WORDS.reworded.items()}
    assert [known.get(name) for name in theirs] == [ours] * len(theirs)


def test_torchtunes_names_lead_to_fields_that_exist():
    assert {code(cells[1])[0] for cells in rows_of("torchtune")} <= set(JobSpec.model_fields)


def test_every_option_of_import_is_explained():
    assert {"--base-model", "--data", "--rows-per-pack", "--dataset-info", "--as", "-o"} <= set(
        re.findall(r"--?[a-z-]+", PAGE)
    )
