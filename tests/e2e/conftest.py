"""One tiny model for all end-to-end tests, and a daemon for each."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from daemons import Daemon, a_home


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_home(tmp_path_factory.mktemp("home"))


@pytest.fixture
def a_daemon(tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """Starts daemons on `tmp_path`; whatever they leave running is ended."""
    daemons: list[Daemon] = []

    def start(**settings: object) -> Daemon:
        daemons.append(Daemon(tmp_path, **settings))
        return daemons[-1].start()

    yield start
    for daemon in daemons:
        daemon.close()
