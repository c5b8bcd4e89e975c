"""What a job file names on this machine, looked at in milliseconds: is it there, readable, and of the right kind?

Used at the claim, by prepare and by `finetunectl check`. It reads names, small JSON files and the first row of each
data file; rendering, hashing and everything else that takes time is prepare's.
"""

import difflib
import itertools
import json
import os
import pwd
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from finetuned.core.problems import Problem
from finetuned.core.spec import Dataset, JobSpec

BUILT_IN_TEMPLATES = ("chatml", "llama3")
SAFETENSORS_INDEX = "model.safetensors.index.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
RowKind = Literal["chat", "text"]

_FIRST_ROW_BYTES = 4 << 20
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_KNOWN_NOT_YET = {
    "conversations": "ShareGPT rows (`conversations`)",
    "instruction": "Alpaca rows (`instruction`, `output`)",
    "prompt": "`prompt` and `completion` rows",
    "chosen": "preference rows (`chosen`, `rejected`)",
    "input_ids": "tokenized rows",
}


class Unusable(Exception):
    """Something that a job file names cannot be used; the message says why, the hint what to do."""

    def __init__(self, what: str, hint: str = ""):
        self.hint = hint
        super().__init__(what)


@dataclass(frozen=True)
class LocalModel:
    path: Path
    """As written: absolute, or relative to the dropped folder."""


@dataclass(frozen=True)
class HubModel:
    repo: str
    revision: str | None = None


def resolve_base_model(value: str) -> LocalModel | HubModel:
    """What `base_model` means: "/…", "./…" and "file:…" are folders, all else is a name on the hub.

    `org/name` is the hub's even where such a folder exists. "hub:org/name@revision" pins a revision. Raises Unusable.
    """
    if value.startswith("file:"):
        return LocalModel(Path(re.sub("^/+", "/", value.removeprefix("file:"))))
    if value.startswith(("/", "./", "../", "~")):
        return LocalModel(Path(value))
    repo, _, revision = value.removeprefix("hub:").partition("@")
    if not _HUB_NAME.fullmatch(repo):
        raise Unusable(f'"{value}" is neither a folder nor a name on the hub', "write /path/to/folder, or org/name")
    return HubModel(repo, revision or None)


def locate(named: str | Path, folder: Path | None) -> Path:
    """The absolute path that a job file means; relative ones are taken from `folder`, the dropped folder.

    Raises Unusable for a relative path without such a folder, or one that leads out of it.
    """
    text = str(named)
    if "\0" in text:
        raise Unusable(f"{text!r} is not a path")
    if text.startswith("~"):
        raise Unusable(f"{text} begins with ~, which means nothing to a service", "write the whole path")
    if os.path.isabs(text):
        return Path(text)
    if folder is None:
        raise Unusable(
            f"{text} is a relative path, and a job file dropped alone has no folder to start from",
            "write the whole path; or drop a folder that holds job.yaml and the data; or use finetunectl submit",
        )
    try:
        found = (folder / text).resolve()
    except RuntimeError as error:  # Python before 3.13 says so of links that lead in a circle.
        raise Unusable(f"{text} is a link that leads back to itself", "put the file itself in the folder") from error
    if not found.is_relative_to(folder.resolve()):
        raise Unusable(f"{text} leads out of the dropped folder", "write the whole path, or put the file in the folder")
    return found


def source_problems(spec: JobSpec, folder: Path | None) -> tuple[Problem, ...]:
    """Everything that `spec` names and that cannot be used; `folder` is the dropped folder, None for a bare file."""
    return tuple(_problems(spec, folder))


def _problems(spec: JobSpec, folder: Path | None) -> Iterator[Problem]:
    kinds: set[RowKind] = set()
    for field, datasets in (("datasets", spec.datasets), ("eval_datasets", spec.eval_datasets)):
        for index, dataset in enumerate(datasets):
            try:
                kinds.add(_require_rows(spec, dataset, folder))
            except Unusable as error:
                yield Problem(place=f"{field}[{index}].path", what=str(error), hint=error.hint)
    if spec.chat_template is not None:
        try:
            locate_template(spec.chat_template, folder)
        except Unusable as error:
            yield Problem(place="chat_template", what=str(error), hint=error.hint)
    try:
        model = resolve_base_model(spec.base_model)
        _refuse_odd_revision(model, spec.revision)
        if isinstance(model, LocalModel):
            path = locate(model.path, folder)
            require_model_folder(path)
            if "chat" in kinds and spec.chat_template is None:
                _require_chat_template(path)
    except Unusable as error:
        yield Problem(place="base_model", what=str(error), hint=error.hint)


