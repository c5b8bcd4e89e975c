"""The machine owner's choices: CONFIG/finetuned.yaml → Settings. Every setting has a default."""

import difflib
import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError


class InvalidSettings(Exception):
    """The settings file cannot be used; the message names file, setting and what was expected."""


class Settings(BaseModel):
    """What `finetuned.yaml` may say."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cpu_slots: int = Field(1, ge=1, description="Runs at once on a machine without a GPU.")
    prepare_slots: int = Field(4, ge=1, description="Jobs prepared at once; each takes about half a GB of memory.")
    cpu_threads: int | None = Field(None, ge=1, description="Threads of a run on the CPU; all cores when absent.")
    turn_seconds: float = Field(2.0, gt=0, description="Pause between two turns when nothing rings the doorbell.")
    file_settle_seconds: float = Field(2.0, ge=0, description="A dropped file must look the same for this long.")
    folder_settle_seconds: float = Field(60.0, ge=0, description="A dropped folder without READY must rest this long.")
    arriving_seconds: float = Field(60.0, ge=0, description="A parse error of a younger file means: still arriving.")
    stop_timeout_seconds: float = Field(300.0, gt=0, description="From SIGTERM to SIGKILL; fits one checkpoint.")
    hang_minutes: float = Field(
        10.0,
        gt=0,
        description="A step or a save without progress for this long (a step: and for 20 usual ones) has hung.",
    )
    network_retry_minutes: float = Field(120.0, ge=0, description="How long prepare keeps trying a failing network.")
    gguf_converter: str | None = Field(
        None,
        description="Command or path of llama.cpp's convert_hf_to_gguf.py; looked for on PATH when absent.",
    )
    gguf_quantizer: str | None = Field(
        None, description="Command or path of llama.cpp's llama-quantize; looked for on PATH when absent."
    )
    gguf_minutes: float = Field(120.0, gt=0, description="A conversion to GGUF that takes longer is given up.")


def config_directory() -> Path:
    return Path(os.environ.get("FINETUNED_CONFIG", "/etc/finetuned"))


def default_spool() -> Path:
    """FINETUNED_SPOOL, else /var/spool/finetuned if it exists, else ~/.local/state/finetuned."""
    if named := os.environ.get("FINETUNED_SPOOL"):
        return Path(named)
    server = Path("/var/spool/finetuned")
    return server if server.exists() else Path.home() / ".local/state/finetuned"


def read_settings(directory: Path) -> Settings:
    """The settings in `directory`; all defaults when it has no finetuned.yaml. Raises InvalidSettings."""
    path = directory / "finetuned.yaml"
    try:
        text = path.read_text()
    except FileNotFoundError:
        return Settings()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"{path}: {error}") from error
    try:
        return Settings.model_validate(YAML(typ="safe", pure=True).load(text) or {})
    except YAMLError as error:
        raise InvalidSettings(f"{path}: {error}") from error
    except ValidationError as error:
        lines = [_in_words(".".join(map(str, each["loc"])), each) for each in error.errors()]
        raise InvalidSettings("\n  ".join([f"{path}:", *lines])) from error


def _in_words(setting: str, mistake: ErrorDetails) -> str:
    if mistake["type"] != "extra_forbidden":
        return f"{setting}: {mistake['msg']}, found {mistake['input']!r}"
    near = difflib.get_close_matches(setting, Settings.model_fields, n=1)
    return f"{setting}: is not a known setting{f'; did you mean {near[0]}?' if near else ''}"
