"""Models from the hub, through the hub's own client and a stand-in for the hub on the loopback."""

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from finetuned.core.problems import StageFailed, StopRequested
from finetuned.host.files import is_locked, take_lock
from finetuned.prepare import download
from finetuned.prepare.login import use_hub_credential
from preparing import InProcess, a_chat, a_model_folder

pytestmark = pytest.mark.slow

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class StandIn:
    """A hub with one model, org/tiny, whose main branch is COMMIT. `refuse` makes it answer everything so."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.refuse: tuple[int, str] | None = None
        self.hold = threading.Event()
        """Clear: file contents are not given out until it is set."""
        self.hold.set()
        self.paths: list[str] = []
        self.tokens: set[str | None] = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.hold.set()
        self._server.shutdown()
        self._server.server_close()

    def files(self) -> list[Path]:
        return [path for path in sorted(self.folder.iterdir()) if path.is_file()]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self.answer()

            def do_GET(self) -> None:
                self.answer()

            def log_message(self, *_: object) -> None:
                pass

            def answer(self) -> None:
                path = self.path.partition("?")[0]
                hub.paths.append(path)
                hub.tokens.add(self.headers.get("Authorization"))
                if hub.refuse:
                    status, code = hub.refuse
                    return self.send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": "no"})
                if path in ("/api/models/org/tiny", f"/api/models/org/tiny/revision/{COMMIT}"):
                    return self.send(200, json.dumps(hub_info(hub)).encode())
                if path.startswith("/api/models/org/tiny/revision/"):
                    return self.send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
                if path == f"/api/models/org/tiny/tree/{COMMIT}":
                    return self.send(200, json.dumps([tree_entry(file) for file in hub.files()]).encode())
                if path.startswith(f"/org/tiny/resolve/{COMMIT}/"):
                    file = hub.folder / path.rpartition("/")[2]
                    if self.command == "GET" and file.suffix == ".safetensors":
                        hub.hold.wait(60)
                    headers = {"ETag": f'"{sha256(file)}"', "X-Repo-Commit": COMMIT}
                    return self.send(200, file.read_bytes(), headers)
                return self.send(404, b"{}", {"X-Error-Code": "RepoNotFound"})

            def send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
                self.send_response(status)
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

        return Handler


def hub_info(hub: StandIn) -> dict[str, Any]:
    siblings = [
        {"rfilename": file.name, "size": file.stat().st_size, "blobId": "0", "lfs": lfs(file)} for file in hub.files()
    ]
    return {"id": "org/tiny", "modelId": "org/tiny", "sha": COMMIT, "siblings": siblings, "tags": []}


def tree_entry(file: Path) -> dict[str, Any]:
    return {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": "0"}


def lfs(file: Path) -> dict[str, Any] | None:
    if file.suffix != ".safetensors":
        return None
    return {"sha256": sha256(file), "size": file.stat().st_size, "pointerSize": 130}


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.fixture
def hub(tmp_path: Path, chatml: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    folder = a_model_folder(tmp_path / "published", chatml)
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    (folder / "modeling_evil.py").write_text("raise SystemExit")
    hub = StandIn(folder)
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield hub
    hub.close()


@pytest.fixture
def stage(tmp_path: Path) -> InProcess:
    return InProcess(tmp_path, Path("org/tiny"))


def test_a_hub_model_comes_to_the_store_pinned_hashed_and_without_code_or_pickles(
    hub: StandIn, stage: InProcess
) -> None:
    facts = stage.prepare(stage.spec(a_chat("a", "b")))
    assert facts.model.name == "org/tiny"
    assert facts.model.revision == COMMIT
    folder = Path(facts.model.path)
    assert folder == stage.root / f"spool/store/models/org--tiny--{COMMIT}"
    assert {file.path: file.sha256 for file in facts.model.files} == {
        file.name: sha256(file) for file in hub.files() if file.suffix not in (".bin", ".py")
    }
    assert {path.name for path in folder.iterdir()} == {file.path for file in facts.model.files} | {"manifest.json"}
    assert hub.tokens == {"Bearer hf_secret"}


def test_the_token_is_read_from_the_credential_and_written_nowhere(
    hub: StandIn, stage: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "credentials").mkdir()
    (tmp_path / "credentials" / "hub_token").write_text("hf_of_the_file\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path / "credentials"))
    monkeypatch.setenv("HF_TOKEN_PATH", "put back after this test")
    use_hub_credential()
    stage.prepare(stage.spec(a_chat("a", "b")))
    assert hub.tokens == {"Bearer hf_of_the_file"}
    assert not any("hf_of_the_file" in value or value == "hf_secret" for value in os.environ.values())
    written = [path for path in stage.root.rglob("*") if path.is_file() and path.name != "hub_token"]
    assert written
    assert not any(b"hf_of_the_file" in path.read_bytes() for path in written)
    assert "hf_of_the_file" not in "".join(capfd.readouterr())


def test_on_a_server_a_refusal_says_where_a_token_belongs(
    hub: StandIn, stage: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "etc" / "credentials").mkdir(parents=True)
    monkeypatch.setenv("FINETUNED_CONFIG", str(tmp_path / "etc"))
    hub.refuse = (403, "GatedRepo")
    with pytest.raises(StageFailed) as failure:
        stage.prepare(stage.spec(a_chat("a", "b")))
    assert f"put a token into {tmp_path}/etc/credentials/hub_token as root" in failure.value.hint


def test_a_model_that_the_store_holds_is_not_fetched_again(hub: StandIn, stage: InProcess) -> None:
    spec = stage.spec(a_chat("a", "b"))
    first = stage.prepare(spec)
    hub.paths.clear()
    assert stage.prepare(spec) == first
    assert hub.paths == ["/api/models/org/tiny"]
    hub.refuse = (503, "")
    assert stage.prepare(spec.model_copy(update={"revision": COMMIT})) == first


@pytest.mark.parametrize(
    ("refusal", "what", "hint"),
    [
        ((401, "RepoNotFound"), "the hub has no model org/tiny, or does not show it with this login", "HF_TOKEN"),
        ((404, "RepoNotFound"), "the hub has no model org/tiny, or does not show it with this login", "HF_TOKEN"),
        ((403, "GatedRepo"), "org/tiny is gated, and the hub does not give it out with this login", "ask for access"),
    ],
)
def test_a_refusal_of_the_hub_is_final_and_says_what_to_do(
    hub: StandIn, stage: InProcess, refusal: tuple[int, str], what: str, hint: str
) -> None:
    hub.refuse = refusal
    with pytest.raises(StageFailed) as failure:
        stage.prepare(stage.spec(a_chat("a", "b")))
    assert str(failure.value) == what
    assert hint in failure.value.hint
    assert not failure.value.retry


def test_a_revision_that_does_not_exist_is_final(hub: StandIn, stage: InProcess) -> None:
    with pytest.raises(StageFailed, match="org/tiny has no revision v9") as failure:
        stage.prepare(stage.spec(a_chat("a", "b"), revision="v9"))
    assert not failure.value.retry


def test_a_model_with_pickled_weights_alone_is_refused(hub: StandIn, stage: InProcess) -> None:
    (hub.folder / "model.safetensors").unlink()
    with pytest.raises(StageFailed, match=r"no safetensors weights \(only pytorch_model.bin\)") as failure:
        stage.prepare(stage.spec(a_chat("a", "b")))
    assert not failure.value.retry


def test_a_network_that_is_down_is_waited_out(hub: StandIn, stage: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(StageFailed, match=r"org/tiny could not be fetched from http://127.0.0.1:9: ConnectError") as it:
        stage.prepare(stage.spec(a_chat("a", "b")))
    assert (it.value.retry, it.value.cause) == (True, "network")


def test_a_hub_in_trouble_is_waited_out(hub: StandIn, stage: InProcess) -> None:
    hub.refuse = (502, "")
    with pytest.raises(StageFailed, match="could not be fetched") as failure:
        stage.prepare(stage.spec(a_chat("a", "b")))
    assert (failure.value.retry, failure.value.cause) == (True, "network")


def test_offline_mode_is_named(hub: StandIn, stage: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(StageFailed, match="HF_HUB_OFFLINE forbids going there") as failure:
        stage.prepare(stage.spec(a_chat("a", "b")))
    assert not failure.value.retry


def test_a_download_that_hangs_is_left_when_the_stage_is_to_stop(hub: StandIn, stage: InProcess) -> None:
    hub.hold.clear()
    run = stage.new_run()

    def stop_when_the_weights_are_asked_for() -> None:
        while not any(path.endswith(".safetensors") for path in list(hub.paths)):
            hub.hold.wait(0.05)
        run.stop.why = "asked to stop (SIGTERM)"

    threading.Thread(target=stop_when_the_weights_are_asked_for, daemon=True).start()
    with pytest.raises(StopRequested):
        stage.prepare(stage.spec(a_chat("a", "b")), run)
    hub.hold.set()
    assert stage.prepare(stage.spec(a_chat("a", "b"))).model.revision == COMMIT


def test_a_lock_whose_file_is_pruned_while_it_is_taken_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / ".org--tiny.lock"

    def taken_and_then_pruned(path: Path) -> int | None:
        monkeypatch.undo()
        lock = take_lock(path)
        path.unlink()
        return lock

    monkeypatch.setattr(download, "take_lock", taken_and_then_pruned)
    download._wait_for_lock(path)
    assert is_locked(path)
