"""check: every problem at once, nothing submitted, and what the service's user could not read."""

import os
import pwd
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from finetuned.ctl.access import Reader, find_obstacle
from spools import require

NOBODY = Reader("nobody", 65534, frozenset({65534}))


def test_a_sound_job_file_has_no_problems(bench):
    answer = bench.ctl("check", str(bench.a_spec()))
    assert (answer.code, answer.err) == (0, "")
    assert "no problems" in answer.out


def test_all_problems_are_told_at_once_and_nothing_is_submitted(bench):
    spec = bench.folder / "bad.yaml"
    spec.write_text(
        "base_model: ./nowhere\ndatasets: [{path: gone.jsonl}]\nnum_train_epoch: 3\nfinetuning_type: lorra\n"
    )
    answer = bench.ctl("check", str(spec))
    assert answer.code == 1
    assert "2 problems" in answer.out
    assert "num_train_epochs" in answer.out
    assert "lorra" in answer.out
    assert os.listdir(bench.spool.incoming) == []


def test_files_that_are_not_there_are_problems_too(bench):
    spec = bench.folder / "bad.yaml"
    spec.write_text("base_model: ./nowhere\ndatasets: [{path: gone.jsonl}]\n")
    report = bench.ctl("check", str(spec), "--json").json
    assert report["ok"] is False
    assert {problem["place"] for problem in report["problems"]} == {"base_model", "datasets[0].path"}
    assert str(bench.folder / "gone.jsonl") in report["problems"][0]["what"]


def test_relative_paths_are_seen_from_the_job_file(bench, monkeypatch):
    spec = bench.a_spec()
    monkeypatch.chdir("/")
    assert bench.ctl("check", str(spec)).code == 0


def test_notices_are_told(bench):
    spec = bench.a_spec(extra="lr: 1e-4\n")
    assert "learning_rate" in bench.ctl("check", str(spec)).out
    assert bench.ctl("check", str(spec), "--json").json["notices"] != []


def test_settings_are_checked_with_the_file(bench):
    assert bench.ctl("check", str(bench.a_spec()), "--set", "seed=x").code == 1


def test_a_mistyped_file_name_is_told_the_nearest(bench):
    spec = bench.a_spec()
    answer = bench.ctl("check", str(spec.with_name("tnoe.yaml")))
    assert answer.code == 2
    assert str(spec) in answer.err


def test_an_unknown_user_is_told_the_nearest(bench):
    answer = bench.ctl("check", str(bench.a_spec()), "--user", "nobdy")
    assert answer.code == 2
    assert "did you mean nobody?" in answer.err


def test_what_the_service_cannot_read_is_told_with_the_command_that_mends_it(bench):
    require("nobody" in {entry.pw_name for entry in pwd.getpwall()}, "no user nobody")
    spec = bench.a_spec()
    open_to_all(bench.folder)
    data = bench.folder / "chats.jsonl"
    data.chmod(0o600)
    report = bench.ctl("check", str(spec), "--user", "nobody", "--json").json
    assert [obstacle["blocked_by"] for obstacle in report["obstacles"]] == [str(data)]
    assert report["obstacles"][0]["mend"] == f"setfacl -m u:nobody:r {data}"
    assert bench.ctl("check", str(spec), "--user", "nobody").code == 1
    data.chmod(0o644)
    assert bench.ctl("check", str(spec), "--user", "nobody").code == 0


def open_to_all(path: Path) -> None:
    """Every folder on the way to and in `path` can be searched, every file in it can be read."""
    for folder in (path, *path.parents):
        if folder.stat().st_uid == os.geteuid():
            folder.chmod(folder.stat().st_mode | 0o555 if folder == path else folder.stat().st_mode | 0o111)
    for inside in path.rglob("*"):
        inside.chmod(0o755 if inside.is_dir() else 0o644)


@pytest.fixture
def open_folder(tmp_path):
    open_to_all(tmp_path)
    return tmp_path


