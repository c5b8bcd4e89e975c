"""Changes to the text of a job file: `--set`, and paths pinned or packed. Comments and order stay as they were."""

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from finetuned.core.jobfile.data_rules import TEMPLATE_SUFFIXES
from finetuned.core.jobfile.words import DATASET_WORDS, JOB_WORDS
from finetuned.ctl.exits import ExitCode, Sorry
from finetuned.ctl.spans import Fields, Items, Leaf, Span, read_spans

_DATASETS = ("datasets", "eval_datasets")
_BARE = re.compile(r"\.{0,2}[A-Za-z_/][A-Za-z0-9_./+-]*")


def set_field(text: str, assignment: str) -> str:
    """`text` with one KEY=VALUE done: KEY may be dotted (datasets.0.path), VALUE is YAML.

    A field that stands in the file, under whichever of its names, is changed in place; another one is added.
    Raises Sorry for an assignment that makes no sense in this file.
    """
    key, equals, value = assignment.partition("=")
    steps = [step for step in re.split(r"[.\[\]]+", key.strip()) if step]
    if not equals or not steps:
        raise Sorry(
            ExitCode.USAGE, f"--set {assignment} is not KEY=VALUE", "write for example --set learning_rate=1e-4"
        )
    root = _root_of(text)
    if root is None:
        return text
    if isinstance(root, Leaf) and not root.text:
        return f"{text.rstrip()}\n{steps[0]}: {_nested(steps[1:], value, is_flow=False)}\n".lstrip()
    return _set(text, root, steps, value.strip(), done=[], is_flow=False)


def _root_of(text: str) -> Span | None:
    """None for a text that is no YAML: parse_spec tells what is wrong with it."""
    try:
        return read_spans(text) or Leaf(0, 0, "", is_plain=True)
    except Exception:
        # ruamel lets Python's own errors through for odd texts; whatever it is, it is not for us to report.
        return None


def _set(text: str, node: Span, steps: list[str], value: str, done: list[str], is_flow: bool) -> str:
    if not steps:
        written = _written(value, is_flow=is_flow)
        return text[: node.start] + _room_before(text, node) + written + text[node.end :]
    step, rest = steps[0], steps[1:]
    match node:
        case Fields():
            is_flow = is_flow or node.is_flow
            for key, child in node.entries:
                if _canonical(key, done) == _canonical(step, done):
                    return _set(text, child, rest, value, [*done, _canonical(step, done)], is_flow)
            return _add_field(text, node, step, _nested(rest, value, is_flow), is_flow)
        case Items():
            is_flow = is_flow or node.is_flow
            index = _index(step, node, done)
            if index < len(node.items):
                return _set(text, node.items[index], rest, value, [*done, step], is_flow)
            return _add_item(text, node, _nested(rest, value, is_flow))
        case Leaf() if done[0] in _DATASETS and set(steps) <= {"0", "path"}:
            # `datasets: a.jsonl` is short for `datasets: [{path: a.jsonl}]`.
            return _set(text, node, [], value, done, is_flow)
        case Leaf():
            where = ".".join(done)
            raise Sorry(
                ExitCode.USAGE,
                f"--set {'.'.join([*done, *steps])}: {where} is {node.text!r} in this file and has no {step}",
                f"set all of {where}",
            )


def _room_before(text: str, node: Span) -> str:
    """An empty value stands right behind its colon; what replaces a block must be further right than its key."""
    if node.start == node.end and text[: node.start].endswith(":"):
        return " "
    line_start = text.rfind("\n", 0, node.start) + 1
    begins_a_line = node.start > 0 and not text[line_start : node.start].strip()
    return "  " if begins_a_line and not isinstance(node, Leaf) else ""


def _canonical(key: str, parents: list[str]) -> str:
    """Our name of a field that may be written in another tool's words."""
    if not parents:
        return JOB_WORDS.other_names.get(key, key)
    return DATASET_WORDS.other_names.get(key, key) if parents[0] in _DATASETS else key


def _index(step: str, node: Items, done: list[str]) -> int:
    if step.isascii() and step.isdigit() and int(step) <= len(node.items):
        return int(step)
    where = ".".join(done)
    raise Sorry(
        ExitCode.USAGE,
        f"--set {where}.{step}: {where} is a list of {len(node.items)}",
        f"count from 0; {where}.{len(node.items)} adds one",
    )


