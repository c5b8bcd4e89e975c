"""Prepared rows in the store: built aside, reused when they stand there whole."""

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np

from finetuned.core.plan import DataFacts, DataSource
from finetuned.core.problems import Problem, StageFailed
from finetuned.core.record import Record
from finetuned.host.jobdir import Unreadable, read_record, write_record
from finetuned.host.stage import StageRun
from finetuned.host.store import Store, hash_files, seal
from finetuned.prepare.prepared.lengths import LengthGate, percentile
from finetuned.prepare.prepared.recipe import Recipe
from finetuned.prepare.prepared.rowfile import RowWriter, deal_rows, places
from finetuned.prepare.prepared.tally import Deal, Tally, deal
from finetuned.prepare.prepared.touched import TouchedRows
from finetuned.prepare.progress import Progress
from finetuned.prepare.read import Row, RowSet, read_rows
from finetuned.prepare.read.content import size_of
from finetuned.prepare.render.openings import open_row
from finetuned.prepare.render.renderer import Example, Renderer

_ROWS_AT_ONCE = 200
_CHARACTERS_AT_ONCE = 1 << 20
_MOST_PROBLEMS = 20
_PROBES = 4
_FACTS = "facts.json"
_TOUCHED = "touched.jsonl"


class PreparedFacts(Record):
    """facts.json of a prepared folder."""

    format: Literal[1] = 1
    data: DataFacts
    notices: tuple[str, ...] = ()
    """What a person should know of how the rows were read and rendered."""


def obtain_rows(recipe: Recipe, renderer: Renderer, store: Store, run: StageRun) -> PreparedFacts:
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
        with TouchedRows(partial / _TOUCHED) as touched:
            facts = _build(recipe, renderer, partial, touched, run)
        write_record(partial / _FACTS, facts)
        seal(partial, final, tuple(hash_files(partial, sorted(path.name for path in partial.iterdir()))))
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return facts


def _build(recipe: Recipe, renderer: Renderer, into: Path, touched: TouchedRows, run: StageRun) -> PreparedFacts:
    gate = LengthGate(
        max_seq_length=recipe.max_seq_length,
        strategy=recipe.excess_length_strategy,
        cuts_text=recipe.method == "pretrain",
        positions=recipe.positions,
        max_dropped_ratio=recipe.max_dropped_ratio,
        touched=touched,
    )
    bench = _Bench(recipe, renderer, gate, Progress(run, "reading", "rows", _row_count(recipe)))
    train, held_out = Tally(), Tally()
    bench.write(recipe.train, into / "train.arrow", train)
    weights = list(zip(bench.examples_of_sets, (rows.dataset.weight for rows in recipe.train), strict=True))
    if recipe.held_out:
        bench.write(recipe.held_out, into / "eval.arrow", held_out)
    bench.refuse_problems()
    gate.close()
    if not train.tokens:
        raise _nothing_left(touched)
    dealt = deal(train, weights, 0 if recipe.held_out else recipe.val_set_size, deduplicate=recipe.deduplicate)
    _write_deal(dealt, into, touched, deduplicate=recipe.deduplicate)
    if recipe.held_out and not held_out.tokens:
        (into / "eval.arrow").unlink()
    _write_probes(into / "probes.json", renderer, train, held_out, dealt.is_eval)
    data = _facts(recipe, train, held_out, dealt, gate, tuple(bench.sources))
    notices = (*renderer.notices(), *_leaks(train, held_out, dealt), *_fewer_held_out(recipe, dealt))
    return PreparedFacts(data=data, notices=notices)


def _facts(
    recipe: Recipe, train: Tally, held_out: Tally, dealt: Deal, gate: LengthGate, sources: tuple[DataSource, ...]
) -> DataFacts:
    tokens, targets = np.array(train.tokens, dtype=np.int64), np.array(train.targets, dtype=np.int64)
    all_lengths = train.tokens + held_out.tokens
    return DataFacts(
        prepared=recipe.name,
        sources=sources,
        train_rows=int(dealt.copies.sum()),
        eval_rows=int(dealt.is_eval.sum()) + len(held_out.tokens),
        train_tokens=int((tokens * dealt.copies).sum()),
        train_target_tokens=int((targets * dealt.copies).sum()),
        eval_tokens=int(tokens[dealt.is_eval].sum()) + sum(held_out.tokens),
        eval_target_tokens=int(targets[dealt.is_eval].sum()) + sum(held_out.targets),
        longest_tokens=max(all_lengths),
        p50_tokens=percentile(all_lengths, 50),
        p99_tokens=percentile(all_lengths, 99),
        max_seq_length=recipe.max_seq_length,
        over_long_rows=gate.over_long,
        dropped_rows=gate.dropped,
        truncated_rows=gate.truncated,
        rows_without_targets=gate.without_targets,
        duplicate_rows=dealt.duplicate_rows,
        weighted_out_rows=dealt.weighted_out_rows,
        dropped=gate.touched.first(),
        chat_template=recipe.chat_template,
        stop_token_ids=recipe.stop_token_ids,
    )


