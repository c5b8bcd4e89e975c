"""The files of /etc/finetuned/credentials that will not do what whoever put them there expects."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

OF_HOOKS = ("hyperstack", "lambda", "openstack", "scaleway")
"""Those of deploy/hooks that read a credential, each the one of its own name."""

_FOR_OTHERS = 0o077


def complaints(credentials: Path, units: Path) -> Iterator[str]:
    """One line each; `units`: those of the release, whose drop-ins name the secrets that stages are given."""
    of_stages = sorted(path.stem for path in units.glob("dropins/credentials/*.conf"))
    if not credentials.is_dir():
        return
    for path in sorted(credentials.iterdir()):
        status = path.lstat()
        if path.name not in (*of_stages, *OF_HOOKS):
            yield f"{path} is used by nothing; known are {', '.join(of_stages)}; for hooks {', '.join(OF_HOOKS)}"
        elif not stat.S_ISREG(status.st_mode):
            kind = "link" if stat.S_ISLNK(status.st_mode) else "folder" if stat.S_ISDIR(status.st_mode) else "device"
            yield f"{path} is a {kind}: put a file with the secret in its place"
        elif status.st_mode & _FOR_OTHERS:
            yield f"{path} has mode {stat.S_IMODE(status.st_mode):04o}, so not root alone has it: chmod 600 {path}"
