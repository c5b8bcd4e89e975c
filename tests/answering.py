"""A web server on the loopback that answers what a test tells it to."""

import http.server
import threading
from typing import Any


class Server:
    """A web server whose next answers are a list: (status, headers, body)."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, str], bytes]] = []
        self.bodies: list[bytes] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, headers, body = outer.answers.pop(0)
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                outer.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
                self.do_GET()

            def log_message(self, *arguments: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        self.url = f"{self.address}/finetuned-1.2.3.tar.gz"

    def serves(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.answers.append((status, {name.replace("_", "-"): value for name, value in headers.items()}, body))
