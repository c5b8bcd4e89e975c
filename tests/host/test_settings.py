"""The settings file: what is wrong with it is told in words, all at once."""

from pathlib import Path

import pytest

from finetuned.host.settings import InvalidSettings, Settings, read_settings


def test_without_a_file_all_settings_are_the_defaults(tmp_path: Path):
    assert read_settings(tmp_path) == Settings()


def test_every_mistake_is_told_with_its_setting_and_what_was_found(tmp_path: Path):
    (tmp_path / "finetuned.yaml").write_text("turn_secons: 3\ncpu_slots: 0\nbananas: 1\n")
    with pytest.raises(InvalidSettings) as told:
        read_settings(tmp_path)
    assert str(told.value).splitlines() == [
        f"{tmp_path}/finetuned.yaml:",
        "  cpu_slots: Input should be greater than or equal to 1, found 0",
        "  turn_secons: is not a known setting; did you mean turn_seconds?",
        "  bananas: is not a known setting",
    ]


def test_a_file_that_is_no_yaml_is_told_with_its_path(tmp_path: Path):
    (tmp_path / "finetuned.yaml").write_text("a: [1\n")
    with pytest.raises(InvalidSettings, match=rf"^{tmp_path}/finetuned.yaml: "):
        read_settings(tmp_path)