@dataclass
class _Bench:
    """Turns sets of rows into files of examples, collecting what is wrong with rows on the way."""

    recipe: Recipe
    renderer: Renderer
    gate: LengthGate
    progress: Progress
    sources: list[DataSource] = field(default_factory=list)
    examples_of_sets: list[int] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    problem_count: int = 0

    def write(self, sets: Sequence[RowSet], path: Path, tally: Tally) -> None:
        with RowWriter(path) as writer:
            for rows in sets:
                before = len(tally.tokens)
                counts = dict.fromkeys((file.shown for file in rows.files), 0)
                for chunk in _chunks(read_rows(rows)):
                    for row, example in self._examples(chunk):
                        parts = self.gate.admit(example)
                        for part in parts:
                            self._check_ids(part)
                            writer.add(part)
                        tally.count(row, parts)
                    for each in chunk:
                        counts[each.place.rpartition(":")[0]] += 1
                    self.progress.advance(len(chunk))
                self.sources += [
                    DataSource(path=file.shown, sha256=file.sha256, rows=counts[file.shown]) for file in rows.files
                ]
                self.examples_of_sets.append(len(tally.tokens) - before)

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
        if highest < self.recipe.vocab_size:
            return
        raise StageFailed(
            f"{example.source} has token {highest:,}, and the model knows {self.recipe.vocab_size:,} tokens "
            "(vocab_size in its config.json)",
            retry=False,
            hint="the tokenizer has tokens that the model lacks: use the folder as its maker published it, or, "
            "where tokens were added, resize_token_embeddings(len(tokenizer)) and save_pretrained first",
        )


def _row_count(recipe: Recipe) -> int | None:
    counts = [rows.rows for rows in (*recipe.train, *recipe.held_out)]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _chunks(rows: Iterator[Row | Problem]) -> Iterator[list[Row | Problem]]:
    """Enough at once to keep the tokenizer busy; few where rows are large."""
    chunk: list[Row | Problem] = []
    characters = 0
    for row in rows:
        chunk.append(row)
        characters += size_of(row.content) if isinstance(row, Row) else 0
        if len(chunk) >= _ROWS_AT_ONCE or characters >= _CHARACTERS_AT_ONCE:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def _write_deal(dealt: Deal, into: Path, touched: TouchedRows, *, deduplicate: bool) -> None:
    """Take out of train.arrow what is not trained on, and repeat what is trained on more than once."""
    if dealt.leaves_as_is:
        return
    rows = into / "rows.arrow"
    (into / "train.arrow").rename(rows)
    deal_rows(rows, dealt.copies, dealt.is_eval, into / "train.arrow", into / "eval.arrow")
    if deduplicate:
        for place in places(rows, dealt.is_repeated):
            touched.note(place, "dropped: an earlier row says exactly the same")
    rows.unlink()


def _write_probes(path: Path, renderer: Renderer, train: Tally, held_out: Tally, is_eval: np.ndarray) -> None:
    """Up to four prompts from evaluation rows, or from training rows where there are none."""
    candidates = [row for _, _, row in sorted(held_out.candidates or train.candidates, reverse=True)]
    eval_digests = np.concatenate([train.all_digests()[is_eval], held_out.all_digests()])
    if len(eval_digests):
        candidates = [row for row in candidates if (eval_digests == np.uint64(row.digest)).any()]
    openings = (open_row(row, renderer) for row in candidates)
    probes = [asdict(opening) for opening in islice((each for each in openings if each is not None), _PROBES)]
    path.write_text(json.dumps(probes, ensure_ascii=False) + "\n")


def _leaks(train: Tally, held_out: Tally, dealt: Deal) -> Iterator[str]:
    """Evaluation on what was trained on says little."""
    both = int(np.isin(held_out.all_digests(), train.all_digests()[dealt.copies > 0]).sum())
    if both:
        rows = "1 evaluation row is" if both == 1 else f"{both:,} of {len(held_out.tokens):,} evaluation rows are"
        yield f"{rows} trained on as well, word for word: eval_loss will look better than it is"


def _fewer_held_out(recipe: Recipe, dealt: Deal) -> Iterator[str]:
    kept = int(dealt.is_eval.sum())
    if kept >= dealt.eval_wanted:
        return
    rows = "no row is" if kept == 0 else "1 row is" if kept == 1 else f"{kept:,} rows are"
    asked = "" if recipe.val_set_size is None else f" (val_set_size {recipe.val_set_size:g})"
    hint = "" if recipe.deduplicate else "; deduplicate: true keeps one of those that say the same"
    yield (
        f"{rows} kept for evaluation instead of {dealt.eval_wanted:,}{asked}: rows that say the same, and the parts "
        f"of one long text, stay on one side; the smallest group has {dealt.smallest_group:,}{hint}"
    )


def _nothing_left(touched: TouchedRows) -> StageFailed:
    notes = touched.first()
    problems = [Problem(place=note.place, what=note.what) for note in notes[:_MOST_PROBLEMS]]
    if len(notes) > _MOST_PROBLEMS:
        problems.append(Problem(place="…", what="and so on: all rows"))
    return StageFailed("no row is left to train on", retry=False, problems=problems)


def _read_facts(folder: Path) -> PreparedFacts | None:
    try:
        return read_record(folder / _FACTS, PreparedFacts)
    except Unreadable:
        return None
