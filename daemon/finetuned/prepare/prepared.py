"""Prepared rows in the store: named by everything that shapes them, built aside, reused when they stand there whole."""

import hashlib
import heapq
import json
import shutil
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
import tokenizers
import transformers

from finetuned.core.plan import DataFacts, DataSource, ModelFile
from finetuned.core.problems import Problem, StageFailed
from finetuned.core.record import Record
from finetuned.host.jobdir import Unreadable, read_record, write_record
from finetuned.host.stage import StageRun
from finetuned.host.store import Store, hash_files, seal
from finetuned.prepare.lengths import LengthGate, percentile
from finetuned.prepare.progress import Progress
from finetuned.prepare.read import DataFile, Row, read_rows
from finetuned.prepare.render import Example, Renderer
from finetuned.prepare.rowfile import RowWriter, split_rows
from finetuned.prepare.split import choose_eval_rows, eval_count

_CODE_VERSION = 1
"""Raised whenever the same input gives other rows."""
_ROWS_AT_ONCE = 200
_MOST_PROBLEMS = 20
_PROBES = 4
_PROBE_CANDIDATES = 16
_FACTS = "facts.json"


@dataclass(frozen=True)
class Recipe:
    """Everything that shapes the prepared rows."""

    train: tuple[DataFile, ...]
    held_out: tuple[DataFile, ...]
    """Files for evaluation; where there are none, `val_set_size` splits rows off."""
    val_set_size: float | None
    method: Literal["sft", "pretrain"]
    max_seq_length: int
    excess_length_strategy: Literal["drop", "truncate", "error"]
    train_on_inputs: bool
    chat_template: str | None
    stop_token_ids: tuple[int, ...]
    vocab_size: int
    positions: int
    """The most tokens that the model can place."""
    tokenizer_files: tuple[ModelFile, ...]
    """Every small file of the model: what transformers may look at when it encodes."""

    @property
    def name(self) -> str:
        """The name of the folder: a hash over all of the above and the code that reads it."""
        key = {
            "code": [_CODE_VERSION, transformers.__version__, tokenizers.__version__],
            "train": [[file.shown, file.kind, file.sha256] for file in self.train],
            "held_out": [[file.shown, file.kind, file.sha256] for file in self.held_out],
            "tokenizer": sorted([file.path, file.sha256] for file in self.tokenizer_files),
            "rest": [
                self.val_set_size,
                self.method,
                self.max_seq_length,
                self.excess_length_strategy,
                self.train_on_inputs,
                self.chat_template,
                self.stop_token_ids,
            ],
        }
        return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]


class PreparedFacts(Record):
    """facts.json of a prepared folder."""

    format: Literal[1] = 1
    data: DataFacts


def obtain_rows(recipe: Recipe, renderer: Renderer, store: Store, run: StageRun) -> DataFacts:
    """The facts of the recipe's rows, which then stand whole in the store; built only where they do not yet.

    Raises StageFailed for rows that cannot be used, with the first 20 of them.
    """
    final = store.prepared_dir(recipe.name)
    if store.has_prepared(recipe.name) and (known := _read_facts(final)) is not None:
        return known
    partial = store.prepared / f".{recipe.name}.{run.job.job}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(mode=0o750)
    try:
        facts = _build(recipe, renderer, partial, run)
        write_record(partial / _FACTS, PreparedFacts(data=facts))
        seal(partial, final, tuple(hash_files(partial, sorted(path.name for path in partial.iterdir()))))
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return facts


@dataclass
class _Tally:
    """What is remembered of the rows of one file of prepared rows: a few bytes each."""

    digests: "array[int]" = field(default_factory=lambda: array("Q"))
    tokens: "array[int]" = field(default_factory=lambda: array("I"))
    targets: "array[int]" = field(default_factory=lambda: array("I"))
    candidates: list[tuple[int, int, Row]] = field(default_factory=list)
    """The rows of the lowest digests, of which the probes are taken: a heap of (-digest, -order, row)."""

    def count(self, example: Example) -> None:
        self.digests.append(example.digest)
        self.tokens.append(example.tokens)
        self.targets.append(example.targets)

    def consider(self, row: Row) -> None:
        if any(-candidate[0] == row.digest for candidate in self.candidates):
            return
        heapq.heappush(self.candidates, (-row.digest, -len(self.digests), row))
        if len(self.candidates) > _PROBE_CANDIDATES:
            heapq.heappop(self.candidates)


def _build(recipe: Recipe, renderer: Renderer, into: Path, run: StageRun) -> DataFacts:
    gate = LengthGate(
        recipe.max_seq_length, recipe.excess_length_strategy, recipe.method == "pretrain", recipe.positions
    )
    total = sum(file.lines for file in (*recipe.train, *recipe.held_out))
    progress = Progress(run, "reading", "rows", total)
    bench = _Bench(recipe, renderer, gate, progress)
    train, held_out = _Tally(), _Tally()
    sources = bench.write(recipe.train, into / "train.arrow", train)
    if recipe.held_out:
        sources += bench.write(recipe.held_out, into / "eval.arrow", held_out)
    bench.refuse_problems()
    gate.close()
    if not train.tokens:
        raise _nothing_left(gate)
    is_eval = _split(recipe, into, train) if not recipe.held_out else np.zeros(len(train.tokens), dtype=bool)
    if recipe.held_out and not held_out.tokens:
        (into / "eval.arrow").unlink()
    _write_probes(into / "probes.json", renderer, train, held_out, is_eval)

    tokens, targets = np.array(train.tokens, dtype=np.int64), np.array(train.targets, dtype=np.int64)
    all_lengths = train.tokens + held_out.tokens
    return DataFacts(
        prepared=recipe.name,
        sources=tuple(sources),
        train_rows=int((~is_eval).sum()),
        eval_rows=int(is_eval.sum()) + len(held_out.tokens),
        train_tokens=int(tokens[~is_eval].sum()),
        train_target_tokens=int(targets[~is_eval].sum()),
        eval_tokens=int(tokens[is_eval].sum()) + sum(held_out.tokens),
        eval_target_tokens=int(targets[is_eval].sum()) + sum(held_out.targets),
        longest_tokens=max(all_lengths),
        p50_tokens=percentile(all_lengths, 50),
        p99_tokens=percentile(all_lengths, 99),
        max_seq_length=recipe.max_seq_length,
        over_long_rows=gate.over_long,
        dropped=gate.all_notes(),
        chat_template=recipe.chat_template,
        stop_token_ids=recipe.stop_token_ids,
    )


