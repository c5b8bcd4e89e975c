"""The fresh process: `python -m finetuned.train.artifacts.verify TASK.json PARENT` loads exported folders as users do.

It has none of the objects that trained the model: plain transformers and PEFT, offline. What it finds is verdict.json
in the task's scratch folder; its exit status says nothing.
"""

import ctypes
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetuned.core.problems import StageFailed

if TYPE_CHECKING:
    from finetuned.train.artifacts.proof import Proof, Task

_PR_SET_PDEATHSIG = 1
_ANSWER_TOKENS = 48
_ANSWER_SECONDS = 10.0
_RAISED_HINT = "train.log has the whole traceback: a library does not load this kind of model as it was trained"


def main() -> None:
    path, parent = Path(sys.argv[1]), int(sys.argv[2])
    # A worker that is killed takes this process along, and with it the device's memory.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the process that wanted to know is gone")

    import torch
    from transformers.utils.logging import disable_progress_bar

    from finetuned.host.jobdir import write_record
    from finetuned.train.artifacts.proof import Task, Verdict

    task = Task.model_validate_json(path.read_bytes())
    verdict = Path(task.scratch, "verdict.json")
    disable_progress_bar()
    try:
        with torch.no_grad():
            found = Verdict(proofs=tuple(verify(task)))
    except StageFailed as error:
        found = Verdict(failure=str(error), hint=error.hint)
    except (torch.OutOfMemoryError, MemoryError) as error:
        found = Verdict(
            trouble=f"too little memory to load what was exported: {(str(error) or 'none').splitlines()[0]}"
        )
    except Exception as error:
        traceback.print_exc()  # To the stage's log.
        raised = "".join(traceback.format_exception_only(error)).strip().splitlines()[0]
        # A device or a disk may do better the next time; what our own or a library's code cannot do, it never will.
        if isinstance(error, (OSError, RuntimeError)) and not isinstance(error, NotImplementedError):
            found = Verdict(trouble=raised)
        else:
            found = Verdict(failure=f"what was exported could not be proven: {raised}", hint=_RAISED_HINT)
    write_record(verdict, found)


def verify(task: "Task") -> Iterator["Proof"]:
    """A proof for each folder of the task. Raises StageFailed for what differs."""
    from finetuned.train.artifacts.merge import merge_adapter
    from finetuned.train.artifacts.proof import MERGED, ROUNDED
    from finetuned.train.artifacts.save import stored_dtype

    if task.proves is not None:
        yield _prove(Path(task.artifacts, task.proves), task, task.weights, task.tolerance)
        gc.collect()
    if task.merges_into is None:
        return
    folder = Path(task.merges_into)
    weights = merge_adapter(task.plan, Path(task.artifacts, "adapter"), folder)
    gc.collect()
    is_exact = task.compute_dtype == "float32" and stored_dtype(folder) == "float32"
    is_same_base = getattr(task.plan.tuning, "quantization", None) is None
    tolerance = (MERGED if is_exact else ROUNDED) if is_same_base else None
    yield _prove(folder, task, weights, tolerance)


def _prove(folder: Path, task: "Task", weights: Mapping[str, str], tolerance: float | None) -> "Proof":
    from finetuned.train.artifacts.compare import compared
    from finetuned.train.artifacts.proof import logits_of
    from finetuned.train.artifacts.save import stored_dtype

    with _must_load(folder):
        tokenizer = _read_tokenizer(folder, task)
        settings = _read_settings(folder, task)
    model = _proven_adapter(folder, task, weights) if folder.name == "adapter" else _proven_model(folder, task, weights)
    model.eval()
    proof = compared(folder, logits_of(model, task.rows), len(weights), tolerance, Path(task.scratch))
    answer, is_over = _answer(model, task, settings, tokenizer)
    return proof.model_copy(
        update={
            "chats": len(task.chats),
            "answer_tokens": len(answer),
            "answer_stopped": is_over,
            "dtype": stored_dtype(folder),
        }
    )