def _add_field(text: str, node: Fields, key: str, value: str, is_flow: bool) -> str:
    if node.is_flow:
        comma = ", " if node.entries else ""
        return f"{text[: node.start + 1]}{json.dumps(key)}: {value}{comma}{text[node.start + 1 :]}"
    if is_flow:
        raise Sorry(ExitCode.USAGE, f"--set {key}: cannot be added to this file", "add it with an editor")
    return _line_behind(text, node, f"{key}: {value}")


def _add_item(text: str, node: Items, value: str) -> str:
    if node.is_flow:
        comma = ", " if node.items else ""
        return f"{text[: node.end - 1]}{comma}{value}{text[node.end - 1 :]}"
    return _line_behind(text, node, f"- {value}")


def _line_behind(text: str, node: Span, line: str) -> str:
    """A line of its own behind the last line of a block, as far to the right as the block."""
    indent = " " * (node.start - (text.rfind("\n", 0, node.start) + 1))
    line_end = text.find("\n", node.end)
    if line_end < 0:
        return f"{text}\n{indent}{line}\n"
    return f"{text[: line_end + 1]}{indent}{line}\n{text[line_end + 1 :]}"


def _nested(steps: list[str], value: str, is_flow: bool) -> str:
    """The value of a new field: with further steps, a mapping or list in brackets around it."""
    if not steps:
        return _written(value, is_flow=is_flow)
    inner = _nested(steps[1:], value, is_flow=True)
    return f"[{inner}]" if steps[0].isdigit() else f"{{{json.dumps(steps[0])}: {inner}}}"


def _written(value: str, *, is_flow: bool) -> str:
    """VALUE as a person typed it where that reads as one value there, else as a quoted string."""
    if is_flow:
        return value if _is_json(value) else json.dumps(value, ensure_ascii=False)
    try:
        root = read_spans(f"key: {value}\n")
    except Exception:
        return json.dumps(value, ensure_ascii=False)
    return value if _reads_as_one(root, value) and "\n" not in value else json.dumps(value, ensure_ascii=False)


def _reads_as_one(root: Span | None, value: str) -> bool:
    """`root` is `key: value`, nothing of it taken for a comment or another field."""
    if not isinstance(root, Fields) or len(root.entries) != 1:
        return False
    child = root.entries[0][1]
    return not (isinstance(child, Leaf) and child.is_plain) or child.text == value


def _is_json(value: str) -> bool:
    try:
        json.loads(value)
    except ValueError:
        return False
    return True


PathRewrite = Callable[[str, str], str]
"""(field, path as written) → the path to write; the same one to leave it."""


def rewrite_paths(text: str, rewrite: PathRewrite) -> str:
    """`text` with every path it names (base model, data, chat template, adapter) passed through `rewrite`."""
    root = _root_of(text)
    if not isinstance(root, Fields):
        return text
    # From the end, so that the places before stay where they are.
    for field, leaf in sorted(_path_leaves(root), key=lambda found: -found[1].start):
        path = rewrite(field, leaf.text)
        if path != leaf.text:
            text = text[: leaf.start] + _quoted(path, leaf) + text[leaf.end :]
    return text


def _path_leaves(root: Fields) -> Iterator[tuple[str, Leaf]]:
    for key, value in root.entries:
        field = _canonical(key, [])
        if field in ("base_model", "chat_template", "init_adapter") and isinstance(value, Leaf) and value.text:
            yield field, value
        elif field in _DATASETS:
            for item in value.items if isinstance(value, Items) else (value,):
                yield from _dataset_leaves(field, item)


def _dataset_leaves(field: str, item: Span) -> Iterator[tuple[str, Leaf]]:
    if isinstance(item, Leaf) and item.text:
        yield field, item
    if isinstance(item, Fields):
        for key, value in item.entries:
            if _canonical(key, [field]) == "path" and isinstance(value, Leaf) and value.text:
                yield field, value


def _quoted(path: str, leaf: Leaf) -> str:
    return path if leaf.is_plain and _BARE.fullmatch(path) else json.dumps(path, ensure_ascii=False)


def pin_to(folder: Path) -> PathRewrite:
    """Relative paths and `~` become absolute, as seen from `folder`; hub ids and named templates stay."""

    def pin(field: str, path: str) -> str:
        if not _is_relative_path(field, path):
            return path
        return os.path.abspath(folder / Path(path.removeprefix("file:")).expanduser())

    return pin


def _is_relative_path(field: str, path: str) -> bool:
    if path.startswith("/") or "://" in path or "\n" in path:
        return False
    if field == "base_model":
        return path.startswith(("./", "../", "~")) or (path.startswith("file:") and not path.startswith("file:/"))
    if field == "chat_template":
        return "{" not in path and ("/" in path or path.endswith(TEMPLATE_SUFFIXES))
    return True
