"""A look at the first rows of a job that is not submitted yet: `python -m finetuned.prepare.glance`.

Reads a PreviewAsked on stdin, writes a Preview on stdout, and nothing else anywhere: no spool, no store, no hub. Files
are neither hashed nor counted, so it takes as long for ten gigabytes as for ten rows.
"""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from finetuned.core.preview import Preview, PreviewAsked
from finetuned.core.problems import CannotRun, InvalidSpec, Problem, StageFailed
from finetuned.core.spec import JobSpec, parse_spec
from finetuned.host.paths import Unusable, locate
from finetuned.host.sources import HubModel, require_model_folder, resolve_base_model, source_problems
from finetuned.host.store import read_seal

if TYPE_CHECKING:
    from finetuned.prepare.read import Row, RowSet
    from finetuned.prepare.render.renderer import Example, Renderer

_LOOKED_AT = 100
"""Rows of each set that are rendered, however few are shown: enough to see what is wrong with all of them."""
_MOST_PROBLEMS = 20


def glance(asked: PreviewAsked) -> Preview:
    """What prepare would make of the first rows; never raises for what is wrong with the job."""
    try:
        parsed = parse_spec(asked.spec, asked.source)
        if problems := source_problems(parsed.spec, None):
            return Preview(source=asked.source, text="", problems=problems)
        return _Glance(asked, parsed.spec).preview()
    except (InvalidSpec, CannotRun) as error:
        return Preview(source=asked.source, text="", problems=error.problems)
    except StageFailed as error:
        problem = Problem(place="prepare", what=str(error), hint=error.hint)
        return Preview(source=asked.source, text="", problems=error.problems or (problem,))


@dataclass
class _Glance:
    asked: PreviewAsked
    spec: JobSpec
    problems: list[Problem] = field(default_factory=list)
    tokens: int = 0
    targets: int = 0
    rows: int = 0
    too_long: int = 0
    empty: int = 0

    def preview(self) -> Preview:
        from finetuned.prepare.facts import positions_of, read_config, stop_token_ids
        from finetuned.prepare.main import longest_row
        from finetuned.prepare.preview import KEY, count_rows, stops_line, what_is_learned
        from finetuned.prepare.render.renderer import Renderer
        from finetuned.prepare.render.template import choose_template
        from finetuned.prepare.tokenizer import open_tokenizer

        spec = self.spec
        folder = _model_folder(spec, self.asked.models)
        config = read_config(folder)
        limit = longest_row(spec, positions_of(config))
        tokenizer = open_tokenizer(folder, spec.added_tokens, spec.added_special_tokens)
        sets = [_first_look(spec, index) for index in range(len(spec.datasets))]
        has_chats = any(rows.are_chats for rows in sets)
        template = choose_template(spec.chat_template, None, tokenizer) if has_chats else None
        renderer = Renderer(
            tokenizer, template, train_on_inputs=spec.train_on_inputs, roles_to_train=spec.roles_to_train
        )
        shown = [line for rows in sets for line in self._set_lines(rows, renderer, limit)]
        stops = stop_token_ids(folder, config, tokenizer, template.end_ids if template else ())
        heading = [
            *([f"chat template: {_name_of_template(spec)}"] if template else []),
            f"learned: {what_is_learned(spec, has_chats=has_chats)}",
            f"generation stops on: {stops_line(stops, tokenizer)}",
            f"looked at the first {count_rows(self.rows)}: {', '.join(self._fates(limit))}",
            f"{KEY}.",
        ]
        notices = (
            *_parts_not_applied(spec),
            *(notice for rows in sets for notice in rows.notices),
            *(template.notices if template else ()),
        )
        return Preview(
            source=self.asked.source,
            text="\n".join([*heading, *shown]) + "\n",
            problems=tuple(self._told_problems()),
            notices=(*notices, *renderer.notices()),
        )

    def _told_problems(self) -> list[Problem]:
        more = len(self.problems) - _MOST_PROBLEMS
        rest = [Problem(place="…", what=f"and {more:,} more rows like these")] if more > 0 else []
        return [*self.problems[:_MOST_PROBLEMS], *rest]

    def _set_lines(self, rows: "RowSet", renderer: "Renderer", limit: int) -> Iterator[str]:
        from finetuned.prepare.preview import row_lines
        from finetuned.prepare.read import Row, read_rows

        found = list(islice(read_rows(rows), max(_LOOKED_AT, self.asked.rows)))
        self.problems += [each for each in found if isinstance(each, Problem)]
        good = [each for each in found if isinstance(each, Row)]
        left = self.asked.rows
        for example in self._examples(good, renderer):
            fate = self._fate(example, limit)
            if left > 0:
                left -= 1
                ids, is_target = example.input_ids.tolist(), example.is_target.tolist()
                source = f"{example.source}{f' ({fate})' if fate else ''}"
                yield from row_lines(source, ids, is_target, renderer.tokenizer, with_tokens=self.asked.with_tokens)

    def _examples(self, rows: list["Row"], renderer: "Renderer") -> Iterator["Example"]:
        for example in renderer.examples(rows):
            if isinstance(example, Problem):
                self.problems.append(example)
            else:
                yield example

    def _fate(self, example: "Example", limit: int) -> str:
        """What becomes of a row that is not trained on as it is."""
        self.rows += 1
        self.tokens += example.tokens
        self.targets += example.targets
        if example.targets == 0:
            self.empty += 1
            return "to be dropped: nothing in it is learned"
        if example.tokens <= limit or self.spec.method == "pretrain":
            return ""
        self.too_long += 1
        becomes = {"drop": "to be dropped", "truncate": "to be cut", "error": "fails the job"}
        return f"{becomes[self.spec.excess_length_strategy]}: longer than max_seq_length {limit:,}"

    def _fates(self, limit: int) -> Iterator[str]:
        share = f" ({self.targets / self.tokens:.1%})" if self.tokens else ""
        yield f"{self.tokens:,} tokens, {self.targets:,} of them learned{share}"
        if self.too_long:
            yield f"{self.too_long:,} longer than max_seq_length {limit:,}"
        if self.empty:
            yield f"{self.empty:,} with nothing to learn"
        if self.problems:
            yield f"{len(self.problems):,} more that cannot be used"


