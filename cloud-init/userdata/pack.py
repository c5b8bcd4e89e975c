"""Text to the bytes that a cloud is given, and back; and what the clouds take."""

from __future__ import annotations

import base64
import email.message
import email.policy
import gzip
from collections.abc import Callable
from dataclasses import dataclass

BUDGET_BYTES = 15 * 1024
"""AWS takes 16 KB, and somebody may want to add a few lines."""
GZIP_MAGIC = b"\x1f\x8b"
POLICY = email.policy.SMTP.clone(linesep="\n")


def pack(cloud_config: str, compress: bool = True) -> bytes:
    """MIME multipart with one part, compressed; the same bytes for the same text, on whichever day."""
    part = email.message.EmailMessage(POLICY)
    part.set_content(cloud_config, subtype="cloud-config", charset="utf-8", cte="8bit")
    whole = email.message.EmailMessage(POLICY)
    whole["MIME-Version"] = "1.0"
    whole["Content-Type"] = 'multipart/mixed; boundary="==finetuned-user-data=="'
    whole.attach(part)
    plain = whole.as_bytes()
    return gzip.compress(plain, 9, mtime=0) if compress else plain


def unpack(data: bytes) -> list[str]:
    """The cloud-config parts, as cloud-init takes them out. Raises ValueError where it would find none."""
    plain = gzip.decompress(data) if data.startswith(GZIP_MAGIC) else data
    message = email.message_from_bytes(plain, email.message.EmailMessage, policy=POLICY)
    parts = [str(part.get_content()) for part in message.walk() if part.get_content_type() == "text/cloud-config"]
    if not message.is_multipart() or not parts:
        raise ValueError("no multipart message with a text/cloud-config part")
    return parts


def raw(data: bytes) -> int:
    return len(data)


def in_base64(data: bytes) -> int:
    return len(base64.b64encode(data))


@dataclass(frozen=True)
class Limit:
    cloud: str
    limit_bytes: int
    measured: Callable[[bytes], int]
    how: str


LIMITS = (
    Limit("AWS", 16384, raw, "before base64"),
    Limit("OpenStack, OVH, Hyperstack", 65535, in_base64, "after base64"),
    Limit("Azure (custom data)", 65535, raw, "before base64"),
    Limit("GCP (user-data)", 262144, in_base64, "after base64, with user-data-encoding: base64"),
    Limit("Lambda", 1048576, raw, "by a third party's word"),
)
"""Nebius and Scaleway name none."""
