"""The base model without its weights, to see its parts by name.

`python -m finetuned.prepare.skeleton FOLDER INTO` is a process of its own: it needs torch, and prepare is free of it.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

from finetuned.core.problems import StageFailed
from finetuned.core.record import Record
from finetuned.host.jobdir import read_record, write_record
from finetuned.host.program import run_program
from finetuned.host.stage import StopFlag

_SECONDS = 600.0
"""Importing takes 10 to 40 of them on a busy machine, and a model of any size a few."""


class Weight(Record):
    name: str
    same_as: str
    """The first name of the same weight: tied ones have several."""
    parameters: int


class Skeleton(Record):
    modules: tuple[str, ...]
    layers: tuple[str, ...]
    """Modules that an adapter can sit on in any model: linear ones and embeddings."""
    weights: tuple[Weight, ...]


def look_at_skeleton(folder: Path, stop: StopFlag) -> Skeleton:
    """The skeleton of the model in `folder`. Raises StopRequested, and StageFailed (retry) when it cannot be built."""
    with tempfile.TemporaryDirectory() as scratch:
        answer = Path(scratch, "skeleton.json")
        command = [sys.executable, "-m", "finetuned.prepare.skeleton", str(folder), str(answer)]
        ended = run_program(command, seconds=_SECONDS, stop=stop)
        found = read_record(answer, Skeleton)
    if found is None:
        last = f": {ended.last_lines[-1]}" if ended.last_lines else ""
        raise StageFailed(f"the parts of {folder} could not be named: that {ended.how}{last}", retry=True)
    return found


def skeleton_of(config: Any) -> Skeleton:
    """`config`: a model's, as transformers reads it."""
    import torch
    from torch import nn
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    first_names: dict[int, str] = {}
    weights = [
        Weight(name=name, same_as=first_names.setdefault(id(weight), name), parameters=weight.numel())
        for name, weight in model.named_parameters(remove_duplicate=False)
    ]
    modules = dict(model.named_modules())
    layers = tuple(name for name, module in modules.items() if isinstance(module, nn.Linear | nn.Embedding))
    return Skeleton(modules=tuple(modules), layers=layers, weights=tuple(weights))


def main() -> None:
    from finetuned.prepare.facts import read_config

    write_record(Path(sys.argv[2]), skeleton_of(read_config(Path(sys.argv[1]))))


if __name__ == "__main__":
    main()
