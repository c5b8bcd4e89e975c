"""The tokenizer that rows are encoded with: the base model's, with the job's new tokens."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from finetuned.core.problems import Problem, StageFailed
from finetuned.host.tokenizer import TokensUnusable, load_tokenizer


def open_tokenizer(folder: Path, added: Sequence[str] = (), added_special: Sequence[str] = ()) -> Any:
    """Raises StageFailed (no retry) for a tokenizer that is damaged or slow, or that has a new token already."""
    try:
        tokenizer = load_tokenizer(folder, added, added_special)
    except TokensUnusable as error:
        problem = Problem(place="added_tokens", what=str(error), hint="leave out what is there already")
        raise StageFailed("the new tokens cannot be added", retry=False, problems=[problem]) from error
    except Exception as error:  # Tokenizers raise bare Exceptions from Rust for a damaged tokenizer.json.
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise StageFailed(f"the tokenizer in {folder} cannot be loaded: {first_line}", retry=False) from error
    if not tokenizer.is_fast:
        raise StageFailed(
            f"{folder} has only a slow tokenizer, which cannot say where its tokens stand in the text",
            retry=False,
            hint="add the model's tokenizer.json",
        )
    return tokenizer


def known_tokens(vocab_size: int, tokenizer: Any, new: Sequence[str]) -> int:
    """How many ids the model will know: its embeddings grow where `new` tokens come behind them, and never shrink."""
    return max(vocab_size, len(tokenizer)) if new else vocab_size
