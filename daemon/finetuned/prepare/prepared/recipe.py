"""Everything that shapes prepared rows, and the name that follows from it."""

import hashlib
import json
from dataclasses import dataclass
from typing import Literal

import pyarrow
import tokenizers
import transformers

from finetuned.core.plan import ModelFile
from finetuned.prepare.read import RowSet

_CODE_VERSION = 3
"""Raised whenever the same input gives other rows."""


@dataclass(frozen=True)
class Recipe:
    train: tuple[RowSet, ...]
    held_out: tuple[RowSet, ...]
    """Sets for evaluation; where there are none, `val_set_size` splits rows off."""
    val_set_size: float | None
    method: Literal["sft", "pretrain"]
    max_seq_length: int
    excess_length_strategy: Literal["drop", "truncate", "error"]
    max_dropped_ratio: float
    deduplicate: bool
    train_on_inputs: bool
    roles_to_train: tuple[str, ...]
    chat_template: str | None
    stop_token_ids: tuple[int, ...]
    added_tokens: tuple[str, ...]
    added_special_tokens: tuple[str, ...]
    vocab_size: int
    """Of the model that is trained: with the added tokens."""
    positions: int
    """The most tokens that the model can place."""
    tokenizer_files: tuple[ModelFile, ...]
    """Every small file of the model: what transformers may look at when it encodes."""

    @property
    def name(self) -> str:
        """The name of the folder: a hash over all of the above and the code that reads it."""
        key = {
            "code": [_CODE_VERSION, transformers.__version__, tokenizers.__version__, pyarrow.__version__],
            "train": [rows.key for rows in self.train],
            "held_out": [rows.key for rows in self.held_out],
            "tokenizer": sorted([file.path, file.sha256] for file in self.tokenizer_files),
            "rest": [
                self.val_set_size,
                self.method,
                self.max_seq_length,
                self.excess_length_strategy,
                # Of the same rows a smaller ratio may fail what a larger one lets pass.
                self.max_dropped_ratio,
                self.deduplicate,
                self.train_on_inputs,
                self.roles_to_train,
                self.chat_template,
                self.stop_token_ids,
                self.added_tokens,
                self.added_special_tokens,
                self.vocab_size,
            ],
        }
        return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
