"""axolotl's `datasets` and `test_datasets` → ours: the kind of rows, their columns, one template for all."""

import re
from collections.abc import Iterable
from itertools import pairwise

from finetuned.core.importers.axolotl_chat import translate_chat
from finetuned.core.importers.draft import DatasetDraft, RowKind
from finetuned.core.importers.keys import Given, Keys
from finetuned.core.importers.ledger import Found, unmentioned
from finetuned.core.importers.rules import Rules, apply_rule, refused, unneeded
from finetuned.core.importers.sources import beside, translate_path
from finetuned.core.importers.templates import ALPACA, translate_template
from finetuned.core.importers.work import Work
from finetuned.core.jobfile import text
from finetuned.core.jobfile.findings import shown

_LOADERS = ("json", "csv", "parquet", "arrow", "text")
_CUSTOM = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_PREFERENCES = ("chatml", "llama3", "zephyr", "passthrough", "bradley_terry", "dpo", "kto", "orpo", "user_defined")
_OF_ALL_SETS = ("chat_template", "chat_template_jinja", "roles_to_train")
"""Keys of a set of rows that a job has once; they are looked at when all sets are known."""
_CHAT_ROWS = 'write the rows as {"messages": [{"role": …, "content": …}]} and type: chat_template'

_RULES: Rules = {
    **unneeded("ds_type preprocess_shards", "is not needed: files are read row by row, as what they are"),
    **unneeded("revision name", "belongs to a hub; the rows are read from a file"),
    **refused("shards", "a part of the rows", "add split: train[:25%] for a quarter", "1"),
    **refused("shards_idx", "a part of the rows", "add split: train[:25%] for a quarter", "0"),
    **unneeded("trust_remote_code", "is not needed: rows are read from files, which bring no code"),
    **refused(
        "train_on_eos train_on_eot",
        "choosing which ends are learned",
        "delete it: that of each learned turn is",
        "turn",
    ),
    **refused("drop_system_message", "leaving out system messages", "take them out of the rows", "false"),
    **refused("split_thinking", "reasoning split off by the tool", "write the rows as they should be learned", "false"),
    **refused("field_thinking", "this name of a column", "name it as the template does", "reasoning_content"),
    **refused("template_thinking_key", "this name in a template", "name it as the template does", "reasoning_content"),
    **refused(
        "message_field_training message_field_training_detail",
        "turns or parts of turns chosen in the rows",
        'write "weight": 0 into messages that are not to be learned',
    ),
    **refused("input_format input_transform", "rows changed by the tool", _CHAT_ROWS),
}


def translate_datasets(work: Work) -> None:
    """Rows to train and to evaluate on, `method`, `chat_template` and `roles_to_train`."""
    train, evaluation = work.keys.records("datasets"), work.keys.records("test_datasets")
    if not train and not work.keys.get("datasets") and not work.keys.get("pretraining_dataset"):
        work.ledger.refuse_missing("datasets", "is missing: there is nothing to learn from", "name a file of rows")
    kinds = [_translate_one(work, "datasets", keys) for keys in train]
    kinds += [_translate_one(work, "eval_datasets", keys) for keys in evaluation]
    known = {kind for kind in kinds if kind}
    if "text" in known:
        work.draft.put("method", "pretrain", why="completion rows are learned whole, and cut where they are too long")
        if others := known - {"text", "tokenized"}:
            what = f"mixes plain text with rows of other kinds ({', '.join(sorted(others))})"
            work.ledger.refuse_missing("datasets", what, "make two jobs of it; the second can go on by init_adapter")
    _translate_templates(work, [*train, *evaluation], known)
    _translate_roles(work, [*train, *evaluation])


def _translate_one(work: Work, name: str, keys: Keys) -> str | None:
    """Adds one set of rows to the draft; its kind, or None when it was refused."""
    kind_given = keys.get("type")
    kind = _kind(work, keys, kind_given)
    paths = _paths(work, keys)
    split = keys.text("split")
    if split and split.value != "train":
        work.ledger.keep(split.found)
    elif split:
        work.ledger.ignore(split.found, "is train, which is all rows of a file")
    for found in unmentioned(keys.all, work.ledger):
        if found.key.rpartition(".")[2] not in _OF_ALL_SETS:
            apply_rule(found, _RULES, work.ledger)
    if kind is None:
        return None
    for path, found in paths:
        comment = _origin(dict.fromkeys([found, *kind.origins]))
        part = split.value if split and split.value != "train" else ""
        work.draft.add_dataset(name, DatasetDraft(path, kind, part, comment), found)
    return kind.format


def _origin(keys: Iterable[Found]) -> str:
    """E.g. datasets[0]: path, type (lines 7 to 8)."""
    found = list(keys)
    lines = sorted({each.line for each in found})
    where = f"line {lines[0]}" if len(lines) == 1 else f"lines {lines[0]} to {lines[-1]}"
    return f"{found[0].key.rpartition('.')[0]}: {', '.join(each.key.rpartition('.')[2] for each in found)} ({where})"


def _paths(work: Work, keys: Keys) -> list[tuple[str, Found]]:
    path, files = keys.text("path"), keys.words("data_files")
    if path is None:
        work.ledger.refuse_missing(f"{keys.path}path", "is missing: no rows are named")
        return []
    if files is None or path.value in work.supplied.files:
        names = [(path.value, path.found)]
        if files:
            work.ledger.ignore(files.found, "is not needed: --data says where the rows are")
    elif path.value in _LOADERS:
        work.ledger.keep(path.found)
        names = [(name, files.found) for name in files.value]
    else:
        folder = translate_path(work, path.found, path.value)
        work.ledger.keep(files.found)
        work.ledger.keep(path.found)
        names = [(beside(folder, name), files.found) for name in files.value] if folder else []
    translated: list[tuple[str, Found]] = []
    for name, found in names:
        ours = translate_path(work, found, name)
        if ours is not None:
            work.ledger.keep(found)
            translated.append((ours, found))
    return translated