def _read_tokenizer(folder: Path, task: "Task") -> Any:
    """The folder's tokenizer, which must encode what was trained on as it was, and render chats to the same ids."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    template = task.plan.data.chat_template
    if template is not None and tokenizer.chat_template != template:
        raise StageFailed(f"the chat template in {folder.name}/ is not the one that was trained with", retry=False)
    for text in task.texts:
        _same_ids(folder, text, tokenizer.encode(text.text, add_special_tokens=False))
    for chat in task.chats:
        found = tokenizer.apply_chat_template(
            list(chat.messages),
            tools=list(chat.tools) if chat.tools else None,
            chat_template=chat.chat_template,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
        )["input_ids"]
        _same_ids(folder, chat, found, tokenizer.decode)
    return tokenizer


def _same_ids(folder: Path, wanted: Any, found: Sequence[int], decode: Callable[[Any], str] | None = None) -> None:
    expected = list(wanted.ids)
    if list(found) == expected:
        return
    place = next((n for n, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), None)
    place = min(len(found), len(expected)) if place is None else place
    what = "the chat template and tokenizer in" if decode else "the tokenizer in"
    shown = repr(decode(expected[: place + 8])[-60:]) if decode else repr(wanted.text[:60])
    raise StageFailed(
        f"{what} {folder.name}/ read a probe as {len(found)} other tokens than the {len(expected)} that were trained "
        f"with; they part at token {place + 1}: {shown}",
        retry=False,
    )


def _read_settings(folder: Path, task: "Task") -> Any:
    from transformers import GenerationConfig

    settings = GenerationConfig.from_pretrained(folder)
    stops = settings.eos_token_id
    found = tuple(stops if isinstance(stops, list) else [] if stops is None else [stops])
    if found != task.stops:
        raise StageFailed(
            f"generation_config.json in {folder.name}/ stops on the tokens {found}, and the data on {task.stops}",
            retry=False,
        )
    return settings


def _proven_adapter(folder: Path, task: "Task", weights: Mapping[str, str]) -> Any:
    """The base that adapter_config.json names, and the adapter on it: the trained one, bit for bit."""
    import torch
    from peft import AutoPeftModelForCausalLM

    from finetuned.train.artifacts.compare import require_same_adapter
    from finetuned.train.model.quantize import quantized_loading

    device = torch.device(task.plan.device)
    loading = quantized_loading(task.plan, device) or {"device_map": {"": str(device)}}
    with _must_load(folder):
        model = AutoPeftModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, task.compute_dtype), **loading)
        require_same_adapter(folder, model, weights)
    return model


def _proven_model(folder: Path, task: "Task", weights: Mapping[str, str]) -> Any:
    """The model to compute with, after its weights were found to be the trained ones, bit for bit.

    What another type than the stored one makes of them tells nothing of that: they are loaded as stored, to be compared
    in main memory, and then once more.
    """
    from finetuned.train.artifacts.compare import require_same_weights
    from finetuned.train.artifacts.save import stored_dtype

    stored, device = stored_dtype(folder), task.plan.device
    is_computed_in = stored == task.compute_dtype
    model = _load_model(folder, stored, device if is_computed_in else "cpu")
    require_same_weights(folder, model, stored, weights)
    if is_computed_in:
        return model
    del model
    gc.collect()
    return _load_model(folder, task.compute_dtype, device)


def _load_model(folder: Path, dtype: str, device: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    with _must_load(folder):
        model, info = AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), device_map={"": device}, output_loading_info=True
        )
    if missing := sorted(info["missing_keys"]):
        raise StageFailed(f"{folder.name}/ lacks {len(missing)} weights, among them {missing[0]}", retry=False)
    return model


def _answer(model: Any, task: "Task", settings: Any, tokenizer: Any) -> tuple[list[int], bool]:
    """What the model goes on with after the task's prompt, and whether it ended that with a stop by itself."""
    import time

    import torch

    if not task.prompt:
        return [], False
    settings.update(do_sample=False, max_new_tokens=_ANSWER_TOKENS, max_length=None, max_time=_ANSWER_SECONDS)
    prompt_1T = torch.tensor([task.prompt], device=task.plan.device)
    started = time.monotonic()
    answer = model.generate(input_ids=prompt_1T, attention_mask=torch.ones_like(prompt_1T), generation_config=settings)[
        0, prompt_1T.shape[1] :
    ].tolist()
    is_late = time.monotonic() - started >= _ANSWER_SECONDS
    is_over = bool(answer) and answer[-1] in task.stops
    if not is_over and not is_late and len(answer) < _ANSWER_TOKENS:
        raise StageFailed(
            f"generation ended after {len(answer)} tokens without one of the stops {task.stops}: "
            f"{tokenizer.decode(answer)[-60:]!r}",
            retry=False,
        )
    return answer, is_over


@contextmanager
def _must_load(folder: Path) -> Iterator[None]:
    import torch
    from jinja2 import TemplateError
    from safetensors import SafetensorError

    try:
        yield
    except (torch.OutOfMemoryError, StageFailed):
        raise
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError, TemplateError) as error:
        raise StageFailed(
            f"what was exported to {folder.name}/ cannot be loaded again: {error}", retry=False
        ) from error


if __name__ == "__main__":
    main()
