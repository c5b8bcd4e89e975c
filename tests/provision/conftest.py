"""A blank machine for each test, and the driver's libraries, compiled once."""

from pathlib import Path

import pytest

from blank_machine import BlankMachine, compile_driver_libraries


@pytest.fixture(scope="session")
def driver_libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_driver_libraries(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def blank(tmp_path: Path, driver_libraries: Path) -> BlankMachine:
    return BlankMachine(tmp_path, driver_libraries)
