"""Tokenizers of several families, folders that look like models, and jobs whose prepare stage runs inside the test."""

import json
from pathlib import Path
from typing import Any

import tiny
from finetuned.core.job import Stage
from finetuned.core.plan import Facts
from finetuned.core.spec import Dataset, JobSpec
from finetuned.host.jobdir import JobDir
from finetuned.host.journal import Journal, read_events
from finetuned.host.stage import StageRun

LLAMA3 = (
    "{% for message in messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    " + message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}"
    "{% endif %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
INST = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] + '\n\n' %}"
    "{% set rest = messages[1:] %}{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}"
    "{% for message in rest %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + (system if loop.first else '') + message['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}"
)
FORGETS_THOUGHTS = (
    "{% for message in messages %}{% set content = message['content'] %}"
    "{% if message['role'] == 'assistant' and not loop.last %}"
    "{% set content = content.split('</think>')[-1] %}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def build_byte_level(folder: Path, marks: list[str], chat_template: str | None) -> Any:
    """A byte-level BPE; `marks` are special tokens, the first BOS and the second EOS."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=marks, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(tiny.sentences(), trainer)
    bos = processors.TemplateProcessing(single=f"{marks[0]} $A", special_tokens=[(marks[0], 0)])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), bos])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=marks[0], eos_token=marks[1])
    fast.chat_template = chat_template
    fast.save_pretrained(folder)
    return load_tokenizer(folder)


def load_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


def a_model_folder(folder: Path, tokenizer: Any, vocab_size: int | None = None, **changes: object) -> Path:
    """A folder that looks like a Llama model to everything that does not compute: its weights are a header of zeros."""
    tokenizer.save_pretrained(folder)
    size = vocab_size or len(tokenizer)
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": size,
        "hidden_size": 4,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
        "eos_token_id": tokenizer.eos_token_id,
    }
    (folder / "config.json").write_text(json.dumps(config | changes))
    write_safetensors(folder / "model.safetensors", {"model.embed_tokens.weight": (size, 4)})
    return folder


def write_safetensors(path: Path, shapes: dict[str, tuple[int, int]]) -> None:
    header, start = {}, 0
    for name, (rows, columns) in shapes.items():
        header[name] = {"dtype": "F32", "shape": [rows, columns], "data_offsets": [start, start + 4 * rows * columns]}
        start += 4 * rows * columns
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(start))


class InProcess:
    """A spool whose jobs are prepared inside the test."""

    def __init__(self, root: Path, model: Path):
        self.root, self.model = root, model
        self.runs: list[StageRun] = []

    def new_run(self) -> StageRun:
        job = JobDir(self.root / "spool/queued" / f"20260101-000000-job-{len(self.runs):08x}")
        job.path.mkdir(parents=True)
        run = StageRun(job, Stage.PREPARE, 1, 1, Journal(job.events_file(Stage.PREPARE)))
        self.runs.append(run)
        return run

    def spec(self, *rows: object, **fields: object) -> JobSpec:
        """A spec for a new data file of these rows."""
        path = self.root / f"data-{len(self.runs)}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return JobSpec.model_validate(
            {"base_model": str(self.model), "datasets": (Dataset(path=str(path), format="auto"),)} | fields
        )

    def prepare(self, spec: JobSpec, run: StageRun | None = None) -> Facts:
        from finetuned.prepare.main import prepare_spec

        run = run or self.new_run()
        prepare_spec(run, spec)
        facts = run.job.read_facts()
        assert facts is not None
        return facts

    def rows(self, facts: Facts, name: str = "train") -> list[tuple[str, list[int], list[bool]]]:
        from finetuned.prepare.prepared.rowfile import first_rows

        return list(first_rows(self.root / "spool/store/prepared" / facts.data.prepared / f"{name}.arrow", 1 << 30))

    def probes(self, facts: Facts) -> list[dict[str, Any]]:
        return json.loads((self.root / "spool/store/prepared" / facts.data.prepared / "probes.json").read_text())

    def events(self) -> list[Any]:
        return read_events(self.runs[-1].job.events_file(Stage.PREPARE))


def a_chat(*turns: str, system: str | None = None) -> dict[str, object]:
    """A chat row: user and assistant in turn."""
    messages = [{"role": "system", "content": system}] if system else []
    messages += [{"role": ("user", "assistant")[i % 2], "content": turn} for i, turn in enumerate(turns)]
    return {"messages": messages}


def build_byte_fallback(folder: Path, chat_template: str) -> Any:
    """A BPE as Llama 2 and Mistral have it: "▁" for spaces, prepended, and bytes for characters it lacks."""
    from tokenizers import Tokenizer, decoders, models, normalizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    marks = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer.train_from_iterator(
        tiny.sentences(), trainers.BpeTrainer(vocab_size=600, special_tokens=marks, show_progress=False)
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    fast.chat_template = chat_template
    fast.save_pretrained(folder)
    return load_tokenizer(folder)
