"""Peak memory of the prepare stage by size of its data.

    python tests/benchmarks/prepare_memory.py [--read] [--mb 50 200] [FORMAT…]

Each line is a process of its own that prepares a file of chats of about 600 bytes (`--read`: only reads its rows, which
takes seconds, not minutes); the peak is its own VmHWM. Four times the data must not take more than 30 MB more.
"""

import argparse
import csv
import gzip
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO

TESTS = Path(__file__).resolve().parents[1]
_CHILDREN = ("--prepare-one", "--read-one")
_SAID = "the model learns to answer what people ask about orders refunds and late parcels in a kind short way"
_WORDS = re.findall("[a-z]+", _SAID)


def a_row(number: int) -> dict[str, object]:
    def said(words: int, seed: int) -> str:
        return " ".join(_WORDS[(seed * 31 + i * i + i * seed) % len(_WORDS)] for i in range(words))

    question, answer = said(40, number), f"{number}: {said(60, number + 1)}"
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def rows_of(size_bytes: int) -> Iterator[dict[str, object]]:
    """Rows that are about this many bytes of JSON together."""
    written = number = 0
    while written < size_bytes:
        row = a_row(number)
        yield row
        written += len(json.dumps(row)) + 1
        number += 1


def write(path: Path, size_bytes: int) -> int:
    """A file of rows in the format of its suffix, in flat memory; how many."""
    rows = rows_of(size_bytes)
    if path.suffix in (".parquet", ".arrow"):
        return _write_table(path, rows)
    count = 0
    with _opened(path) as file:
        if path.suffix == ".csv":
            csv.writer(file).writerow(["messages"])
        for count, row in enumerate(rows, 1):
            match path.suffix:
                case ".csv":
                    csv.writer(file).writerow([json.dumps(row["messages"])])
                case ".json":
                    file.write((",\n" if count > 1 else "[\n") + json.dumps(row))
                case _:
                    file.write(json.dumps(row) + "\n")
        if path.suffix == ".json":
            file.write("\n]\n")
    return count


def _opened(path: Path) -> IO[str]:
    import pyarrow as pa

    match path.suffix:
        case ".gz":
            return gzip.open(path, "wt", compresslevel=1)
        case ".zst":
            return io.TextIOWrapper(pa.CompressedOutputStream(str(path), "zstd"))
        case _:
            return open(path, "w", newline="")


def _write_table(path: Path, rows: Iterator[dict[str, object]]) -> int:
    """In one row group, as pandas would; in batches of a thousand, as `datasets` would."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    count, schema = 0, pa.Table.from_pylist([a_row(0)]).schema
    with pq.ParquetWriter(path, schema) if path.suffix == ".parquet" else pa.ipc.new_stream(path, schema) as writer:
        while batch := list(islice(rows, 1000)):
            count += len(batch)
            table = pa.RecordBatch.from_pylist(batch, schema)
            writer.write_batch(table, *([1 << 30] if path.suffix == ".parquet" else []))
    return count


def peak_mb(data: Path, root: Path, *, read: bool = False) -> tuple[float, float]:
    """Peak MB of a process that prepares `data` (or only reads it), and the seconds it took."""
    began = time.monotonic()
    environment = os.environ | {"PYTHONPATH": f"{TESTS.parent / 'daemon'}:{TESTS}"}
    command = [sys.executable, __file__, _CHILDREN[read], str(data), str(root)]
    answer = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return int(answer.stdout.split()[-1]) / 1000, time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("formats", nargs="*", default=["jsonl", "parquet"])
    parser.add_argument("--read", action="store_true")
    parser.add_argument("--mb", nargs="+", type=int, default=[50, 200])
    asked = parser.parse_args()
    print(f"{'format':10} {'data MB':>8} {'rows':>8} {'peak MB':>8} {'seconds':>8}")
    for suffix in asked.formats:
        peaks = []
        for size in asked.mb:
            with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
                data = Path(folder, f"rows.{suffix}")
                rows = write(data, size * 1_000_000)
                peak, seconds = peak_mb(data, Path(folder), read=asked.read)
            peaks.append(peak)
            print(f"{suffix:10} {size:8} {rows:8} {peak:8.1f} {seconds:8.1f}", flush=True)
        print(f"{suffix:10} grows by {peaks[-1] - peaks[0]:.1f} MB", flush=True)


def prepare_one(data: str, root: str) -> None:
    sys.modules["torch"] = None  # type: ignore[assignment]  # As in the stage itself.
    import tiny
    from finetuned.core.spec import Dataset, JobSpec
    from preparing import InProcess, a_model_folder, load_tokenizer

    folder = Path(root, "tokenizer")
    tiny.build_tokenizer(folder)
    model = a_model_folder(Path(root, "model"), load_tokenizer(folder), max_position_embeddings=2048)
    spec = JobSpec(base_model=str(model), datasets=(Dataset(path=data),))
    assert InProcess(Path(root), model).prepare(spec).data.train_rows > 0


def read_one(data: str, _root: str) -> None:
    from finetuned.prepare.read import Row, read_rows
    from reading import look

    assert all(isinstance(row, Row) for row in read_rows(look(data)))


def _peak_kb() -> int:
    # Not ru_maxrss: a process begins with its parent's.
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1])


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in _CHILDREN:
        (read_one if sys.argv[1] == "--read-one" else prepare_one)(*sys.argv[2:])
        print(_peak_kb())
    else:
        main()
