"""Where models and rows come from: names in a foreign file → paths in ours."""

import re
from pathlib import PurePosixPath

from finetuned.core.importers.ledger import Found
from finetuned.core.importers.work import Work
from finetuned.core.jobfile.findings import shown

_FILE_SUFFIX = re.compile(r"\.(jsonl?|ndjson|txt|md|csv|tsv|parquet|arrow)(\.(gz|zst))?$", re.IGNORECASE)
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_SCHEME = re.compile(r"[a-z0-9]+:")


def translate_model(work: Work, key: str, revision: str = "") -> None:
    """`base_model`, from the key of that meaning or from what the person gave."""
    named, given = work.keys.text(key), work.supplied.base_model
    if given:
        work.draft.put("base_model", given, why="as --base-model says")
        if named:
            work.ledger.change(named.found, f"is {shown(named.value)}; --base-model {given} is tuned instead")
    elif named is None:
        work.ledger.refuse_missing(key, "is missing: no model is named", "add --base-model")
    elif _is_plain_folder(named.value) or _HUB_NAME.fullmatch(named.value):
        work.draft.put("base_model", named.value, named.found)
    else:
        what = f"is {shown(named.value)}, which may be a folder or a model on the hub"
        instead = f"add --base-model ./{named.value} or --base-model hub:{named.value}"
        work.ledger.refuse(named.found, what, instead)
    if revision and (asked := work.keys.text(revision)):
        folder = _is_plain_folder(str(work.draft.value("base_model") or ""))
        if folder or given:
            work.ledger.ignore(asked.found, "belongs to the hub's model; what is tuned is named otherwise")
        else:
            work.draft.put("revision", asked.value, asked.found)


def translate_path(work: Work, named: Found, name: str) -> str | None:
    """Where the rows called `name` are; None when that was refused. Says nothing about `named` otherwise."""
    if name in work.supplied.files:
        return work.supplied.files[name]
    if _SCHEME.match(name) and not name.startswith("file:"):
        what = f"is {shown(name)}: rows are read from files on this machine only"
    elif name.startswith("~"):
        what = f"is {shown(name)}: ~ would be the daemon's home and not yours"
    elif _is_plain_folder(name) or _FILE_SUFFIX.search(name):
        return name
    elif _HUB_NAME.fullmatch(name):
        what = f"is {shown(name)}: a data set on a hub, or a folder; rows are read from files on this machine only"
    else:
        what = f"is {shown(name)}, which names no file"
    work.ledger.refuse(named, what, f"get the rows and add --data {_quoted(name)}=/path/to/file-or-folder")
    return None


def _is_plain_folder(name: str) -> bool:
    return name.startswith(("/", "./", "../"))


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[\w./:@+-]+", name) else f"'{name}'"


def beside(folder: str, name: str) -> str:
    """`name` seen from `folder`."""
    joined = str(PurePosixPath(folder) / name)
    return joined if joined.startswith(("/", "./", "../")) else f"./{joined}"
