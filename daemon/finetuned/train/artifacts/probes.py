"""The held-out prompts that prepare set apart: what is asked before and after, and what the export is compared on."""

from pathlib import Path
from typing import Any, Protocol

from pydantic import TypeAdapter

from finetuned.core.record import Record

PROOF_TOKENS = 256
"""Enough to see a wrong weight; the logits of a longer row of a 150,000 word vocabulary would take gigabytes."""


class Encodes(Protocol):
    """The part of a tokenizer that a probe needs."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...


class Probe(Record):
    """One prompt and the answer that the data gives."""

    prompt: str
    """As people read it."""
    prompt_ids: tuple[int, ...]
    """Rendered up to where the model is to go on."""
    reference: str
    messages: tuple[dict[str, Any], ...] | None = None
    """The chat up to the model's turn, as its template takes it; None where the prompt is no chat."""
    tools: tuple[dict[str, Any], ...] | None = None
    chat_template: str | None = None
    """What to render `messages` with where that is not the saved template: one whose date stands still."""

    def row(self, tokenizer: Encodes) -> list[int]:
        """Token ids of prompt and reference, at most PROOF_TOKENS: what trained and exported model both read."""
        answer = tokenizer.encode(self.reference, add_special_tokens=False)
        return [*self.prompt_ids, *answer][:PROOF_TOKENS]


def read_probes(path: Path) -> tuple[Probe, ...]:
    """The probes in `probes.json`. Raises OSError where there is no such file."""
    return TypeAdapter(tuple[Probe, ...]).validate_json(path.read_bytes())
