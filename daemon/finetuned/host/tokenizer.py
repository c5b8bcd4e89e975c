"""The tokenizer of a base model with a job's new tokens: what prepare renders with and the worker exports."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any


class TokensUnusable(Exception):
    """The new tokens cannot be added; the message says which and why."""


def load_tokenizer(folder: Path, added: Sequence[str] = (), added_special: Sequence[str] = ()) -> Any:
    """The tokenizer in `folder`, grown by `added` and then by `added_special`, in this order, after its own ids.

    Raises TokensUnusable for a token that it has already or that is named twice, and whatever transformers raises for a
    damaged one.
    """
    from transformers import AutoTokenizer  # Here, because nothing else that imports host needs it.

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    new = (*added, *added_special)
    if not new:
        return tokenizer
    if unclear := [token for token in new if not token or new.count(token) > 1]:
        raise TokensUnusable(f"{unclear[0]!r}: every new token needs a text of its own")
    known = tokenizer.get_vocab()
    if present := [token for token in new if token in known]:
        raise TokensUnusable(f"{', '.join(map(repr, present))}: the tokenizer has this token already")
    tokenizer.add_tokens(list(added))
    tokenizer.add_tokens(list(added_special), special_tokens=True)
    ids = token_ids(tokenizer, new)
    if ids != list(range(len(tokenizer) - len(new), len(tokenizer))):
        # Whoever loads the adapter makes room for as many rows as there are tokens.
        raise TokensUnusable(
            f"the tokenizer leaves gaps between its ids: its {len(tokenizer):,} tokens reach up to id {max(ids):,}"
        )
    return tokenizer


def token_ids(tokenizer: Any, tokens: Sequence[str]) -> list[int]:
    """The id of each token."""
    return [int(tokenizer.convert_tokens_to_ids(token)) for token in tokens]
