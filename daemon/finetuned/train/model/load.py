"""The device and the base model, from a folder of safetensors and nowhere else."""

import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM

from finetuned.core.plan import AdapterFacts, FullTuning, ModelFacts, RunPlan
from finetuned.core.problems import StageFailed
from finetuned.host.machine import look_at
from finetuned.host.store import hash_files
from finetuned.host.tokenizer import TokensUnusable
from finetuned.host.tokenizer import load_tokenizer as load_grown_tokenizer
from finetuned.train.model.quantize import keep_trainable, misshapen_weights, quantized_loading


def choose_device(plan: RunPlan, spool: Path) -> torch.device:
    """The plan's device. Raises StageFailed (no retry) for an NVIDIA card that torch cannot use."""
    if plan.device == "cuda" and not torch.cuda.is_available():
        needed = f"needs a driver for CUDA {torch.version.cuda}" if torch.version.cuda else "was built without CUDA"
        raise StageFailed(
            f"torch cannot use this machine's NVIDIA GPU: its driver is {look_at(spool).driver_version or 'absent'}, "
            f"and torch {torch.__version__} {needed}",
            retry=False,
            hint="install a newer driver or a torch built for this one, or set device: cpu",
        )
    return torch.device(plan.device)


def require_prepared_model(model: ModelFacts | AdapterFacts, hashed_ns: int) -> None:
    """Raise StageFailed (no retry) where a file of a model or an adapter is no longer the one that prepare hashed.

    `hashed_ns`: when (ctime) the hashes were written. A file that was not touched since is not read again.
    """
    folder = Path(model.path)
    for expected in model.files:
        try:
            found = os.stat(folder / expected.path)
            is_same = found.st_size == expected.size_bytes and (
                found.st_ctime_ns < hashed_ns or hash_files(folder, [expected.path]) == [expected]
            )
        except FileNotFoundError:
            is_same = False
        if not is_same:
            raise StageFailed(
                f"{folder / expected.path} is not the file that this job was prepared with "
                f"({expected.size_bytes:,} bytes, sha256 {expected.sha256[:12]}…)",
                retry=False,
                hint="put the file back and resume the job, or resubmit it to train on what is there now",
            )


def load_base(plan: RunPlan, device: torch.device) -> Any:
    """The base model, in bf16 where it stays frozen in a bf16 run, else in fp32; on the CPU, or quantized on `device`.

    Raises StageFailed (no retry) where the folder does not hold every weight of its architecture in its shape: what is
    missing would silently be random.
    """
    is_frozen = not isinstance(plan.tuning, FullTuning)
    dtype = torch.bfloat16 if is_frozen and plan.precision == "bf16" else torch.float32
    try:
        model, found = AutoModelForCausalLM.from_pretrained(
            plan.model.path,
            dtype=dtype,
            local_files_only=True,
            use_safetensors=True,
            attn_implementation="sdpa",
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # Told below by name; transformers 5.24 says only "look at the above report".
            **quantized_loading(plan, device),
        )
    except (ValueError, SafetensorError) as error:
        raise StageFailed(
            f"the model in {plan.model.path} cannot be loaded: {str(error).splitlines()[0]}",
            retry=False,
            hint="check that the folder was copied whole, and that its architecture is a causal language model",
        ) from error
    if missing := sorted(found["missing_keys"]):
        raise StageFailed(
            f"the model in {plan.model.path} lacks {len(missing)} weights of {plan.model.architecture}, "
            f"among them {', '.join(missing[:3])}",
            retry=False,
            hint="copy the model again; compare its folder with model.safetensors.index.json",
        )
    if odd := sorted([*found["mismatched_keys"], *misshapen_weights(model)]):
        name, stored, expected = odd[0]
        raise StageFailed(
            f"{len(odd)} weights in {plan.model.path} have other shapes than its config.json says, among them {name}: "
            f"{list(stored)} is stored, {list(expected)} expected",
            retry=False,
            hint="copy config.json and the weights again, from the same place",
        )
    keep_trainable(model)
    return model


def load_tokenizer(plan: RunPlan) -> Any:
    """The base model's tokenizer with the plan's new tokens. Raises StageFailed (no retry)."""
    try:
        return load_grown_tokenizer(Path(plan.model.path), plan.added_tokens, plan.added_special_tokens)
    except TokensUnusable as error:
        raise StageFailed(f"added_tokens: {error}", retry=False) from error
