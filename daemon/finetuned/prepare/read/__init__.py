"""Sets of rows read: which file it is, its records, and what each record says."""

from finetuned.prepare.read.content import Completion, Content, Conversation, Row, Text, Tokens
from finetuned.prepare.read.sets import DataFile, RowSet, look_through, read_rows

__all__ = [
    "Completion",
    "Content",
    "Conversation",
    "DataFile",
    "Row",
    "RowSet",
    "Text",
    "Tokens",
    "look_through",
    "read_rows",
]
