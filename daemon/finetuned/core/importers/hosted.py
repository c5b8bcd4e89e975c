"""What the job JSON of OpenAI and Together has in common: uploads by id, and numbers that the service chooses."""

from finetuned.core.importers.draft import DatasetDraft, RowKind
from finetuned.core.importers.keys import Given, as_whole
from finetuned.core.importers.work import Work
from finetuned.core.jobfile.findings import shown

LORA_RANK = 16
"""Our default, where the service keeps its own to itself."""


def translate_files(work: Work, format_: str) -> None:
    """`training_file` and `validation_file`: ids of uploads, for which --data gives the path."""
    for key, ours in (("training_file", "datasets"), ("validation_file", "eval_datasets")):
        given = work.keys.text(key)
        if given is None:
            continue
        path = work.supplied.files.get(given.value)
        if path is None and "/" in given.value:
            path = given.value
        if path is None:
            what = f"is {shown(given.value)}, a file that only {work.tool} has"
            work.ledger.refuse(given.found, what, f"add --data {given.value}=/path/to/rows.jsonl")
            continue
        work.ledger.keep(given.found)
        comment = f"{given.value}, from {given.found.origin}"
        work.draft.add_dataset(ours, DatasetDraft(path, RowKind(format_), comment=comment), given.found)
        if ours == "datasets":
            what = (
                "is cut where it is longer than the service's limit there; here rows longer than max_seq_length are "
                "dropped and listed, and more than 1 % (max_dropped_ratio) fail the job"
            )
            work.ledger.change(given.found, what)
    if not work.keys.get("training_file"):
        work.ledger.refuse_missing("training_file", "is missing: there is nothing to learn from", "name a file of rows")
    if not work.keys.get("validation_file"):
        work.draft.put("val_set_size", 0, why="nothing is held out without validation_file")


def translate_batch_size(work: Work, given: Given[str] | None) -> None:
    if given and not is_left_open(given, work):
        if count := as_whole(given, work.ledger, least=1):
            work.draft.put("global_batch_size", count.value, count.found)
        return
    why = "rows × epochs / 200, between 1 and 16"
    work.draft.put("global_batch_size", "auto", *([given.found] if given else []), why=why)
    if given:
        what = f"is {given.value}, which {work.tool} resolves for itself; here it is {why}"
        work.ledger.change(given.found, what)


def is_left_open(given: Given[str], work: Work) -> bool:
    """Whether the service is to choose the number."""
    return given.value.casefold() in (("auto", "max") if work.kind == "together" else ("auto",))


def translate_seed(work: Work, key: str) -> None:
    if seed := work.keys.whole(key):
        work.draft.put("seed", seed.value, seed.found)
