"""The programs of llama.cpp that write GGUF files: which of them a type needs, and whether this machine has them."""

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from finetuned.core.problems import Problem
from finetuned.host.settings import InvalidSettings, Settings, config_directory, read_settings

CONVERTERS = ("convert_hf_to_gguf.py", "convert-hf-to-gguf")
QUANTIZERS = ("llama-quantize",)
_DIRECT = ("f32", "f16", "bf16", "q8_0")
"""Types that the converter writes itself; every other one is quantized from f16."""


class NoProgram(Exception):
    """A program is not there; the message says what was looked for and where, the hint what to do."""

    def __init__(self, what: str, hint: str):
        self.hint = hint
        super().__init__(what)


@dataclass(frozen=True)
class GgufPrograms:
    """Commands to run; `quantizer` is None where the type needs none."""

    converter: tuple[str, ...]
    quantizer: tuple[str, ...] | None

    @classmethod
    def find(cls, gguf_type: str, settings: Settings) -> "GgufPrograms":
        """Raises NoProgram."""
        converter = _find("gguf_converter", settings.gguf_converter, CONVERTERS)
        if gguf_type in _DIRECT:
            return cls(converter, None)
        return cls(converter, _find("gguf_quantizer", settings.gguf_quantizer, QUANTIZERS))

    def commands(self, gguf_type: str, model: Path, into: Path) -> tuple[tuple[str, ...], ...]:
        """What to run, in turn, so that `into` becomes a GGUF file of that type."""
        if self.quantizer is None:
            return ((*self.converter, str(model), "--outfile", str(into), "--outtype", gguf_type),)
        between = into.with_name(f"f16.{into.name}")
        return (
            (*self.converter, str(model), "--outfile", str(between), "--outtype", "f16"),
            (*self.quantizer, str(between), str(into), gguf_type.upper()),
        )


def gguf_problems(gguf_type: str) -> Iterator[Problem]:
    """Why this machine cannot write GGUF files of that type; nothing for "none"."""
    if gguf_type == "none":
        return
    try:
        GgufPrograms.find(gguf_type, read_settings(config_directory()))
    except NoProgram as error:
        yield Problem(place="export.gguf", what=str(error), hint=error.hint)
    except InvalidSettings as error:
        yield Problem(place="export.gguf", what=str(error))


def _find(setting: str, named: str | None, usual: tuple[str, ...]) -> tuple[str, ...]:
    place = config_directory() / "finetuned.yaml"
    if named is None:
        for name in usual:
            if found := shutil.which(name):
                return (found,)
        raise NoProgram(
            f"needs llama.cpp's {usual[0]}; neither is {setting} set in {place}, nor is {' or '.join(usual)} on PATH "
            f"({os.environ.get('PATH', '')})",
            f"install llama.cpp and set {setting} to its path in {place}, or leave out export.gguf",
        )
    try:
        command = shlex.split(named)
    except ValueError:
        command = []
    if command and (found := shutil.which(command[0])):
        return (found, *command[1:])
    if len(command) == 1 and command[0].endswith(".py") and os.access(command[0], os.R_OK):
        return (sys.executable, command[0])
    raise NoProgram(
        f"{setting} in {place} is {named!r}, and there is no such program",
        f"set {setting} to the path of llama.cpp's {usual[0]}",
    )
