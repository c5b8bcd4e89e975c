"""What the programs of a server in a folder (servers.py) do when deploy/install calls them. Quick to import."""

import json
import os
import sys
from pathlib import Path
from typing import Any

State = dict[str, Any]
"""state.json: what Server.says told, and what the stubs changed since."""


def read_state(root: Path) -> State:
    path = root / "state.json"
    return json.loads(path.read_text()) if path.exists() else {}


def write_state(root: Path, state: State) -> None:
    (root / "state.json").write_text(json.dumps(state))


def stub(argv: list[str]) -> int:
    root = Path(os.environ["STUB_ROOT"])
    path = Path(argv[0])
    words = argv[1:]
    with (root / "asked").open("a") as asked:
        asked.write(" ".join([path.name, *words]).replace("\n", " ") + "\n")
    stubs = {
        "apt-get": _apt_get,
        "dpkg-query": _dpkg_query,
        "systemctl": _systemctl,
        "systemd-tmpfiles": _tmpfiles,
        "journalctl": _journalctl,
        "usermod": _usermod,
        "id": _id,
        "nvidia-smi": lambda root, words, state: print("GPU 0: H100") if state.get("gpu") else 9,
        "python3": lambda root, words, state: _python(root, path, words, state),
        "python": lambda root, words, state: _python(root, path, words, state),
        "finetunectl": lambda root, words, state: _doctor(root, state),
    }
    return stubs.get(path.name, lambda *_: None)(root, words, read_state(root)) or 0


def _apt_get(root: Path, words: list[str], state: State) -> int | None:
    if state.get("apt_fails"):
        print("E: Unable to locate package", file=sys.stderr)
        return 100
    if "install" in words:
        new = [word for word in words[words.index("install") + 1 :] if not word.startswith("-")]
        state["packages"] |= dict.fromkeys(new, "122-3")
        write_state(root, state | {"headers": True, "venv": True})
    return None


def _dpkg_query(_root: Path, words: list[str], state: State) -> int:
    version = state["packages"].get(words[-1])
    if version is None:
        return 1
    print(f"installed {version}", end="")
    return 0


def _current(root: Path) -> str:
    return Path(os.readlink(root / "opt/finetuned/current")).name


def _systemctl(root: Path, words: list[str], state: State) -> int | None:
    if words[0] == "--version":
        print(f"systemd {state['systemd']} (stub)")
    elif words[0] == "show":
        active = state.get("active", "inactive")
        print(f"LoadState=loaded\nActiveState={active}\nResult=exit-code\nNRestarts=0")
        print(f"ConditionResult={'no' if state.get('held_back') else 'yes'}")
    elif words[0] == "restart" and words[1] == "finetuned.service":
        version = _current(root).split("-")[0]
        broken = version in state.get("does_not_start", [])
        active = "inactive" if state.get("held_back") else "failed" if broken else "active"
        write_state(root, state | {"active": active})
        return 1 if broken else 0
    elif words[0] == "is-enabled":
        print("enabled" if words[1] in state.get("enabled", []) else "disabled")
    elif words[0] == "enable":
        write_state(root, state | {"enabled": [*state.get("enabled", []), *words[1:]]})
    elif words[0] == "disable":
        write_state(root, state | {"enabled": [], "active": "inactive"})
    elif words[0] == "daemon-reload":
        write_state(root, state | {"read": [*state.get("read", []), _units_and_rules(root)]})
    elif words[0] == "list-units":
        for unit in state.get("stages", []):
            print(f"{unit} loaded active running a stage")
    return None


def _journalctl(_root: Path, words: list[str], state: State) -> None:
    """Of what finetuned.service wrote there is `journal`, of what systemd wrote of it `journal_of_systemd`."""
    if "_SYSTEMD_UNIT=finetuned.service" in words:
        print(*state.get("journal", []), sep="\n")
    elif "--unit=finetuned.service" in words:
        print(*state.get("journal_of_systemd", []), sep="\n")


def _units_and_rules(root: Path) -> list[str]:
    """What lies there when systemd reads its units anew."""
    folders = (root / "usr/local/lib/systemd/system", root / "etc/polkit-1/rules.d")
    return sorted(path.name for folder in folders for path in folder.glob("*.*") if path.is_file())


def _tmpfiles(root: Path, words: list[str], _state: State) -> None:
    for line in Path(words[-1]).read_text().splitlines():
        if line.startswith("d "):
            (root / line.split()[1].lstrip("/")).mkdir(parents=True, exist_ok=True)


def _usermod(root: Path, words: list[str], state: State) -> None:
    write_state(root, state | {"members": [*state.get("members", []), words[-1]]})


def _id(_root: Path, words: list[str], state: State) -> int:
    if words[-1] not in state["groups"]:
        return 1
    print(words[-1], "finetuned" if words[-1] in state.get("members", []) else "")
    return 0


def _doctor(root: Path, state: State) -> int:
    if _current(root).split("-")[0] in state.get("unwell", []):
        print("ok    spool   open to you\nfail  torch   cannot be imported")
        return 1
    return 0


def _python(root: Path, path: Path, words: list[str], state: State) -> int | None:
    """As an interpreter that tells of itself, makes environments, and has pip."""
    if "-c" in words:
        return _python_runs(words[words.index("-c") + 1], path, state)
    if words[:2] == ["-m", "venv"]:
        folder = Path(words[-1])
        (folder / "bin").mkdir(parents=True)
        (folder / f"lib/python3.{state['python'][1]}/site-packages").mkdir(parents=True)
        _copy(root, folder / "bin/python")
    elif words[:2] == ["-m", "pip"]:
        return _pip(root, words[2:], state)
    return None


def _python_runs(code: str, path: Path, state: State) -> int:
    if "has_headers" in code:
        facts = {"version": state["python"], "path": str(path), "prefix": "/usr"}
        print(json.dumps(facts | {"has_venv": state.get("venv", True), "has_headers": state.get("headers", True)}))
        return 0
    missing = [name for name in state.get("cannot_import", []) if name in code.removeprefix("import ").split(", ")]
    for name in missing:
        print(f"ModuleNotFoundError: No module named {name!r}", file=sys.stderr)
    return 1 if missing or "urlopen" in code else 0


def _pip(root: Path, words: list[str], state: State) -> int:
    """Always called as: --python PYTHON VERB …"""
    python, verb = Path(words[1]), words[2]
    half = python.parents[1].name
    if half in state.get("pip_fails", []):
        print("ERROR: [Errno 28] No space left on device", file=sys.stderr)
        return 1
    if half == state.get("pip_hangs"):
        os.execvp("sleep", ["sleep", "60"])
    if verb == "wheel":
        target = Path(words[words.index("-w") + 1])
        target.mkdir(parents=True, exist_ok=True)
        if words[-1] == "systemd-python":
            (target / "systemd_python-235-cp311-cp311-linux_x86_64.whl").touch()
    else:
        _copy(root, python.parent / "finetunectl")
    return 0


def _copy(root: Path, target: Path) -> None:
    """This program under another name."""
    target.write_bytes((root / "bin/python3").read_bytes())
    target.chmod(0o755)
