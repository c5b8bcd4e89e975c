"""Text without secrets: known forms of tokens, and what is known to be one."""

import re
from collections.abc import Iterable

HIDDEN = "[secret]"
_LEAST_CHARACTERS = 8
"""Of a credential's line or value that is looked for by itself; less would hide ordinary words."""

_FORMS = (
    re.compile(r"\bhf_[A-Za-z0-9]{8,}"),
    re.compile(r"\bapi_org_[A-Za-z0-9]{8,}"),
    re.compile(r"\bsk-[A-Za-z0-9_-]{8,}"),
    re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{8,}|github_pat_[A-Za-z0-9_]{8,}|glpat-[A-Za-z0-9_-]{8,})"),
    re.compile(r"\bxox[abeprs]-[A-Za-z0-9-]{8,}"),
    re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+"),
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
)
"""Hugging Face, OpenAI and its kin, AWS, GitHub, GitLab, Slack, JSON web tokens, private keys."""
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}")
_USERINFO = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^/\s@]+@")
_NAMED = re.compile(
    r"""(?ix)
    ( (?: key | secret | token | credential | signature ) ["']? \s* [=:] \s* ["']? )
    (?= [^\s"']* \d )  # Words have no digits; what a message says of a token or a key stays readable.
    [a-z0-9+/_.~=%-]{12,}
    """
)
"""A value after a word that says what it is, as in `WANDB_API_KEY=…`, `"token": "…"` and `X-Amz-Signature=…`."""
_PASSWORD = re.compile(r"(?i)((?:password|passwd|passphrase)[\"']?\s*[=:]\s*[\"']?)[^\s\"',;&}]+")
_HEX_AFTER_NAME = re.compile(r"(?i)(\b(?:wandb|api[ _-]?key)\b[^\n]{0,20}?)\b[0-9a-f]{40}\b")


def redacted(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` with every secret in it replaced; `secrets`: known ones (see `secrets_of`)."""
    # Longest first: a credential may be a part of another.
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    for form in _FORMS:
        text = form.sub(HIDDEN, text)
    text = _USERINFO.sub(rf"\1{HIDDEN}@", text)
    text = _BEARER.sub(rf"\1 {HIDDEN}", text)
    text = _NAMED.sub(rf"\1{HIDDEN}", text)
    text = _PASSWORD.sub(rf"\1{HIDDEN}", text)
    return _HEX_AFTER_NAME.sub(rf"\1{HIDDEN}", text)


def secrets_of(content: str) -> frozenset[str]:
    """What of a credential file may turn up in a text: all of it, each line, and each value after a name."""
    found = {content.strip()}
    for line in content.splitlines():
        found.add(line.strip())
        _name, separator, value = line.partition("=" if "=" in line else ":")
        if separator:
            found.add(value.strip().strip("\"',"))
    return frozenset(secret for secret in found if len(secret) >= _LEAST_CHARACTERS and "://" not in secret[:10])