def _parts_not_applied(spec: JobSpec) -> Iterator[str]:
    for dataset in spec.datasets:
        if dataset.split and "%" in dataset.split:
            yield f"split {dataset.split} is not applied: a preview reads the first rows and counts none"


def _first_look(spec: JobSpec, index: int) -> "RowSet":
    from finetuned.host.data.files import TRAINING
    from finetuned.prepare.read import look_through

    try:
        return look_through(spec.datasets[index], None, TRAINING, None)
    except Unusable as error:
        problem = Problem(place=f"datasets[{index}].{error.field}", what=str(error), hint=error.hint)
        raise StageFailed("the data cannot be used", retry=False, problems=[problem]) from error


def _model_folder(spec: JobSpec, models: str | None) -> Path:
    """The model's folder on this machine. Raises CannotRun for one that would have to be fetched."""
    try:
        model = resolve_base_model(spec.base_model)
        if not isinstance(model, HubModel):
            folder = locate(model.path, None)
            require_model_folder(folder)
            return folder
    except Unusable as error:
        raise CannotRun([Problem(place="base_model", what=str(error), hint=error.hint)]) from error
    revision = model.revision or spec.revision or ""
    pattern = f"{model.repo.replace('/', '--')}--{revision if len(revision) == 40 else '*'}"
    found = [path for path in Path(models).glob(pattern) if read_seal(path) is not None] if models else []
    if not found:
        problem = Problem(
            place="base_model",
            what=f"{model.repo} is not on this machine yet, and a preview fetches nothing",
            hint="submit the job: it is fetched first, and finetunectl preview JOB then shows the rows",
        )
        raise CannotRun([problem])
    return max(found, key=lambda path: path.stat().st_mtime)


def _name_of_template(spec: JobSpec) -> str:
    if spec.chat_template is None:
        return "the model's own"
    return "the job file's own" if "{" in spec.chat_template else spec.chat_template


def main() -> None:
    preview = glance(PreviewAsked.model_validate_json(sys.stdin.buffer.read()))
    sys.stdout.buffer.write(preview.model_dump_json().encode())


if __name__ == "__main__":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"
    # Tokenizers and configs need no torch, and load in half the time without it (as in __main__.py).
    sys.modules["torch"] = None  # type: ignore[assignment]
    main()