def test_a_folder_on_the_way_that_cannot_be_passed_is_the_obstacle(open_folder):
    closed = open_folder / "closed"
    closed.mkdir()
    (closed / "data").touch(0o644)
    assert find_obstacle(closed / "data", NOBODY) is None
    closed.chmod(0o700)
    obstacle = find_obstacle(closed / "data", NOBODY)
    assert obstacle is not None
    assert obstacle.blocked_by == str(closed)
    assert obstacle.mend == f"setfacl -m u:nobody:x {closed}"


def test_a_file_of_a_group_that_the_reader_is_in_is_mended_by_its_group(open_folder):
    data = open_folder / "data"
    data.touch()
    data.chmod(0o600)
    reader = Reader("finetuned", 4242, frozenset({data.stat().st_gid}))
    obstacle = find_obstacle(data, reader)
    assert obstacle is not None
    assert obstacle.mend == f"chmod g+r {data}"
    data.chmod(0o640)
    assert find_obstacle(data, reader) is None


def test_one_closed_file_in_a_model_folder_is_an_obstacle(open_folder):
    weights = open_folder / "model" / "model.safetensors"
    weights.parent.mkdir()
    weights.touch()
    weights.chmod(0o600)
    obstacle = find_obstacle(weights.parent, NOBODY)
    assert obstacle is not None
    assert obstacle.blocked_by == str(weights)


def test_the_target_of_a_link_counts(open_folder):
    target, link = open_folder / "target", open_folder / "link"
    target.touch()
    target.chmod(0o600)
    link.symlink_to(target)
    obstacle = find_obstacle(link, NOBODY)
    assert obstacle is not None
    assert obstacle.blocked_by == str(target)


def test_root_and_the_owner_are_not_kept_out(open_folder):
    data = open_folder / "data"
    data.touch()
    data.chmod(0o600)
    assert find_obstacle(data, Reader("root", 0, frozenset())) is None
    assert find_obstacle(data, Reader("me", data.stat().st_uid, frozenset())) is None


def test_access_lists_are_understood(open_folder):
    data = open_folder / "data"
    data.touch()
    data.chmod(0o600)
    if shutil.which("setfacl"):
        subprocess.run(["setfacl", "-m", "u:65534:r", data], check=True)
    else:
        set_access_list(data, reader=65534)
    assert find_obstacle(data, NOBODY) is None
    assert find_obstacle(data, Reader("other", 4242, frozenset({4242}))) is not None


def set_access_list(path: Path, reader: int) -> None:
    undefined = 0xFFFFFFFF
    entries = [(1, 6, undefined), (2, 4, reader), (4, 0, undefined), (16, 4, undefined), (32, 0, undefined)]
    packed = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(path, "system.posix_acl_access", packed)
    except OSError as error:
        require(False, f"this file system has no access lists: {error}")


def test_links_that_lead_in_a_circle_are_a_problem_like_any_other(bench):
    require("nobody" in {entry.pw_name for entry in pwd.getpwall()}, "no user nobody")
    spec = bench.a_spec()
    (bench.folder / "chats.jsonl").unlink()
    (bench.folder / "chats.jsonl").symlink_to("chats.jsonl")
    answer = bench.ctl("check", str(spec), "--user", "nobody")
    assert answer.code == 1
    assert "chats.jsonl: Too many levels of symbolic links" in answer.out
    assert answer.err == ""


def test_a_gguf_file_that_this_machine_cannot_make_is_a_problem(bench, tmp_path, monkeypatch):
    monkeypatch.setenv("FINETUNED_CONFIG", str(tmp_path))
    monkeypatch.setenv("PATH", "/usr/bin")
    spec = Path(bench.a_spec())
    spec.write_text(spec.read_text() + "export: {gguf: q8_0}\n")
    answer = bench.ctl("check", str(spec))
    assert answer.code == 1
    assert "needs llama.cpp's convert_hf_to_gguf.py" in answer.out
    assert f"set gguf_converter to its path in {tmp_path / 'finetuned.yaml'}" in answer.out
