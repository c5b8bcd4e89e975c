"""The adapter that training goes on from: found, hashed, compared with its base, and kept if it was dropped with it."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from safetensors import SafetensorError, safe_open

from finetuned.core.plan import AdapterFacts
from finetuned.core.problems import Problem, StageFailed
from finetuned.core.spec import JobSpec
from finetuned.host.adapters import ADAPTER_FILES, EarlierAdapter, read_adapter
from finetuned.host.paths import Unusable, locate
from finetuned.host.stage import StageRun
from finetuned.host.store import Store, hash_files
from finetuned.prepare.fetch import BaseModel, keep_dropped

_PREFIX = "base_model.model."


def obtain_adapter(
    spec: JobSpec, model: BaseModel, folder: Path | None, store: Store, run: StageRun
) -> tuple[AdapterFacts | None, tuple[str, ...]]:
    """The adapter that `spec` goes on from, and notices about it; `folder` is the dropped folder.

    Raises StageFailed (no retry) where it cannot be used, or does not fit the base model.
    """
    if spec.init_adapter is None:
        return None, ()
    try:
        path = locate(spec.init_adapter, folder).resolve()
        adapter = read_adapter(path)
        _require_fit(path, adapter, model)
    except Unusable as error:
        problem = Problem(place="init_adapter", what=str(error), hint=error.hint)
        raise StageFailed("the adapter cannot be gone on from", retry=False, problems=[problem]) from error
    files = tuple(hash_files(path, ADAPTER_FILES))
    if folder is not None and path.is_relative_to(folder.resolve()):
        path = keep_dropped(path, files, store, run)
    facts = AdapterFacts(
        path=str(path),
        files=files,
        r=adapter.r,
        alpha=adapter.alpha,
        target_modules=adapter.target_modules,
        use_dora=adapter.use_dora,
        use_rslora=adapter.use_rslora,
        modules_to_save=adapter.modules_to_save,
    )
    return facts, tuple(_notices(spec, adapter, model))


def _notices(spec: JobSpec, adapter: EarlierAdapter, model: BaseModel) -> Iterator[str]:
    names = {spec.base_model, spec.base_model.removeprefix("hub:").partition("@")[0], str(model.path)}
    if adapter.base_model and adapter.base_model not in names:
        yield f"init_adapter says that it was trained on {adapter.base_model}; this job goes on with {spec.base_model}"


def _require_fit(folder: Path, adapter: EarlierAdapter, model: BaseModel) -> None:
    """Raise Unusable where a layer that the adapter stands beside has other sizes in the base model.

    Layers that go by another name in the base's files are left to the worker.
    """
    if adapter.fan_in_fan_out:
        return
    base = _shapes(model.path, model.weights)
    for name, shape in _shapes(folder, ["adapter_model.safetensors"]).items():
        layer, _, part = name.removeprefix(_PREFIX).partition(".lora_")
        in_base = base.get(f"{layer}.weight")
        side = {"A.weight": 1, "B.weight": 0}.get(part)
        if in_base and side is not None and shape[side] != in_base[side]:
            raise Unusable(
                f"{folder} does not fit {model.path}: it was trained on a {layer} of {shape[side]:,} "
                f"{'outputs' if side == 0 else 'inputs'}, and the base model's has {in_base[side]:,}",
                "name the base model that the adapter was trained on",
            )


def _shapes(folder: Path, names: Sequence[str]) -> Mapping[str, Sequence[int]]:
    found: dict[str, Sequence[int]] = {}
    for name in names:
        try:
            with safe_open(folder / name, "np") as file:
                found |= {key: file.get_slice(key).get_shape() for key in file.keys()}  # noqa: SIM118 - not a mapping
        except (OSError, SafetensorError) as error:
            raise Unusable(f"{folder / name} is not a readable safetensors file: {error}", "copy it again") from error
    return found
