"""Stands in for llama.cpp in the tests: `llama_cpp.py MODE MODEL --outfile FILE --outtype TYPE`.

As llama-quantize it is `llama_cpp.py quantizes IN OUT TYPE`. It writes a small true GGUF file of the model's fp32
weights, or goes wrong in the way that MODE says. What the real converter makes of a model is not tested here.
"""

import json
import os
import shutil
import sys
import time
from pathlib import Path


def main() -> None:
    mode, *arguments = sys.argv[1:]
    if mode == "fails":
        print("INFO:hf-to-gguf:Loading model")
        sys.exit("NotImplementedError: Architecture 'TinyForCausalLM' not supported!")
    if mode == "hangs":
        time.sleep(600)
    if mode == "quantizes":
        source, target, kind = arguments
        assert kind == kind.upper()
        shutil.copyfile(source, target)
        return
    model, into = Path(arguments[0]), Path(arguments[arguments.index("--outfile") + 1])
    if mode == "writes nothing":
        return
    if mode == "writes rubbish":
        into.write_bytes(b"<html>not found</html>" * 100)
        return
    if mode == "leaves a pipe":
        os.mkfifo(into)
        return
    if mode == "leaves a folder":
        into.mkdir()
        return
    if mode == "writes elsewhere":
        elsewhere = into.with_name("elsewhere")
        write(model, elsewhere)
        into.symlink_to(elsewhere)
        return
    write(model, into)
    if mode == "cuts short":
        into.write_bytes(into.read_bytes()[: into.stat().st_size // 2])


def write(model: Path, into: Path) -> None:
    import gguf
    import numpy

    config = json.loads((model / "config.json").read_text())
    content = (model / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    writer = gguf.GGUFWriter(into, config["model_type"])
    writer.add_block_count(config["num_hidden_layers"])
    for name, each in json.loads(content[8:start]).items():
        if name != "__metadata__":
            begin, end = (start + offset for offset in each["data_offsets"])
            writer.add_tensor(name, numpy.frombuffer(content[begin:end], numpy.float32).reshape(each["shape"]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
