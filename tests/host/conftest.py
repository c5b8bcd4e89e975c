"""A directory that other users can reach, for tests that become one of them."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from spools import require


@pytest.fixture
def public_path() -> Iterator[Path]:
    """Needs root, because what is tested in it is what others may do."""
    require(os.geteuid() == 0, "only root can become somebody else")
    path = Path(tempfile.mkdtemp(prefix="finetuned-test-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)
