"""Tiny models of each family, built once a session."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import tiny


@pytest.fixture(scope="session")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`model_of(family, attention_dropout=0.0)`: the folder of a random model."""

    @cache
    def build(family: str = "llama", attention_dropout: float = 0.0) -> Path:
        return tiny.build_model(tmp_path_factory.mktemp(family), family, attention_dropout=attention_dropout)

    return build


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "spool"
