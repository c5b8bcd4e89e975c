"""Memory stays flat however large the data: what tests/benchmarks/prepare_memory.py measures, at sizes for a test."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks/prepare_memory.py"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("prepare_memory", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def growth_mb(bench: ModuleType, folder: Path, name: str, sizes_mb: tuple[int, int], *, read: bool) -> float:
    peaks = []
    for size in sizes_mb:
        root = folder / str(size)
        root.mkdir()
        bench.write(root / name, size * 1_000_000)
        peaks.append(bench.peak_mb(root / name, root, read=read)[0])
    return peaks[1] - peaks[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.parquet"])
def test_reading_more_rows_takes_no_more_memory(bench: ModuleType, tmp_path: Path, name: str) -> None:
    assert growth_mb(bench, tmp_path, name, (4, 16), read=True) < 10


@pytest.mark.slow
def test_preparing_three_times_the_data_takes_no_more_memory(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # From 5 MB on all buffers are full: a batch of prepared rows is a million tokens. Several threads of the tokenizer
    # make peaks of the same run differ by up to 27 MB; keeping every row of 20 MB took 140 MB more.
    monkeypatch.setenv("RAYON_NUM_THREADS", "1")
    assert growth_mb(bench, tmp_path, "rows.jsonl", (5, 15), read=False) < 30
