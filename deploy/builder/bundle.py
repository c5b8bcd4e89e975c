"""The release bundle: one archive from which deploy/install makes a server, the same bytes from the same sources."""

import gzip
import shutil
import tarfile
from pathlib import Path

from installer.source import EPOCH, Source


def write_bundle(source: Source, wheel: Path, scratch: Path) -> Path:
    """finetuned-VERSION.tar.gz in `scratch`, with everything in a folder finetuned-VERSION."""
    name = f"finetuned-{source.version}"
    tree = scratch / name
    source.copy_parts(tree)
    shutil.copyfile(wheel, tree / wheel.name)
    shutil.copyfile(source.constraints, tree / "constraints.txt")
    bundle = scratch / f"{name}.tar.gz"
    with (
        bundle.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=file, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in [tree, *sorted(tree.rglob("*"))]:
            archive.add(path, str(path.relative_to(scratch)), recursive=False, filter=_of_nobody)
    return bundle


def _of_nobody(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    member.mtime = EPOCH
    member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
    return member
