"""The hub's token: a credential that systemd hands to this stage as a file, never a variable."""

import os
from pathlib import Path

from finetuned.host.settings import config_directory

_FROM_THE_ENVIRONMENT = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


def use_hub_credential() -> None:
    """Have the hub's client read $CREDENTIALS_DIRECTORY/hub_token where it is there. Before it is imported."""
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    if folder is None or not (path := Path(folder, "hub_token")).is_file():
        return
    os.environ["HF_TOKEN_PATH"] = str(path)
    for name in _FROM_THE_ENVIRONMENT:  # It would be preferred.
        os.environ.pop(name, None)


def how_to_log_in() -> str:
    """What a person has to do so that this stage has a login, as in "to see it, …"."""
    credentials = config_directory() / "credentials"
    if credentials.is_dir():
        return f"put a token into {credentials}/hub_token as root, and run deploy/install again"
    return "set HF_TOKEN for the service, or `hf auth login` as its user"
