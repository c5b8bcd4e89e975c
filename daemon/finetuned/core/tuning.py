"""What a job file says about tuning and optimizer → the plan's records of both."""

from typing import Protocol

from finetuned.core.plan import (
    AdapterFacts,
    FreezeTuning,
    FullTuning,
    LoraTuning,
    Optimizer,
    Quantization,
    Tuning,
)
from finetuned.core.problems import Problem
from finetuned.core.spec import JobSpec

_LORA_LEARNING_RATE = 2e-4
_WHOLE_LEARNING_RATE = 1e-5


def is_adapter(spec: JobSpec) -> bool:
    return spec.finetuning_type in ("lora", "qlora")


def choose_tuning(spec: JobSpec, adapter: AdapterFacts | None) -> Tuning:
    """`adapter`: the one to go on from, whose own shape holds whatever the job file leaves open."""
    match spec.finetuning_type:
        case "full":
            return FullTuning()
        case "freeze":
            return FreezeTuning(unfrozen_parameters=spec.unfrozen_parameters)
    tuning = LoraTuning(
        r=spec.lora_r,
        alpha=spec.lora_alpha,
        dropout=spec.lora_dropout,
        target_modules=spec.lora_target_modules,
        use_dora=spec.use_dora,
        use_rslora=spec.use_rslora,
        init_lora_weights=spec.init_lora_weights,
        modules_to_save=spec.modules_to_save,
        quantization=_quantization(spec),
    )
    if adapter is None:
        return tuning
    shape = {name: getattr(adapter, name) for name in _SHAPE.values()}
    return tuning.model_copy(update=shape | {"init_lora_weights": "default", "init_adapter": adapter})


class AdapterShape(Protocol):
    """What an adapter to go on from keeps, whatever else is known about it."""

    @property
    def r(self) -> int: ...
    @property
    def alpha(self) -> int: ...
    @property
    def target_modules(self) -> str | tuple[str, ...]: ...
    @property
    def use_dora(self) -> bool: ...
    @property
    def use_rslora(self) -> bool: ...
    @property
    def modules_to_save(self) -> tuple[str, ...]: ...


def adapter_problems(spec: JobSpec, adapter: AdapterShape | None) -> list[Problem]:
    """Where the job file asks for another shape than the adapter to go on from has."""
    if adapter is None:
        return []
    asked = {field: (getattr(spec, field), getattr(adapter, ours)) for field, ours in _SHAPE.items()}
    return [
        Problem(
            place=field,
            what=f"is {_said(wanted)}, but init_adapter was trained with {_said(found)}",
            hint="leave it out: an adapter keeps its shape",
        )
        for field, (wanted, found) in asked.items()
        if field in spec.model_fields_set and not _same(wanted, found)
    ]


def choose_optimizer(spec: JobSpec) -> Optimizer:
    return Optimizer(
        optim=spec.optim,
        loraplus_lr_ratio=(spec.loraplus_lr_ratio or 1.0) if is_adapter(spec) else 1.0,
        learning_rate=spec.learning_rate or (_LORA_LEARNING_RATE if is_adapter(spec) else _WHOLE_LEARNING_RATE),
        weight_decay=spec.weight_decay,
        adam_beta1=spec.adam_beta1,
        adam_beta2=spec.adam_beta2,
        adam_epsilon=spec.adam_epsilon,
        max_grad_norm=spec.max_grad_norm,
    )


_SHAPE = {
    "lora_r": "r",
    "lora_alpha": "alpha",
    "lora_target_modules": "target_modules",
    "use_dora": "use_dora",
    "use_rslora": "use_rslora",
    "modules_to_save": "modules_to_save",
}
"""Field of a job file → of an adapter."""


def _quantization(spec: JobSpec) -> Quantization | None:
    if spec.finetuning_type != "qlora":
        return None
    if spec.load_in_8bit:
        return Quantization(kind="int8")
    return Quantization(kind=spec.bnb_4bit_quant_type, double_quant=spec.bnb_4bit_use_double_quant)


def _same(wanted: object, found: object) -> bool:
    """PEFT writes all-linear and lists of names in an order of its own."""
    if isinstance(wanted, tuple) and isinstance(found, tuple):
        return set(wanted) == set(found)
    return wanted == found or wanted == "all-linear"


def _said(value: object) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value).lower()
