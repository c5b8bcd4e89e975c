"""What must never be in a user-data, told by how it looks."""

from __future__ import annotations

import re

PATTERNS = {
    "a Hugging Face token": r"\bhf_[A-Za-z0-9]{16,}",
    "an AWS access key": r"\b(AKIA|ASIA)[0-9A-Z]{16}\b",
    "an API key (sk-...)": r"\bsk-(?!ssh-|ecdsa-)[A-Za-z0-9_-]{16,}",
    "a GitHub token": r"\b(gh[opsu]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,})",
    "a GitLab token": r"\bglpat-[A-Za-z0-9_-]{16,}",
    "a Slack token": r"\bxox[abeprs]-[A-Za-z0-9-]{10,}",
    "a Google API key": r"\bAIza[0-9A-Za-z_-]{30,}",
    "a private key": r"-----BEGIN [A-Z ]*PRIVATE KEY",
    "a signed token (JWT)": r"\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.",
    "a password in an address": r"://[^/\s:@]+:[^/\s@]+@",
    "a signed address": r"[?&](X-Amz-Signature|X-Goog-Signature|sig|Signature|AWSAccessKeyId|token|access_token)=",
}


def find_secret(text: str) -> str | None:
    """What kind of secret the text seems to hold; never the secret itself."""
    return next((kind for kind, pattern in PATTERNS.items() if re.search(pattern, text)), None)
