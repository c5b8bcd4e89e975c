"""Whether the parts of the model that a job file names exist."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import Any

from finetuned.core.problems import Problem, StageFailed
from finetuned.core.spec import JobSpec
from finetuned.prepare.skeleton import Skeleton, Weight

_MOST_NAMES = 12


def require_targets(spec: JobSpec, config: Any, look: Callable[[], Skeleton]) -> int:
    """Parameters that `freeze` trains, 0 for any other tuning.

    `config`: the base model's, as transformers reads it; `look` is called where parts are named. Raises StageFailed (no
    retry) naming what the model lacks.
    """
    if (spec.export.merge or spec.export.gguf != "none") and getattr(config, "quantization_config", None):
        raise StageFailed(
            f"export: {spec.base_model} is stored quantized; merging into rounded weights would lose the tuning",
            retry=False,
            hint="name the 16-bit model as base_model (finetuning_type: qlora quantizes it), or leave out export",
        )
    if spec.finetuning_type == "freeze":
        weights = look().weights
        _refuse(spec, _unfrozen_problems(spec.unfrozen_parameters, weights))
        # Tied weights go by each of their names, and count once.
        return sum({each.same_as: each.parameters for each in weights if _is_unfrozen(spec, each)}.values())
    if spec.finetuning_type != "full" and (spec.lora_target_modules != "all-linear" or spec.modules_to_save):
        _refuse(spec, _adapter_problems(spec, look()))
    return 0


def _refuse(spec: JobSpec, problems: Iterable[Problem]) -> None:
    if found := list(problems):
        raise StageFailed(f"{spec.base_model} lacks what the job names", retry=False, problems=found)


def _is_unfrozen(spec: JobSpec, weight: Weight) -> bool:
    return any(re.search(pattern, weight.name) for pattern in spec.unfrozen_parameters)


def _adapter_problems(spec: JobSpec, skeleton: Skeleton) -> Iterator[Problem]:
    # Others than layers (Conv1D, experts) are left to PEFT itself to refuse.
    modules, kinds = skeleton.modules, _last_parts(skeleton.layers)
    targets = spec.lora_target_modules
    if isinstance(targets, tuple):
        for target in targets:
            if not any(_is_suffix(target, name) for name in modules):
                yield _lacks("lora_target_modules", f"{target!r} is no module of the model", target, kinds)
    elif targets != "all-linear" and not any(re.fullmatch(targets, name) for name in modules):
        what = f"{targets!r} matches no module's whole name"
        yield _lacks("lora_target_modules", what, targets, [name for name in modules if name.endswith(kinds[0])][:2])
    for saved in spec.modules_to_save:
        meant = [name for name in modules if _is_suffix(saved, name)]
        if not meant:
            yield _lacks("modules_to_save", f"{saved!r} is no module of the model", saved, _last_parts(modules))
        # PEFT's rule here is another one: any name that ends so.
        elif others := _last_parts(name for name in modules if name.endswith(saved) and name not in meant):
            what = f"{saved!r} would also take {', '.join(others)}, whose names end the same"
            yield Problem(place="modules_to_save", what=what, hint=f"write the whole name, such as {meant[0]}")


def _unfrozen_problems(patterns: Sequence[str], weights: Sequence[Weight]) -> Iterator[Problem]:
    for pattern in patterns:
        if not any(re.search(pattern, weight.name) for weight in weights):
            what = f"{pattern!r} is found in the name of none of {len(weights)} weights"
            hint = f"they are named like {weights[0].name} and {weights[-1].name}"
            yield Problem(place="unfrozen_parameters", what=what, hint=hint)


def _is_suffix(target: str, name: str) -> bool:
    """PEFT's rule for the names in lora_target_modules."""
    return name == target or name.endswith(f".{target}")


def _last_parts(names: Iterable[str]) -> list[str]:
    return sorted({name.rsplit(".", 1)[-1] for name in names if name and not name.rsplit(".", 1)[-1].isdigit()})


def _lacks(field: str, what: str, asked: str, known: Sequence[str]) -> Problem:
    close = get_close_matches(asked, known, n=1)
    more = " …" if len(known) > _MOST_NAMES else ""
    hint = f"did you mean {close[0]}?" if close else f"the model has {', '.join(known[:_MOST_NAMES])}{more}"
    return Problem(place=field, what=what, hint=hint)
