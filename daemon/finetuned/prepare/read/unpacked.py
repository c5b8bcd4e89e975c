"""The bytes of a data file, unpacked; what is cut off or damaged is told with where in the file."""

import gzip
import io
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from finetuned.core.problems import StageFailed
from finetuned.host.data.container import LOOK_BYTES, Compression, Container, kind_inside, see_container

_SCRATCH = "/var/tmp"  # On a disk, unlike /tmp; and not beside the data, where this user need not be allowed to write.


@contextmanager
def unpacked(shown: str, path: Path, compression: Compression) -> Iterator[BinaryIO]:
    """Bytes that can be read once, in order. Raises StageFailed (no retry) while they are read."""
    with open(path, "rb") as raw, ExitStack() as stack, _told(shown, raw):
        match compression:
            case "none":
                yield raw
            case "gzip":
                yield stack.enter_context(gzip.GzipFile(fileobj=raw))  # type: ignore[misc]
            case "zstd":
                stream = pa.CompressedInputStream(pa.PythonFile(raw, "r"), "zstd")
                yield stack.enter_context(io.BufferedReader(stream, 1 << 20))


@contextmanager
def unpacked_whole(shown: str, path: Path, compression: Compression) -> Iterator[BinaryIO]:
    """The same for a reader that jumps about: what is packed lies unpacked on the disk meanwhile."""
    with unpacked(shown, path, compression) as stream:
        if compression == "none":
            yield stream
            return
        with tempfile.TemporaryFile(dir=_SCRATCH if os.access(_SCRATCH, os.W_OK) else None) as copy:
            shutil.copyfileobj(stream, copy, 1 << 20)
            copy.seek(0)
            yield copy


def see_inside(shown: str, path: Path) -> Container:
    """`see_container`, of zstd files as well. Raises Unusable and StageFailed."""
    container = see_container(path)
    if container.kind is not None:
        return container
    with unpacked(shown, path, container.compression) as stream:
        return Container(kind_inside(path, stream.read(LOOK_BYTES)), container.compression)


@contextmanager
def _told(shown: str, raw: BinaryIO) -> Iterator[None]:
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile, pa.ArrowException, OSError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        # Network file systems and bad disks speak by number, archives do not.
        retry = isinstance(error, OSError) and error.errno is not None
        raise StageFailed(
            f"{shown} is cut off or damaged, seen at byte {raw.tell():,} of {os.fstat(raw.fileno()).st_size:,}: {why}",
            retry=retry,
            hint="copy or download it again",
        ) from error
