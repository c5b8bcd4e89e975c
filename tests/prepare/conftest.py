"""Fixtures of the prepare tests; the builders are in tests/preparing.py."""

from pathlib import Path
from typing import Any

import pytest

import tiny
from preparing import INST, LLAMA3, InProcess, a_model_folder, build_byte_fallback, build_byte_level, load_tokenizer


@pytest.fixture(scope="session")
def chatml(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Without BOS; its padding token is its end of turn."""
    folder = tmp_path_factory.mktemp("chatml")
    tiny.build_tokenizer(folder)
    tokenizer = load_tokenizer(folder)
    tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


@pytest.fixture(scope="session")
def llama3(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """With Llama 3's marks; puts BOS before plain text, and leaves white space out of its offsets."""
    marks = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    return build_byte_level(tmp_path_factory.mktemp("llama3"), marks, LLAMA3)


@pytest.fixture(scope="session")
def inst(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """With Mistral's marks, which are ordinary text but for BOS and EOS."""
    return build_byte_level(tmp_path_factory.mktemp("inst"), ["<s>", "</s>"], INST)


@pytest.fixture(scope="session")
def byte_fallback(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Not byte-level: a character that it lacks becomes several tokens at the same place in the text."""
    return build_byte_fallback(tmp_path_factory.mktemp("byte-fallback"), INST)


@pytest.fixture
def stage(tmp_path: Path, chatml: Any) -> InProcess:
    return InProcess(tmp_path, a_model_folder(tmp_path / "model", chatml))
