"""No secret reaches the journal, and what is none stays readable."""

import pytest

from finetuned.core.redaction import HIDDEN, redacted, secrets_of

AWS = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("401 for hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345", "hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345"),
        ("key sk-proj-abc123DEF456ghi789 refused", "sk-proj-abc123DEF456ghi789"),
        ("id AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLE"),
        ("push with ghp_16C7e42F292c6912E7710c838347Ae178B4a", "ghp_16C7e42F292c6912E7710c838347Ae178B4a"),
        ("github_pat_11ABCDEFG0abcdefghij_klmnop", "github_pat_11ABCDEFG0abcdefghij_klmnop"),
        ("WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567", "0123456789abcdef0123456789abcdef01234567"),
        ("wandb: login with 0123456789abcdef0123456789abcdef01234567", "0123456789abcdef0123456789abcdef01234567"),
        ("https://user:pa55w0rd@example.org/x", "user:pa55w0rd"),
        ("s3://mytoken123@bucket/x", "mytoken123"),
        ("Authorization: Bearer abcdef.ghijkl-mnop", "abcdef.ghijkl-mnop"),
        ("authorization: bearer ABCDEFGHIJKL", "ABCDEFGHIJKL"),
        (f"aws_secret_access_key = {AWS}1", AWS),
        ('{"token": "0a1b2c3d4e5f6a7b"}', "0a1b2c3d4e5f6a7b"),
        ("GET /x?X-Amz-Signature=0a1b2c3d4e5f6a7b8c9d&y=1", "0a1b2c3d4e5f6a7b8c9d"),
        ("password: hunter2", "hunter2"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----", "MIIEow"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N", "eyJzdWIiOiIxMjM0In0"),
    ],
)
def test_known_forms_of_secrets_are_hidden(text: str, secret: str):
    assert secret in text
    assert secret not in redacted(text)
    assert HIDDEN in redacted(text)


@pytest.mark.parametrize(
    "text",
    [
        "job 20261130-221500-support-tone-7f3a09c1: launch 2: train on cuda:0",
        "step 120: step-00000120 is whole, 1,234,567 bytes in 1.2 s",
        "checkpoint belongs to another plan (0123456789ab, not ba9876543210)",
        "the model is pinned to 0123456789abcdef0123456789abcdef01234567",
        "https://huggingface.co/meta-llama/Llama-3.1-8B is gated",
        "added_tokens: <|im_start|> is there already",
        "tokenizer: /srv/finetuned/models/tokenizer-2.json cannot be loaded",
        "max_tokens: 1234567890123",
        "the token: something that no tokenizer knows",
    ],
)
def test_what_is_no_secret_is_left_as_it_is(text: str):
    assert redacted(text) == text


def test_the_contents_of_a_credential_are_hidden_wherever_they_turn_up():
    secrets = secrets_of("plainly a phrase\n")
    assert redacted("it said: plainly a phrase!", secrets) == f"it said: {HIDDEN}!"


def test_each_value_in_a_credential_of_several_lines_is_hidden_by_itself():
    secrets = secrets_of('endpoint = https://s3.example.org\nkey = "shortkey"\npair: other-value\nn = 5\n')
    assert redacted("shortkey, other-value at https://s3.example.org, n = 5", secrets) == (
        f"{HIDDEN}, {HIDDEN} at https://s3.example.org, n = 5"
    )