@dataclass
class _Bench:
    """Turns files of rows into a file of examples, collecting what is wrong with rows on the way."""

    recipe: Recipe
    renderer: Renderer
    gate: LengthGate
    progress: Progress
    problems: list[Problem] = field(default_factory=list)
    problem_count: int = 0

    def write(self, files: Sequence[DataFile], path: Path, tally: _Tally) -> list[DataSource]:
        sources = []
        with RowWriter(path) as writer:
            for file in files:
                rows = 0
                for chunk in _chunks(read_rows(file)):
                    for row, example in self._examples(chunk):
                        for part in self.gate.admit(example):
                            self._check_ids(part)
                            writer.add(part)
                            tally.consider(row)
                            tally.count(part)
                    rows += len(chunk)
                    self.progress.advance(len(chunk))
                sources.append(DataSource(path=file.shown, sha256=file.sha256, rows=rows))
        return sources

    def refuse_problems(self) -> None:
        if not self.problems:
            return
        if (more := self.problem_count - len(self.problems)) > 0:
            self.problems.append(Problem(place="…", what=f"and {more:,} more rows like these"))
        rows = "1 row" if self.problem_count == 1 else f"{self.problem_count:,} rows"
        raise StageFailed(f"{rows} of the data cannot be used", retry=False, problems=self.problems)

    def _examples(self, chunk: list[Row | Problem]) -> Iterator[tuple[Row, Example]]:
        good = [each for each in chunk if isinstance(each, Row)]
        self._note_problems(each for each in chunk if isinstance(each, Problem))
        for row, example in zip(good, self.renderer.examples(good), strict=True):
            if isinstance(example, Problem):
                self._note_problems([example])
            else:
                yield row, example

    def _note_problems(self, problems: Iterator[Problem] | list[Problem]) -> None:
        for problem in problems:
            self.problem_count += 1
            if len(self.problems) < _MOST_PROBLEMS:
                self.problems.append(problem)

    def _check_ids(self, example: Example) -> None:
        highest = int(example.input_ids.max())
        if highest >= self.recipe.vocab_size:
            raise StageFailed(
                f"{example.source} has token {highest:,}, and the model knows {self.recipe.vocab_size:,} tokens "
                "(vocab_size in its config.json)",
                retry=False,
                hint="the tokenizer has tokens that the model lacks: use the folder as its maker published it, or, "
                "where tokens were added, resize_token_embeddings(len(tokenizer)) and save_pretrained first",
            )


def _chunks(rows: Iterator[Row | Problem]) -> Iterator[list[Row | Problem]]:
    while chunk := list(islice(rows, _ROWS_AT_ONCE)):
        yield chunk


def _split(recipe: Recipe, into: Path, tally: _Tally) -> np.ndarray:
    """Deal evaluation rows out of train.arrow; bool, one a row: it went to evaluation."""
    count = eval_count(len(tally.tokens), recipe.val_set_size)
    is_eval = choose_eval_rows(np.array(tally.digests, dtype=np.uint64), count)
    if is_eval.any():
        rows = into / "rows.arrow"
        (into / "train.arrow").rename(rows)
        split_rows(rows, is_eval, into / "train.arrow", into / "eval.arrow")
        rows.unlink()
    return is_eval


def _write_probes(path: Path, renderer: Renderer, train: _Tally, held_out: _Tally, is_eval: np.ndarray) -> None:
    """Up to four prompts from evaluation rows, or from training rows where there are none."""
    eval_digests = set(np.array(train.digests, dtype=np.uint64)[is_eval].tolist()) | set(held_out.digests)
    candidates = sorted(held_out.candidates or train.candidates, reverse=True)
    if eval_digests:
        candidates = [each for each in candidates if each[2].digest in eval_digests]
    openings = (renderer.opening(row) for _, _, row in candidates)
    probes = [
        {"prompt": opening.prompt, "prompt_ids": opening.prompt_ids, "reference": opening.reference}
        for opening in islice((opening for opening in openings if opening is not None), _PROBES)
    ]
    path.write_text(json.dumps(probes, ensure_ascii=False) + "\n")


def _nothing_left(gate: LengthGate) -> StageFailed:
    problems = [Problem(place=note.place, what=note.what) for note in gate.notes[:_MOST_PROBLEMS]]
    if len(gate.notes) > _MOST_PROBLEMS:
        problems.append(Problem(place="…", what="and so on: all rows"))
    return StageFailed("no row is left to train on", retry=False, problems=problems)


def _read_facts(folder: Path) -> DataFacts | None:
    try:
        found = read_record(folder / _FACTS, PreparedFacts)
    except Unreadable:
        return None
    return found.data if found else None
