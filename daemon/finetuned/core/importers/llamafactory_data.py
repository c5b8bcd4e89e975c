"""LLaMA-Factory's `dataset` and its dataset_info.json → data sets by path, format and columns."""

from finetuned.core.importers.draft import DatasetDraft, RowKind
from finetuned.core.importers.keys import Given, Keys
from finetuned.core.importers.ledger import Found, unmentioned
from finetuned.core.importers.rules import Rules, apply_rule, refused, unneeded
from finetuned.core.importers.sources import beside
from finetuned.core.importers.work import Work
from finetuned.core.jobfile.findings import shown
from finetuned.core.jobfile.text import UnreadableText, read_tree

_HUBS = ("hf_hub_url", "ms_hub_url", "om_hub_url", "script_url", "cloud_file_name")
_PREFERENCES = ("chosen", "rejected", "kto_tag")
_PICTURES = ("images", "videos", "audios")
_ROLE_WORDS = {
    "user_tag": ("human", "user"),
    "assistant_tag": ("gpt", "assistant"),
    "observation_tag": ("observation", "tool"),
    "function_tag": ("function_call",),
    "system_tag": ("system",),
}
_INFO_RULES: Rules = {
    **unneeded("revision", "belongs to a hub; the rows are read from a file"),
    **refused("ranking", "rows of preferences", "use rows of good answers", "false"),
    **refused("subset folder", "data sets of several parts on a hub", "name the part's own file"),
    **refused("num_samples", "rows drawn by chance", "delete it, and write split: train[:N] into the job file"),
}


def translate_datasets(work: Work) -> None:
    """`dataset`, `eval_dataset` and `max_samples`."""
    method = "pretrain" if work.draft.value("method") == "pretrain" else "sft"
    infos = _infos(work)
    limit = work.keys.whole("max_samples")
    split = f"[:{limit.value}]" if limit and limit.value > 0 else ""
    if limit and split:
        work.ledger.keep(limit.found)
    if (folder := work.keys.get("dataset_dir")) is not None:
        work.ledger.keep(folder)
    names = work.keys.words("dataset", split_commas=True)
    if names is None and not work.keys.get("dataset"):
        work.ledger.refuse_missing("dataset", "is missing: there is nothing to learn from", "name a data set")
    for given, ours in ((names, "datasets"), (work.keys.words("eval_dataset", split_commas=True), "eval_datasets")):
        if given:
            work.ledger.keep(given.found)
            for name in given.value:
                _translate_one(work, ours, given.found, name, infos, split, method)


def _infos(work: Work) -> Keys | None:
    info = work.supplied.dataset_info
    if info is None:
        return None
    try:
        return Keys(read_tree(info.text), work.ledger, file=info.shown)
    except UnreadableText as error:
        work.ledger.refuse_missing(f"{info.shown} line {error.line}", error.what, error.hint)
        return Keys.empty(work.ledger)


def _translate_one(work: Work, ours: str, named: Found, name: str, infos: Keys | None, split: str, method: str) -> None:
    if infos is None or (info := infos.inner(name)) is None:
        _without_info(work, ours, named, name, infos, split)
        return
    path = _path(work, info, name)
    kind = _kind(work, info, infos.all[name], method)
    part = info.text("split")
    if part and part.value != "train":
        work.ledger.keep(part.found)
        split = part.value + split
    elif part:
        work.ledger.ignore(part.found, "is train, which is all rows of a file")
    for found in unmentioned(info.all, work.ledger):
        apply_rule(found, _INFO_RULES, work.ledger)
    if path is not None and kind is not None:
        comment = f"{name}, from {named.origin}"
        work.draft.add_dataset(ours, DatasetDraft(path, kind, split, comment), named)


def _without_info(work: Work, ours: str, named: Found, name: str, infos: Keys | None, split: str) -> None:
    if path := work.supplied.files.get(name):
        work.draft.add_dataset(ours, DatasetDraft(path, RowKind("auto"), split, f"{name}, from {named.origin}"), named)
    elif infos is None:
        what = f"names {shown(name)}, and there is no dataset_info.json that describes it"
        instead = f"add --dataset-info /path/to/dataset_info.json, or --data {name}=/path/to/rows"
        work.ledger.refuse(named, what, instead)
    elif not infos.get(name):
        assert work.supplied.dataset_info is not None
        what = f"names {shown(name)}, which {work.supplied.dataset_info.shown} does not describe"
        work.ledger.refuse(named, what, f"add --data {name}=/path/to/rows")


def _path(work: Work, info: Keys, name: str) -> str | None:
    assert work.supplied.dataset_info is not None
    hubs = info.present(_HUBS)
    file = info.text("file_name")
    if path := work.supplied.files.get(name):
        for found in [*hubs, *([file.found] if file else [])]:
            work.ledger.ignore(found, f"is not needed: --data says where {name} is")
        return path
    if hubs:
        what = "names rows on a hub, in a cloud or made by a script; rows are read from files on this machine only"
        for found in hubs:
            work.ledger.refuse(found, what, f"get the rows and add --data {name}=/path/to/file-or-folder")
        if file:
            work.ledger.ignore(file.found, "has no effect there beside the others")
        return None
    if file is None:
        work.ledger.refuse_missing(f"{info.path}file_name", "is missing: no rows are named")
        return None
    work.ledger.keep(file.found)
    return beside(work.supplied.dataset_info.folder, file.value)