def _kind(work: Work, keys: Keys, given: Found | None) -> RowKind | None:
    if given is None:
        if empty := keys.all.get("type"):
            work.ledger.keep(empty)
        return RowKind("tokenized")
    if isinstance(given.node, text.Mapping):
        what = "is a prompt format of one's own, filled in from columns"
        instead = 'write the rows as {"prompt": …, "completion": …}'
        work.ledger.refuse(given, what, instead)
        return None
    name = (keys.word("type") or Given(given, "")).value
    match name:
        case "chat_template" | "sharegpt":
            return translate_chat(work, keys, given, is_old=name == "sharegpt")
        case "alpaca":
            work.ledger.keep(given)
            what = "a row's input stands below its instruction here, where it has a heading (### Input:) of its own"
            work.ledger.change(given, what)
            return RowKind("alpaca", origins=(given,))
        case "completion" | "pretrain":
            return _completion(work, keys, given)
        case _:
            _refuse_kind(work, given, name)
            return None


def _refuse_kind(work: Work, given: Found, name: str) -> None:
    first = name.partition(".")[0]
    if first in _PREFERENCES:
        work.ledger.refuse(given, f"is {shown(name)}: rows of preferences cannot be learned from here", _CHAT_ROWS)
    elif name == "input_output":
        instead = 'write the rows as {"prompt": …, "completion": …}, or as input_ids and labels'
        work.ledger.refuse(given, "is input_output, whose segments are not read here", instead)
    elif _CUSTOM.fullmatch(name):
        work.ledger.refuse(given, f"is {shown(name)}: a function of one's own cannot be had here", _CHAT_ROWS)
    else:
        work.ledger.refuse(given, f"is {shown(name)}: rows of this kind are not known here", _CHAT_ROWS)


def _completion(work: Work, keys: Keys, given: Found) -> RowKind:
    work.ledger.keep(given)
    column = keys.text("field") or keys.text("text_column")
    if column is None:
        return RowKind("text", origins=(given,))
    work.ledger.keep(column.found)
    columns = {} if column.value == "text" else {"text": column.value}
    return RowKind("text", columns, (given, column.found))


def _translate_templates(work: Work, sets: Iterable[Keys], kinds: set[str]) -> None:
    """One job has one template; sets of rows that ask for several are refused."""
    asked = [_template_of(keys) for keys in (work.keys, *sets)]
    named = [each for each in asked if each]
    for first, other in pairwise(named):
        if first.value != other.value:
            what = f"is another template than {first.found.origin}"
            work.ledger.refuse(other.found, what, "make a job for each; the second can go on by init_adapter")
    is_chat = bool(kinds & {"chat", "sharegpt"})
    if "alpaca" in kinds and is_chat:
        what = "mixes Alpaca prompts with chats: two templates"
        work.ledger.refuse_missing("datasets", what, "make a job for each, or write all rows as messages")
    elif "alpaca" in kinds:
        for each in named:
            work.ledger.ignore(each.found, "has no effect on rows of type alpaca there")
        work.draft.put("chat_template", ALPACA, why="type: alpaca writes its prompts like this")
        return
    elif not is_chat:
        for each in named:
            work.ledger.ignore(each.found, "has no effect: no row is a chat")
        return
    for each in named[1:]:
        work.ledger.keep(each.found)
    if named:
        _translate_named(work, named[0])


def _template_of(keys: Keys) -> Given[str] | None:
    """A name, or the text or path of a template."""
    name, jinja = keys.word("chat_template"), keys.text("chat_template_jinja")
    if jinja and (name is None or name.value == "jinja"):
        if name:
            keys.ledger.keep(name.found)
        return jinja
    if jinja:
        keys.ledger.ignore(jinja.found, "has no effect there beside chat_template")
    return name


def _translate_named(work: Work, given: Given[str]) -> None:
    if given.found.key.endswith("chat_template_jinja"):
        work.draft.put("chat_template", given.value, given.found)
    elif given.value == "tokenizer_default":
        work.draft.put("chat_template", "auto", given.found, why="the model's own")
    elif given.value.startswith("tokenizer_default_fallback_"):
        fallback = given.value.removeprefix("tokenizer_default_fallback_")
        work.draft.put("chat_template", "auto", given.found, why="the model's own")
        what = f"takes the model's own template; for a model that has none, write chat_template: {fallback}"
        work.ledger.change(given.found, what)
    elif work.draft.has("chat_template"):
        work.ledger.keep(given.found)
    else:
        translate_template(work, given.found, given.value)


def _translate_roles(work: Work, sets: Iterable[Keys]) -> None:
    asked = [keys.words("roles_to_train") for keys in sets]
    named = [each for each in asked if each]
    if not named:
        return
    values = {tuple(sorted(each.value if each else ("assistant",))) for each in asked}
    if len(values) > 1:
        for each in named:
            work.ledger.refuse(each.found, "differs between sets of rows, and a job has one", "make a job for each")
    else:
        roles = ["assistant" if role == "gpt" else "user" if role == "human" else role for role in named[0].value]
        work.draft.put("roles_to_train", roles, *(each.found for each in named))
