"""``mechheads serve``: the page, and own texts, for this machine only.

It listens on 127.0.0.1, and its address holds a random token. It has three routes and no files: the page, a text to
run, and a run to cancel. Requests from other pages (by ``Host`` and ``Origin``), without the token, or larger than
64 kB are refused.
"""

from __future__ import annotations

import json
import secrets
import select
import socket
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from mechheads.explorer.explore import live_for
from mechheads.explorer.live import Live, Refused, check, check_id
from mechheads.explorer.page import page_html, policy
from mechheads.explorer.payload import Payload, atlas_payload, run_payload
from mechheads.explorer.run_columns import run_table
from mechheads.model.load import load
from mechheads.model.sources import DEFAULT_MODEL
from mechheads.studies.atlas import Atlas
from mechheads.studies.head_patterns import HeadPatterns

MAX_BODY = 64 * 1024
_TEXT = "When Mary and John went to the store, John gave a drink to"
_PATIENCE = 20.0
"""Seconds that a client has to send its request."""


class Server(ThreadingHTTPServer):
    """Serves one page and answers texts.

    Args:
        payload: the page; its ``live`` says whether texts can be run.
        live: what runs them; None if nothing does.
        port: 0 for any that is free.

    Attributes:
        address: where the page is.

    Raises:
        OSError: if the port is taken.
    """

    daemon_threads = True
    allow_reuse_address = False

    def __init__(self, payload: Payload, live: Live | None, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.live = live
        self.page = page_html(payload).encode("utf-8", "replace")
        self.policy = f"{policy(live is not None)}; frame-ancestors 'none'"
        self.token = secrets.token_urlsafe(24)
        hosts = [f"{name}:{self.server_port}" for name in ("127.0.0.1", "localhost")]
        self.hosts, self.origins = set(hosts), {f"http://{host}" for host in hosts}
        self.address = f"http://{hosts[0]}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is gone is no error, and nothing else is printed of a request."""


def served(folder: Path | None = None, name: str | None = None, *, device: str = "auto", port: int = 0) -> Server:
    """A server for a saved atlas, a model, or both; it serves after ``serve_forever``.

    Args:
        folder: of the atlas; without it, the page shows the patterns of one text.
        name: of the model that runs texts; by default the default model, if the atlas is of it or there is none.

    Raises:
        ValueError: if there is no such atlas or model, they do not fit, or the port is taken.
    """
    try:
        atlas = None if folder is None else Atlas.load(folder)
    except FileNotFoundError as error:
        raise ValueError(str(error)) from error
    own = name is not None or atlas is None or atlas.model == DEFAULT_MODEL
    model = load(name, device=device) if own else None
    if atlas is not None:
        live = live_for(atlas, model)
        payload = atlas_payload([atlas], None if live is None else live.page_entry("serve"))
    else:
        live = Live(model or load(device=device))
        attention = live.model.cache([_TEXT], sites=("pattern",)).attention
        patterns = HeadPatterns.of([attention], [_TEXT])
        payload = run_payload(live.model.name, patterns, run_table([attention]), live.page_entry("serve"))
    try:
        return Server(payload, live, port)
    except OSError as error:
        raise ValueError(f"port is {port}, which cannot be used ({error.strerror}); give another, or 0") from error


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = _PATIENCE
    server_version, sys_version = "mechheads", ""

    def do_GET(self) -> None:
        self._guarded(self._get)

    def do_POST(self) -> None:
        self._guarded(self._post)

    def do_DELETE(self) -> None:
        self._guarded(self._delete)

    def _get(self) -> None:
        if self._route() != "":
            raise Refused("there is nothing here", 404)
        self._send(200, self.server.page, "text/html; charset=utf-8")

    def _post(self) -> None:
        live = self._live()
        if self._route() != "api/text":
            raise Refused("there is nothing here", 404)
        asked = check(self._body(), live.n_layers, live.n_heads)
        try:
            self._json(200, live.answer(asked, self._gone))
        except Refused as refused:
            self._json(refused.status, {"id": asked.id, "error": str(refused)})

    def _delete(self) -> None:
        live = self._live()
        start, _, name = self._route().rpartition("/")
        if start != "api/run":
            raise Refused("there is nothing here", 404)
        if not live.cancel(check_id(name)):
            raise Refused("there is no such run", 404)
        self._json(200, {"id": name})

    def _guarded(self, act: Any) -> None:
        """Answer a request, or say why it is refused."""
        try:
            self._check_sender()
            act()
        except Refused as refused:
            self._json(refused.status, {"id": None, "error": str(refused)})
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        except Exception as error:
            self._json(500, {"id": None, "error": f"the text could not be run: {type(error).__name__}"})

    def _check_sender(self) -> None:
        """Refuse requests that another page or machine sends."""
        if self.headers.get_all("Host", []) not in [[host] for host in self.server.hosts]:
            raise Refused("this server answers to its own address only", 421)
        origins = self.headers.get_all("Origin", [])
        if any(origin not in self.server.origins for origin in origins):
            raise Refused("requests of other pages are refused", 403)
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            raise Refused("requests of other pages are refused", 403)

    def _route(self) -> str:
        """The path after the token.

        Raises:
            Refused: if the token is wrong.
        """
        empty, _, rest = self.path.partition("/")
        token, slash, route = rest.partition("/")
        given = token.encode("utf-8", "surrogatepass")
        if empty or not slash or not secrets.compare_digest(given, self.server.token.encode()):
            raise Refused("there is nothing here", 404)
        return route

    def _live(self) -> Live:
        self._route()
        if self.server.live is None:
            raise Refused("no model is loaded; start `mechheads serve` with --model", 404)
        return self.server.live

    def _body(self) -> Any:
        """The JSON of the request.

        Raises:
            Refused: if its length, its type or the JSON is not as it should be.
        """
        if self.headers.get_content_type() != "application/json":
            raise Refused("the request must be application/json", 415)
        lengths = self.headers.get_all("Content-Length", [])
        if "Transfer-Encoding" in self.headers or len(lengths) != 1:
            raise Refused("the request needs one Content-Length", 411)
        if not (lengths[0].isascii() and lengths[0].isdigit()):
            raise Refused("Content-Length must be a number")
        if len(lengths[0]) > 9 or int(lengths[0]) > MAX_BODY:
            raise Refused(f"the request is larger than {MAX_BODY} bytes", 413)
        body = self.rfile.read(int(lengths[0]))
        if len(body) < int(lengths[0]):
            raise Refused("the request ended early")
        try:
            return json.loads(body.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise Refused("the request is not JSON in UTF-8") from error

    def _gone(self) -> bool:
        """Whether the client has closed the connection."""
        try:
            readable, _, _ = select.select([self.connection], [], [], 0)
            return bool(readable) and self.connection.recv(1, socket.MSG_PEEK) == b""
        except OSError:
            return True

    def _json(self, status: int, content: Any) -> None:
        self._send(status, json.dumps(content, allow_nan=False).encode("ascii"), "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status, "Cancelled" if status == 499 else HTTPStatus(status).phrase)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Content-Security-Policy", self.server.policy),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Cache-Control", "no-store"),
            ("Connection", "close"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def parse_request(self) -> bool:
        """Read the first line and the headers; the old HTTP/0.9, which has none, is refused."""
        if not super().parse_request():
            return False
        if self.request_version == "HTTP/0.9":
            self.request_version = "HTTP/1.0"
            self.send_error(400)
            return False
        return True

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Say that a request cannot be read: it is the client's fault, so a 4xx."""
        status = {501: 405, 505: 400}.get(int(code), int(code))
        if self.request_version == "HTTP/0.9":
            self.request_version = "HTTP/1.0"
        self._json(status, {"id": None, "error": "the request cannot be read"})

    def log_message(self, *_: Any) -> None:
        """Texts are nobody else's business: nothing is printed."""