def _kind(work: Work, info: Keys, named: Found, method: str) -> RowKind | None:
    formatting = info.word("formatting")
    columns, tags = info.inner("columns"), info.inner("tags")
    name = formatting.value if formatting else "alpaca"
    if formatting:
        work.ledger.keep(formatting.found)
    if columns:
        _refuse_columns(work, columns)
    if name not in ("alpaca", "sharegpt", "openai"):
        assert formatting is not None
        what = f"is {shown(name)}; expected alpaca, sharegpt or openai"
        work.ledger.refuse(formatting.found, what, "write the rows as messages")
        return None
    if name == "alpaca":
        return _pretrain(work, columns) if method == "pretrain" else _alpaca(work, named, columns)
    if method == "pretrain":
        assert formatting is not None
        work.ledger.refuse(formatting.found, f"is {name}, and stage: pt learns plain text", "use formatting: alpaca")
        return None
    return _chat(work, named, columns, tags, is_openai=name == "openai")


def _refuse_columns(work: Work, columns: Keys) -> None:
    for found in columns.present(_PREFERENCES):
        work.ledger.refuse(found, "belongs to rows of preferences, which cannot be learned from", "use good answers")
    for found in columns.present(_PICTURES):
        work.ledger.refuse(found, "names pictures or sound, which cannot be learned from here", "use rows of text")


def _take(work: Work, columns: Keys | None, theirs: str, usual: str) -> str:
    """The name that the rows have; `usual` where no column is named, "" where others are."""
    if columns is None:
        return usual
    if given := columns.text(theirs):
        work.ledger.keep(given.found)
        return given.value
    return ""


def _note_unread(work: Work, info: Found, columns: dict[str, str]) -> None:
    """`columns`: ours, with the file's name for it; "" where LLaMA-Factory does not read it, and our reader does."""
    if unread := [name for name, theirs in columns.items() if not theirs and name not in columns.values()]:
        what = f"names no column for {', '.join(unread)}: not read there, and here where rows have keys of these names"
        work.ledger.change(info, what)


def _pretrain(work: Work, columns: Keys | None) -> RowKind:
    column = _take(work, columns, "prompt", "instruction") or "text"
    for found in columns.present(["query", "response", "history", "system", "tools"]) if columns else []:
        work.ledger.ignore(found, "is not read in stage: pt")
    return RowKind("text", _renamed({"text": column}))


def _alpaca(work: Work, info: Found, columns: Keys | None) -> RowKind:
    theirs = {
        "instruction": _take(work, columns, "prompt", "instruction"),
        "input": _take(work, columns, "query", "input"),
        "output": _take(work, columns, "response", "output"),
        "system": _take(work, columns, "system", ""),
        "history": _take(work, columns, "history", ""),
    }
    _note_unread(work, info, theirs)
    if columns and (tools := columns.get("tools")):
        work.ledger.refuse(tools, "names tools, which rows of this kind cannot have here", "write the rows as messages")
    return RowKind("alpaca", {ours: name for ours, name in theirs.items() if name and name != ours})


def _chat(work: Work, info: Found, columns: Keys | None, tags: Keys | None, *, is_openai: bool) -> RowKind:
    role, content = ("role", "content") if is_openai else ("from", "value")
    if tags:
        role, content = _tag(work, tags, "role_tag", role), _tag(work, tags, "content_tag", content)
        _check_role_words(work, tags)
    format_ = "chat" if (role, content) == ("role", "content") else "sharegpt"
    usual = "messages" if format_ == "chat" else "conversations"
    columns_ours: dict[str, str] = {}
    messages = (columns.text("messages") if columns else None) or None
    if messages:
        work.ledger.keep(messages.found)
    named = messages.value if messages else ("messages" if is_openai else "conversations")
    columns_ours |= {} if named == usual else {usual: named}
    columns_ours |= {} if format_ == "chat" else _renamed({"from": role, "value": content})
    beside_messages = ("tools",) if format_ == "chat" else ("system", "tools")
    _note_unread(work, info, {key: _take(work, columns, key, "") for key in beside_messages})
    for key in ("system", "tools"):
        given = columns.text(key) if columns else None
        if given and format_ == "chat" and key == "system":
            what = "names a system message beside the messages, which rows of this kind cannot have here"
            work.ledger.refuse(given.found, what, "write it as the first message")
        elif given:
            work.ledger.keep(given.found)
            columns_ours |= _renamed({key: given.value})
    return RowKind(format_, columns_ours)


def _renamed(names: dict[str, str]) -> dict[str, str]:
    return {ours: theirs for ours, theirs in names.items() if ours != theirs}


def _tag(work: Work, tags: Keys, key: str, usual: str) -> str:
    given: Given[str] | None = tags.text(key)
    if given is None:
        return usual
    work.ledger.keep(given.found)
    return given.value


def _check_role_words(work: Work, tags: Keys) -> None:
    for key, known in _ROLE_WORDS.items():
        given = tags.text(key)
        if given and given.value not in known:
            what = f"is {shown(given.value)}; expected {' or '.join(known)}"
            work.ledger.refuse(given.found, what, "rename the role in the rows")
        elif given:
            work.ledger.keep(given.found)
