"""Tiny random models, tokenizers and data sets, built on the spot: what the tests train instead of an 8B model."""

import json
from collections.abc import Iterable
from pathlib import Path

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

FAMILIES = ("llama", "qwen2", "mistral", "gemma", "smollm", "opt")


def sentences(count: int = 200) -> list[str]:
    return [
        f"add {i % 23} and {i % 17} gives {i % 23 + i % 17} ; the next is {i % 23 + i % 17 + 1} ." for i in range(count)
    ]


def build_tokenizer(folder: Path, chat_template: str | None = CHATML) -> None:
    """A byte-level BPE of about 600 tokens with ChatML's special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|pad|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences(), trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<|pad|>", eos_token="<|im_end|>")
    fast.chat_template = chat_template
    fast.save_pretrained(folder)


def build_model(
    folder: Path,
    family: str = "llama",
    *,
    hidden: int = 64,
    layers: int = 2,
    attention_dropout: float = 0.0,
    seed: int = 0,
    chat_template: str | None = CHATML,
) -> Path:
    """A random causal LM of `family` with its tokenizer in `folder`, loadable by AutoModelForCausalLM."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    build_tokenizer(folder, chat_template)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    common = {
        "vocab_size": len(tokenizer),
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "max_position_embeddings": 512,
        "attention_dropout": attention_dropout,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
    }
    if family == "opt":
        extra = {"model_type": "opt", "ffn_dim": 2 * hidden, "word_embed_proj_dim": hidden, "dropout": 0.0}
    else:
        extra = {"intermediate_size": 2 * hidden, "num_key_value_heads": 2}
        extra["model_type"] = "llama" if family == "smollm" else family
        extra["tie_word_embeddings"] = family in ("smollm", "gemma")
        if family == "gemma":
            extra["head_dim"] = hidden // 4
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**(common | extra)))
    model.save_pretrained(folder)
    return folder


def chat_rows(count: int = 64) -> list[dict[str, object]]:
    return [
        {
            "messages": [
                {"role": "user", "content": f"add {i % 23} and {i % 17}" + " please" * (i % 5)},
                {"role": "assistant", "content": f"gives {i % 23 + i % 17}"},
            ]
        }
        for i in range(count)
    ]


def text_rows(count: int = 64) -> list[dict[str, object]]:
    return [{"text": sentence} for sentence in sentences(count)]


def write_jsonl(path: Path, rows: Iterable[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
