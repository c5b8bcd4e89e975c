"""A metadata service and a cloud's API on loopback, for the hooks that stop the bill. It keeps what was asked."""

import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

SECRET = "s3cr3t"
"""Part of every secret that a pretended cloud gives or expects, so that one search finds any leak."""


@dataclass(frozen=True)
class Exchange:
    """One request that a hook has to make, and its answer. `needs` are headers that it must carry."""

    method: str
    path: str
    needs: dict[str, str] = field(default_factory=dict)
    gives: bytes | str = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    trailers: dict[str, str] = field(default_factory=dict)
    accepts: Callable[["Asked"], bool] = lambda _: True
    """A further look at the request: a signature, say."""
    takes_seconds: float = 0


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class PretendCloud:
    """Answers each exchange once or more; 404 for what it does not know, 401 where a header lacks."""

    exchanges: tuple[Exchange, ...]
    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    argv_with_a_secret: list[str] = field(default_factory=list)

    def answer(self, asked: Asked) -> Exchange:
        self.asked.append(asked)
        self.argv_with_a_secret += _command_lines_with(SECRET)
        for exchange in self.exchanges:
            if (exchange.method, exchange.path) == (asked.method, asked.path):
                time.sleep(exchange.takes_seconds)
                carries = exchange.needs.items() <= asked.headers.items() and exchange.accepts(asked)
                return exchange if carries else Exchange(asked.method, asked.path, status=401, gives="who are you?")
        return Exchange(asked.method, asked.path, status=404, gives="no such thing")


@contextmanager
def pretended(*exchanges: Exchange, tls: ssl.SSLContext | None = None) -> Iterator[PretendCloud]:
    cloud = PretendCloud(exchanges)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            given = cloud.answer(Asked(self.command, self.path, headers, body))
            content = given.gives.encode() if isinstance(given.gives, str) else given.gives
            self.send_response(given.status)
            for name, value in given.headers.items():
                self.send_header(name, value)
            if given.trailers:
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(content), content) if content else b"")
                trailers = "".join(f"{name}: {value}\r\n" for name, value in given.trailers.items())
                self.wfile.write(f"0\r\n{trailers}\r\n".encode())
            else:
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_DELETE = handle_any

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            pass  # a hook that gave up has closed its end

    server = Server(("127.0.0.1", 0), Handler)
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    cloud.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield cloud
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _command_lines_with(text: str) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue  # ended meanwhile
        if text in command:
            found.append(command)
    return found
