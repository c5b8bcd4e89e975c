"""What a job file names on this machine, looked at in milliseconds: is it there, readable, and of the right kind?

Used at the claim, by prepare and by `finetunectl check`. It reads names, small JSON files and the first row of each
data file; rendering, hashing and everything else that takes time is prepare's.
"""

import difflib
import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from finetuned.core.jobfile.data_rules import TEMPLATE_SUFFIXES, is_inline_template
from finetuned.core.problems import Problem
from finetuned.core.spec import Dataset, JobSpec
from finetuned.core.tuning import adapter_problems
from finetuned.host.adapters import read_adapter
from finetuned.host.converter import gguf_problems
from finetuned.host.data.files import EVALUATION, TRAINING
from finetuned.host.data.look import look_at_set, require_plain
from finetuned.host.data.rowkind import RowKind
from finetuned.host.paths import Unusable, locate, look_at, not_readable, require_file

BUILT_IN_TEMPLATES = ("chatml", "llama3")
SAFETENSORS_INDEX = "model.safetensors.index.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


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


def source_problems(spec: JobSpec, folder: Path | None) -> tuple[Problem, ...]:
    """Everything that `spec` names and that cannot be used; `folder` is the dropped folder, None for a bare file."""
    return tuple(_problems(spec, folder))


def _problems(spec: JobSpec, folder: Path | None) -> Iterator[Problem]:
    kinds: set[RowKind | None] = set()
    for field, datasets, prefers in (
        ("datasets", spec.datasets, TRAINING),
        ("eval_datasets", spec.eval_datasets, EVALUATION),
    ):
        for index, dataset in enumerate(datasets):
            try:
                kinds.add(_require_rows(spec, dataset, folder, prefers))
            except Unusable as error:
                yield Problem(place=f"{field}[{index}].{error.field}", what=str(error), hint=error.hint)
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
            if kinds & {"chat", "sharegpt", "alpaca"} and spec.chat_template is None:
                _require_chat_template(path)
            yield from _length_problems(spec, path)
    except Unusable as error:
        yield Problem(place="base_model", what=str(error), hint=error.hint)
    if spec.init_adapter is not None:
        try:
            adapter = read_adapter(locate(spec.init_adapter, folder))
            yield from adapter_problems(spec, adapter)
            if adapter.has_new_tokens and not (spec.added_tokens or spec.added_special_tokens):
                raise Unusable(
                    "was trained with new tokens, and this job adds none",
                    "name the same added_tokens and added_special_tokens, in the same order, as the job that made it",
                )
        except Unusable as error:
            yield Problem(place="init_adapter", what=str(error), hint=error.hint)
    yield from gguf_problems(spec.export.gguf)


def _length_problems(spec: JobSpec, model: Path) -> Iterator[Problem]:
    """What config.json says plainly; one that says nothing, or cannot be read, is left to prepare."""
    try:
        config = json.loads((model / "config.json").read_bytes())
        positions = config.get("text_config", config).get("max_position_embeddings")
    except (OSError, ValueError, RecursionError, AttributeError):
        return
    if spec.max_seq_length is not None and isinstance(positions, int) and spec.max_seq_length > positions > 0:
        yield too_long(spec.max_seq_length, positions, spec.base_model)


def too_long(max_seq_length: int, positions: int, model: str) -> Problem:
    return Problem(
        place="max_seq_length",
        what=f"{max_seq_length:,} is more than the {positions:,} positions of {model}",
        hint=f"set max_seq_length: {positions} or less",
    )


def locate_template(named: str, folder: Path | None) -> Path | None:
    """The Jinja file that `chat_template` names; None for a built-in template, or one that stands there itself.

    Raises Unusable.
    """
    if named in BUILT_IN_TEMPLATES or is_inline_template(named):
        return None
    if "/" not in named and not named.endswith(TEMPLATE_SUFFIXES):
        close = difflib.get_close_matches(named, BUILT_IN_TEMPLATES, n=1)
        meant = f"did you mean {close[0]}?" if close else "expected chatml, llama3 or the path of a Jinja file"
        raise Unusable(f'"{named}" is not a chat template that finetuned knows; {meant}')
    path = locate(named, folder)
    require_file(path, "a Jinja file")
    return path


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
    if not stat.S_ISDIR(look_at(folder).st_mode):
        raise Unusable(f"{folder} is not a folder", "name the folder that holds config.json and the weights")
    if not os.access(folder, os.R_OK | os.X_OK, effective_ids=True):
        raise Unusable(*not_readable(folder))
    if not (folder / "config.json").exists():
        if (folder / "adapter_config.json").exists():
            raise Unusable(f"{folder} is an adapter, not a model", "merge it into its base model first")
        raise Unusable(f"{folder} is not a model: it has no config.json")
    for name in ("config.json", *weight_files(folder)):
        if not os.access(folder / name, os.R_OK, effective_ids=True):
            raise Unusable(*not_readable(folder / name))
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


def _require_rows(spec: JobSpec, dataset: Dataset, folder: Path | None, prefers: tuple[str, ...]) -> RowKind | None:
    kind = look_at_set(dataset, folder, prefers)
    if spec.method == "pretrain" and kind is not None:
        require_plain(kind, dataset.path)
    return kind
