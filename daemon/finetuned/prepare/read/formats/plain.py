"""`text`: plain text, all of which is learned."""

from typing import Any

from finetuned.prepare.read.content import Text
from finetuned.prepare.read.formats.values import string


def read_text(row: dict[str, Any]) -> Text:
    return Text(string(row, "text"))
