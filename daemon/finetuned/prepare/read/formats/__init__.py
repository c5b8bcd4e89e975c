"""From a record under our names to what it says: one function a format. Nothing is guessed; Malformed says why not."""

from collections.abc import Callable, Mapping
from typing import Any

from finetuned.host.data.rowkind import RowKind
from finetuned.prepare.read.content import Content
from finetuned.prepare.read.formats.alpaca import read_alpaca
from finetuned.prepare.read.formats.chat import read_chat
from finetuned.prepare.read.formats.plain import read_text
from finetuned.prepare.read.formats.prompt_completion import read_prompt_completion
from finetuned.prepare.read.formats.sharegpt import read_sharegpt
from finetuned.prepare.read.formats.tokenized import read_tokenized

READERS: Mapping[RowKind, Callable[[dict[str, Any]], Content]] = {
    "chat": read_chat,
    "sharegpt": read_sharegpt,
    "alpaca": read_alpaca,
    "prompt_completion": read_prompt_completion,
    "text": read_text,
    "tokenized": read_tokenized,
}
