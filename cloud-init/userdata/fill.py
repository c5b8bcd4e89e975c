"""The template with everything in its place: text in, text out."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SeededFile:
    path: str
    text: str
    is_executable: bool = False


@dataclass(frozen=True)
class Request:
    """What the machine is to become."""

    settings: Mapping[str, Any]
    """Of /etc/finetuned/provision.json."""
    files: Sequence[SeededFile]
    authorized_keys: Sequence[str] = ()
    user: str | None = None


def fill(template: str, request: Request, files_packed: bool = False) -> str:
    """Replaces each line that is one @WORD@, keeping its indentation; a word that stands for nothing takes its line.

    `files_packed`: each file compressed by itself, for a user-data that is not compressed as a whole.
    """
    blocks = {
        "@ACCOUNTS@": accounts(request),
        "@SETTINGS@": json.dumps(request.settings, indent=1),
        "@FILES@": "\n".join(written_file(file, files_packed) for file in request.files),
    }
    lines: list[str] = []
    for line in template.splitlines():
        block = blocks.pop(line.strip(), None)
        lines += [line] if block is None else indented(block, line[: len(line) - len(line.lstrip())])
    assert not blocks, f"the template has no line for {', '.join(blocks)}"
    return "\n".join(lines) + "\n"


def indented(block: str, by: str) -> list[str]:
    return [f"{by}{line}" if line else "" for line in block.rstrip("\n").splitlines()]


def written_file(file: SeededFile, packed: bool) -> str:
    lines = [f"- path: {file.path}", *(["  permissions: '0755'"] if file.is_executable else [])]
    if packed:
        content = base64.b64encode(gzip.compress(file.text.encode(), 9, mtime=0)).decode()
        return "\n".join([*lines, "  encoding: gz+b64", f"  content: {content}"])
    return "\n".join([*lines, "  content: |", *indented(file.text, "    ")])


def accounts(request: Request) -> str:
    """Keys for the image's own user; and a user of the owner's choice beside it, without sudo."""
    keys = json.dumps(list(request.authorized_keys))
    lines = [f"ssh_authorized_keys: {keys}"] if request.authorized_keys else []
    if request.user:
        user = f"- name: {request.user}\n  shell: /bin/bash\n  lock_passwd: true"
        lines += ["users:", "- default", user, *([f"  ssh_authorized_keys: {keys}"] if request.authorized_keys else [])]
    return "\n".join(lines)
