"""preview.txt: what the model will see and learn of the first rows, for a person to read before the GPU is taken."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from finetuned.core.plan import DataFacts
from finetuned.core.spec import JobSpec
from finetuned.prepare.prepared.rowfile import first_rows

_ROWS = 3
_MOST_TOKENS = 600
_MOST_NOTES = 20
KEY = "What is learned stands between ⟦ and ⟧"


def preview(spec: JobSpec, facts: DataFacts, folder: Path, tokenizer: Any) -> str:
    """The text of preview.txt; `folder` holds the prepared rows."""
    return "\n".join(_lines(spec, facts, folder, tokenizer)) + "\n"


def _lines(spec: JobSpec, facts: DataFacts, folder: Path, tokenizer: Any) -> Iterator[str]:
    yield f"train  {_counts(facts.train_rows, facts.train_tokens, facts.train_target_tokens)}"
    yield f"eval   {_counts(facts.eval_rows, facts.eval_tokens, facts.eval_target_tokens)}"
    yield (
        f"tokens a row: p50 {facts.p50_tokens:,}, p99 {facts.p99_tokens:,}, longest {facts.longest_tokens:,}; "
        f"max_seq_length {facts.max_seq_length:,}"
    )
    yield from touched_lines(facts)
    yield f"learned: {what_is_learned(spec, has_chats=facts.chat_template is not None)}"
    yield f"generation stops on: {stops_line(facts.stop_token_ids, tokenizer)}"
    if facts.dropped:
        yield "\nRows that were dropped or changed:"
        yield from (f"  {note.place}  {note.what}" for note in facts.dropped[:_MOST_NOTES])
        if len(facts.dropped) > _MOST_NOTES:
            yield f"  … and {len(facts.dropped) - _MOST_NOTES:,} more in facts.json; the prepared folder lists all"
    yield f"\nThe beginning of the training data, {count_rows(min(_ROWS, facts.train_rows))}."
    yield f"{KEY}, and in lines that begin with >."
    for source, input_ids, is_target in first_rows(folder / "train.arrow", _ROWS):
        yield from row_lines(source, input_ids, is_target, tokenizer, with_tokens=True)


def touched_lines(facts: DataFacts) -> Iterator[str]:
    """What became of rows that are not trained on as they came, in one line; none where all are."""
    too_long = facts.dropped_rows - facts.rows_without_targets
    found = (
        (too_long, "dropped for their length"),
        (facts.rows_without_targets, "dropped for having nothing to learn"),
        (facts.truncated_rows, "cut"),
        (facts.weighted_out_rows, "left out for the weight of their set"),
        (facts.duplicate_rows, "equal to an earlier one"),
    )
    if said := [f"{count:,} {what}" for count, what in found if count > 0]:
        yield f"rows: {', '.join(said)}"


def what_is_learned(spec: JobSpec, *, has_chats: bool) -> str:
    if spec.train_on_inputs or spec.method == "pretrain":
        return "everything but the first token of a row"
    plain = "texts, and completions without their prompts, each with its end"
    return f"the turns of {', '.join(spec.roles_to_train)}, each with its end" if has_chats else plain


def stops_line(stops: Sequence[int], tokenizer: Any) -> str:
    return ", ".join(f"{_spell(tokenizer, token)} ({token})" for token in stops) or "nothing"


def row_lines(
    source: str, input_ids: list[int], is_target: list[bool], tokenizer: Any, *, with_tokens: bool
) -> Iterator[str]:
    """A row as text with what is learned of it marked, and token by token."""
    yield f"\n{'=' * 8} {source}: {len(input_ids):,} tokens, {sum(is_target):,} learned"
    yield _marked(input_ids[:_MOST_TOKENS], is_target[:_MOST_TOKENS], tokenizer)
    if with_tokens:
        yield f"\n{'position':>10} {'id':>7}  token"
        for position, (token, learned) in enumerate(zip(input_ids[:_MOST_TOKENS], is_target, strict=False)):
            yield f"{'>' if learned else ' '}{position:>9} {token:>7}  {_spell(tokenizer, token)}"
    if len(input_ids) > _MOST_TOKENS:
        yield f"… and {len(input_ids) - _MOST_TOKENS:,} more tokens, {sum(is_target[_MOST_TOKENS:]):,} of them learned"


def _marked(input_ids: list[int], is_target: list[bool], tokenizer: Any) -> str:
    """The row as text, learned stretches between ⟦ and ⟧."""
    pieces = []
    start = 0
    for end in range(1, len(input_ids) + 1):
        if end < len(input_ids) and is_target[end] == is_target[start]:
            continue
        text = tokenizer.decode(input_ids[start:end], clean_up_tokenization_spaces=False)
        pieces.append(f"⟦{text}⟧" if is_target[start] else text)
        start = end
    return "".join(pieces)


def _spell(tokenizer: Any, token: int) -> str:
    """One token as Python would write it; a piece of a character in the tokenizer's own alphabet."""
    text = tokenizer.decode([token], clean_up_tokenization_spaces=False)
    return repr(tokenizer.convert_ids_to_tokens(token) if "�" in text else text)


def _counts(rows: int, tokens: int, targets: int) -> str:
    share = f" ({targets / tokens:.1%})" if tokens else ""
    return f"{count_rows(rows)}, {tokens:,} tokens, {targets:,} of them learned{share}"


def count_rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"