def locate_template(named: str, folder: Path | None) -> Path | None:
    """The Jinja file that `chat_template` names; None for a built-in one. Raises Unusable."""
    if named in BUILT_IN_TEMPLATES:
        return None
    if "/" not in named and not named.endswith((".jinja", ".j2", ".txt")):
        close = difflib.get_close_matches(named, BUILT_IN_TEMPLATES, n=1)
        meant = f"did you mean {close[0]}?" if close else "expected chatml, llama3 or the path of a Jinja file"
        raise Unusable(f'"{named}" is not a chat template that finetuned knows; {meant}')
    path = locate(named, folder)
    _require_file(path, "a Jinja file")
    return path


def look_at_rows(dataset: Dataset, path: Path) -> RowKind:
    """The kind of rows in a data file: as the spec says, else as its first row looks. Raises Unusable."""
    row = _first_row(path)
    if dataset.format != "auto":
        return dataset.format
    if row is None:
        raise Unusable(f"{path}: the first row is too long to look at", "say format: chat or format: text")
    if "messages" in row and "text" in row:
        raise Unusable(f"{path} has both `messages` and `text`", "say format: chat or format: text")
    if "messages" in row:
        return "chat"
    if "text" in row:
        return "text"
    for key, name in _KNOWN_NOT_YET.items():
        if key in row:
            raise Unusable(f"{path} holds {name}, which finetuned cannot read yet", "expected `messages` or `text`")
    keys = ", ".join(sorted(map(str, row))[:8])
    raise Unusable(f"{path}: the first row has neither `messages` nor `text`; its keys are {keys or 'none'}")


def weight_files(folder: Path) -> tuple[str, ...]:
    """Names of the safetensors files that hold the weights, as transformers would load them. Raises Unusable."""
    if (folder / "model.safetensors").is_file():
        return ("model.safetensors",)
    index = folder / SAFETENSORS_INDEX
    if index.is_file():
        try:
            shards = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        except (OSError, ValueError, RecursionError, KeyError, AttributeError, TypeError) as error:
            raise Unusable(f"{index} cannot be read: {type(error).__name__}: {error}") from error
        # These names become parts of paths, also of ones that are written to.
        if odd := [shard for shard in shards if not isinstance(shard, str) or Path(shard).name != shard]:
            raise Unusable(f"{index} names {odd[0]!r}, which is no file beside it")
        missing = [shard for shard in shards if not (folder / shard).is_file()]
        if missing:
            raise Unusable(f"{folder} lacks {len(missing)} of {len(shards)} weight files, e.g. {missing[0]}")
        return tuple(shards)
    if list(folder.glob("pytorch_model*.bin")):
        raise Unusable(
            f"{folder} has its weights only as pickles (.bin), which could run code when loaded",
            "convert them once: AutoModelForCausalLM.from_pretrained(OLD).save_pretrained(NEW)",
        )
    if list(folder.glob("*.gguf")):
        raise Unusable(
            f"{folder} has its weights as GGUF, which is for inference",
            "convert them once: AutoModelForCausalLM.from_pretrained(OLD, gguf_file=NAME).save_pretrained(NEW)",
        )
    raise Unusable(f"{folder} has no weights: neither model.safetensors nor {SAFETENSORS_INDEX}")


def require_model_folder(folder: Path) -> None:
    """Raise Unusable unless `folder` holds a readable config.json, safetensors weights and a tokenizer."""
    if not stat.S_ISDIR(_stat(folder).st_mode):
        raise Unusable(f"{folder} is not a folder", "name the folder that holds config.json and the weights")
    if not os.access(folder, os.R_OK | os.X_OK, effective_ids=True):
        raise Unusable(*_not_readable(folder))
    if not (folder / "config.json").exists():
        if (folder / "adapter_config.json").exists():
            raise Unusable(f"{folder} is an adapter, not a model", "merge it into its base model first")
        raise Unusable(f"{folder} is not a model: it has no config.json")
    for name in ("config.json", *weight_files(folder)):
        if not os.access(folder / name, os.R_OK, effective_ids=True):
            raise Unusable(*_not_readable(folder / name))
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise Unusable(f"{folder} has no tokenizer, e.g. no tokenizer.json")


def _require_chat_template(folder: Path) -> None:
    if (folder / "chat_template.jinja").is_file() or (folder / "chat_template.json").is_file():
        return
    try:
        if json.loads((folder / "tokenizer_config.json").read_bytes()).get("chat_template"):
            return
    except (OSError, ValueError, RecursionError, AttributeError):
        pass
    raise Unusable(
        f"{folder} has no chat template, and the data are chats",
        "set chat_template: chatml, chat_template: llama3, or the path of a Jinja file",
    )


def _refuse_odd_revision(model: LocalModel | HubModel, revision: str | None) -> None:
    if revision is None:
        return
    if isinstance(model, LocalModel):
        raise Unusable(f"is a folder, which has no revision {revision}", "leave out revision")
    if model.revision is not None and model.revision != revision:
        raise Unusable(f"says revision {model.revision}, and revision says {revision}", "say it once")


def _require_rows(spec: JobSpec, dataset: Dataset, folder: Path | None) -> RowKind:
    path = locate(dataset.path, folder)
    if _require_file(path, "a JSONL file").st_size == 0:
        raise Unusable(f"{path} is empty")
    kind = look_at_rows(dataset, path)
    if spec.method == "pretrain" and kind == "chat":
        raise Unusable(f"{path} holds chats, and method: pretrain learns plain text", "use method: sft, or `text` rows")
    return kind


def _first_row(path: Path) -> dict[str, object] | None:
    """The first row that is not blank; None when it is longer than this look. Raises Unusable."""
    with open(path, "rb") as file:
        lines = enumerate(iter(lambda: file.readline(_FIRST_ROW_BYTES), b""), 1)
        number, line = next(((number, text) for number, text in lines if text.strip(b"\xef\xbb\xbf \t\r\n")), (0, b""))
    if not line:
        raise Unusable(f"{path} has only blank lines")
    if line.startswith((b"\x1f\x8b", b"PAR1")):
        kind = "gzip" if line.startswith(b"\x1f\x8b") else "Parquet"
        raise Unusable(f"{path} is a {kind} file", "finetuned reads JSONL: one JSON object a line")
    if len(line) == _FIRST_ROW_BYTES:
        return None
    line = line.removeprefix(b"\xef\xbb\xbf")
    if line.strip().startswith(b"["):
        raise Unusable(
            f"{path} is a JSON array; expected one JSON object a line", f"jq -c '.[]' {path} > {path.stem}.jsonl"
        )
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Unusable(f"{path}:{number} is not JSON: {error}", "expected one JSON object a line (JSONL)") from error
    if not isinstance(row, dict):
        raise Unusable(f"{path}:{number} is {type(row).__name__}; expected a JSON object")
    return row


def _require_file(path: Path, expected: str) -> os.stat_result:
    found = _stat(path)
    if stat.S_ISDIR(found.st_mode):
        raise Unusable(f"{path} is a folder; expected {expected}")
    if not stat.S_ISREG(found.st_mode):
        raise Unusable(f"{path} is not a regular file; expected {expected}")
    if not os.access(path, os.R_OK, effective_ids=True):
        raise Unusable(*_not_readable(path))
    return found


def _stat(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Unusable(f"{path} does not exist", _nearest_name(path)) from error
    except PermissionError as error:
        raise Unusable(*_not_readable(path)) from error
    except OSError as error:
        raise Unusable(f"{path}: {error.strerror}") from error


def _nearest_name(path: Path) -> str:
    try:
        with os.scandir(path.parent) as entries:
            names = [entry.name for entry in itertools.islice(entries, 1000)]
    except OSError:
        return ""
    close = difflib.get_close_matches(path.name, names, n=1)
    return f"did you mean {path.parent / close[0]}?" if close else ""


def _not_readable(path: Path) -> tuple[str, str]:
    """Names who looked: the service's user after the claim, the submitter's own in `finetunectl check`."""
    uid = os.geteuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"{path} cannot be read by uid {uid}", f"setfacl -m u:{uid}:rX {path}, and its folders"
    return f"{path} cannot be read by {name} (uid {uid})", f"setfacl -m u:{name}:rX {path}, and its folders"
