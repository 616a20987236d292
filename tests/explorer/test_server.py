"""``mechheads serve``: what it answers, and that it answers nothing else to nobody else."""

from __future__ import annotations

import http.client
import json
import random
import re
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import mechheads as mh
from mechheads.cli import main
from mechheads.explorer import live as live_module
from mechheads.explorer.live import MAX_CHARACTERS, Live, Refused, check
from mechheads.explorer.server import MAX_BODY, Server, served
from mechheads.studies.atlas import Atlas

TEXT = "The capital of France is"


@pytest.fixture(scope="module")
def small(loaded) -> mh.Model:
    return loaded("llama")


@pytest.fixture(scope="module")
def live(small) -> Live:
    return Live(small)


@pytest.fixture(scope="module")
def server(tiny) -> Iterator[Server]:
    with served(None, str(tiny("llama"))) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.05,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def ask(server: Server, method: str, route: str = "", body: Any = None, **headers: str) -> tuple[int, Any, Any]:
    """Status, headers and JSON (or text) of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    sent = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
    given = {"Content-Type": "application/json"} if body is not None else {}
    path = headers.pop("path", f"/{server.token}/{route}")
    connection.request(method, path, sent, given | {k.replace("_", "-"): v for k, v in headers.items()})
    answer = connection.getresponse()
    text = answer.read().decode("utf-8")
    found = json.loads(text) if answer.headers.get_content_type() == "application/json" else text
    return answer.status, answer.headers, found


def request(**fields: Any) -> dict[str, Any]:
    return {"id": "one", "text": TEXT, "head": "L1H2"} | fields


def test_the_page_comes_with_its_policy(server):
    status, headers, page = ask(server, "GET")
    assert status == 200 and page.startswith("<!doctype html>")
    assert (
        "unsafe" not in headers["Content-Security-Policy"]
        and "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    )
    assert (headers["X-Content-Type-Options"], headers["Cache-Control"]) == ("nosniff", "no-store")
    about = json.loads(re.findall(r'id="mh-page">(.*?)</script>', page)[0])
    assert about["live"]["by"] == "serve" and about["live"]["maxCharacters"] == MAX_CHARACTERS
    assert server.server_address[0] == "127.0.0.1" and len(server.token) >= 32


def test_a_text_gives_what_the_package_gives(server, small):
    status, _, found = ask(server, "POST", "api/text", request())
    assert status == 200
    run = small.cache([TEXT])
    assert found["tokens"] == list(run.tokens.strings[0]) and found["text"] == TEXT
    before = run.logits[0, -1].double().softmax(-1)
    assert [one["probability"] for one in found["next"]] == pytest.approx(before.topk(10).values.tolist(), rel=1e-4)
    pattern = run.pattern["L1H2"][0].numpy()
    np.testing.assert_allclose(np.array(found["attention"]["first"]) / 255, pattern[:, 0], atol=0.51 / 255)
    parts = mh.behaviour.logit_attribution(small, [TEXT])
    np.testing.assert_allclose(found["attribution"]["heads"], parts.values.values[..., 0].ravel(), atol=1e-5)
    rest = [*found["attribution"]["heads"], *found["attribution"]["mlp"]]
    total = sum(rest) + found["attribution"]["embedding"] + found["attribution"]["bias"]
    assert total == pytest.approx(found["attribution"]["logit"], abs=1e-3)
    kl = mh.ablate(small, [TEXT], intervention="zero", metric=mh.kl_divergence, heads="L1H2")
    assert found["ablation"]["kl"] == pytest.approx(kl["L1H2"]["score"], rel=1e-3, abs=1e-6)
    assert len(found["ablation"]["after"]) == 10 and found["notes"] == []


def test_a_query_and_a_key_give_the_parts_of_the_score(server, small):
    status, _, found = ask(server, "POST", "api/text", request(query=4, key=3))
    assert status == 200 and found.keys() == {"id", "why", "seconds"}
    whole = mh.behaviour.attention_attribution(small, [TEXT], "L1H2", query=4, key=3)
    why = found["why"]
    assert why["weight"] == pytest.approx(float(small.cache([TEXT]).pattern["L1H2"][0, 4, 3]), abs=1e-5)
    for side, scores in (("atQuery", whole.query), ("atKey", whole.key)):
        parts = {part["name"]: part["value"] for part in why[side]["parts"]}
        assert sum(parts.values()) + why[side]["rest"] == pytest.approx(why["total"], rel=1e-2, abs=1e-3)
        of_heads = [name for name in parts if "H" in name]
        assert of_heads and all(parts[name] == pytest.approx(scores[name]["score"], rel=1e-3) for name in of_heads)
    assert why["total"] == pytest.approx(whole.query.dataset["total"].item(), rel=1e-5)
    status, _, found = ask(server, "POST", "api/text", request(query=400, key=3))
    assert status == 400 and "query and key must be among them" in found["error"]
    status, _, found = ask(server, "POST", "api/text", request(query=0, key=0))
    assert status == 400 and "the query is the first token" in found["error"]


def test_without_a_head_there_is_no_pattern_and_no_ablation(server):
    status, _, found = ask(server, "POST", "api/text", request(head=None))
    assert status == 200 and found["attention"] is None and found["ablation"] is None and found["attribution"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "must be an object with the fields id, text and head"),
        ({"id": "a", "text": "b"}, "must be an object with the fields"),
        (request(more=1), "and no others"),
        (request(id="A"), "id must be 1 to 40"),
        (request(id="../x"), "id must be"),
        (request(id=3), "id must be"),
        (request(text=""), "text must be a text of 1 to"),
        (request(text="a" * (MAX_CHARACTERS + 1)), "text must be a text of 1 to"),
        (request(text=["a"]), "text must be"),
        (request(text="\ud800"), "text"),
        (request(head="L99H99"), "out of range"),
        (request(head="l1h1"), "head must be null or a head"),
        (request(head=7), "head must be null"),
        (request(query=1), "or with query and key too"),
        (request(query=1, key=2), "the key not after the query"),
        (request(query=1, key=-1), "the numbers of two tokens"),
        (request(query=True, key=0), "the numbers of two tokens"),
        (request(query=10**9, key=0), "the numbers of two tokens"),
        (request(query=1, key=0, head=None), "query and key need a head"),
    ],
)
def test_a_request_is_read_field_by_field(given, message, small):
    with pytest.raises(Refused, match=message):
        check(given, small.n_layers, small.n_heads)


def test_a_long_text_is_refused(server, live):
    status, _, found = ask(server, "POST", "api/text", request(text="a b " * 1900))
    assert status == 400 and found["id"] == "one"
    assert re.search(r"tokens", found["error"])


def test_other_pages_are_refused(server):
    port = server.server_port
    for header in (
        {"Host": "evil.example"},
        {"Host": f"127.0.0.1:{port + 1}"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": f"https://127.0.0.1:{port}"},
        {"Sec-Fetch-Site": "cross-site"},
    ):
        assert ask(server, "POST", "api/text", request(), **header)[0] in (403, 421), header
        assert ask(server, "GET", **header)[0] in (403, 421), header
    own = {"Origin": f"http://127.0.0.1:{port}", "Sec-Fetch-Site": "same-origin"}
    assert ask(server, "POST", "api/text", request(head=None), **own)[0] == 200


def test_no_file_is_reachable(server):
    token = server.token
    for path in (
        "/",
        f"/{token}",
        f"/{token[:-1]}/",
        f"/{token}x/",
        f"/{token}/index.html",
        f"/{token}/../../etc/passwd",
        f"/{token}/%2e%2e/etc/passwd",
        f"/{token}/api/text",
        f"/{token}/?a=1",
        "/etc/passwd",
        "//etc/passwd",
        "/static/explorer.js",
    ):
        status, _, found = ask(server, "GET", path=path)
        assert status == 404 and "there is nothing here" in found["error"], path
    assert ask(server, "DELETE", "api/run/none")[0] == 404
    assert ask(server, "DELETE", "api/run/NOT VALID".replace(" ", "%20"))[0] == 400


def test_a_body_has_one_length_and_one_type(server):
    post = ("POST", "api/text")
    assert ask(server, *post, b"{}", Content_Type="text/plain")[0] == 415
    assert ask(server, *post, b"{")[0] == 400
    assert ask(server, *post, b"\xff")[0] == 400
    assert ask(server, *post, b"[" * 50_000)[0] == 400
    assert ask(server, *post, b"", Content_Type="application/json", Content_Length=str(MAX_BODY + 1))[0] == 413
    assert ask(server, *post, b"", Content_Type="application/json", Content_Length="-1")[0] == 400
    assert ask(server, *post, b"", Content_Type="application/json", Content_Length="1" * 5000)[0] == 413
    assert ask(server, "PUT", "api/text", b"{}")[0] == 405


def test_a_thousand_malformed_requests(server):
    """Each is refused with a 4xx (or closed, if nothing of it could be read), and the server goes on."""
    draw = random.Random(0)
    lines = [
        b"GET / HTTP/1.1",
        b"POST /x HTTP/1.1",
        b"GET /",
        b"",
        b"BREW /pot HTTP/1.0",
        b"GET / HTTP/9.9",
        b"GET  / x y",
    ]
    lines += [f"POST /{server.token}/api/text HTTP/1.1".encode(), b"\x00\xff\x16\x03\x01", b"GET " + b"a" * 70_000]
    headers = [b"Host: x", b"Host", b": ", b"Content-Length: ten", b"Content-Length: 5", b"Transfer-Encoding: chunked"]
    headers += [
        b"A: " + b"b" * 70_000,
        b"\xff\xfe: 1",
        b"Origin: http://x",
        f"Host: 127.0.0.1:{server.server_port}".encode(),
    ]
    seen: dict[bytes, int] = {}
    for _ in range(1000):
        parts = [draw.choice(lines), *draw.sample(headers, draw.randrange(4)), b"", draw.randbytes(draw.randrange(40))]
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=30) as client:
            try:
                client.sendall(b"\r\n".join(parts))
                client.shutdown(socket.SHUT_WR)
                answer = client.recv(12)
            except OSError:  # it answered and closed before everything was sent
                answer = b""
        seen[answer[9:10]] = seen.get(answer[9:10], 0) + 1
    assert seen.keys() <= {b"4", b""} and seen[b"4"] > 700
    assert ask(server, "POST", "api/text", request(head=None))[0] == 200


def slow_steps(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let the first step of every run wait until the event is set."""
    event, step = threading.Event(), live_module._run

    def waits(*args: Any, **rest: Any) -> Any:
        event.wait(30)
        return step(*args, **rest)

    monkeypatch.setattr(live_module, "_run", waits)
    return event


def until(true: Any) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_run_can_be_cancelled_while_it_waits_and_while_it_runs(server, monkeypatch):
    event, found = slow_steps(monkeypatch), dict[str, int]()

    def post(name: str) -> threading.Thread:
        def run() -> None:
            found[name] = ask(server, "POST", "api/text", request(id=name))[0]

        thread = threading.Thread(target=run)
        thread.start()
        until(lambda: name in server.live._runs)
        return thread

    first, second = post("first"), post("second")
    assert ask(server, "POST", "api/text", request(id="first"))[0] == 409
    assert ask(server, "DELETE", "api/run/second")[0] == 200
    second.join(20)
    assert found == {"second": 499}
    assert ask(server, "DELETE", "api/run/first")[0] == 200
    event.set()
    first.join(20)
    assert found == {"second": 499, "first": 499}
    assert ask(server, "POST", "api/text", request())[0] == 200


def test_a_client_that_is_gone_stops_its_run(server, monkeypatch):
    event = slow_steps(monkeypatch)
    body = json.dumps(request(id="gone")).encode()
    head = f"POST /{server.token}/api/text HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    parts = []
    monkeypatch.setattr(live_module, "_parts", lambda *args: parts.append(args))
    with socket.create_connection(("127.0.0.1", server.server_port)) as client:
        client.sendall(head.encode() + body)
        until(lambda: "gone" in server.live._runs)
    event.set()
    until(lambda: "gone" not in server.live._runs)
    assert parts == []


def test_few_may_wait(server, monkeypatch):
    event = slow_steps(monkeypatch)
    threads = [threading.Thread(target=ask, args=(server, "POST", "api/text", request(id=f"n{i}"))) for i in range(5)]
    for thread in threads:
        thread.start()
    until(lambda: len(server.live._runs) == 5)
    assert ask(server, "POST", "api/text", request(id="late"))[0] == 429
    event.set()
    for thread in threads:
        thread.join(30)


def test_an_architecture_without_direct_parts_says_so(live, monkeypatch):
    def fails(*args: Any, **rest: Any) -> Any:
        raise ValueError("it does not support logit_attribution")

    monkeypatch.setattr(live_module, "logit_attribution", fails)
    found = live.answer(check(request(), live.n_layers, live.n_heads))
    assert found["attribution"] is None and found["notes"] == ["it does not support logit_attribution"]


def saved(folder: Any, n_layers: int, n_heads: int) -> Any:
    effect = mh.HeadScores.from_scores(np.zeros((n_layers, n_heads)), name="effect", kind="activation_patch")
    Atlas("somebody's", patching=effect).save(folder)
    return folder


def test_an_atlas_alone_runs_no_texts(tmp_path):
    with served(saved(tmp_path, 2, 2)) as running:
        threading.Thread(target=running.serve_forever, args=(0.05,), daemon=True).start()
        assert ask(running, "GET")[0] == 200
        status, _, found = ask(running, "POST", "api/text", request())
        assert status == 404 and "start `mechheads serve` with --model" in found["error"]
        running.shutdown()


def test_an_atlas_needs_its_own_model(tmp_path, tiny, small):
    with pytest.raises(ValueError, match="but the atlas is of 2 x 2 heads"):
        served(saved(tmp_path / "other", 2, 2), str(tiny("llama")))
    with served(saved(tmp_path / "own", small.n_layers, small.n_heads), str(tiny("llama"))) as running:
        assert running.live is not None


def test_the_command_says_what_is_wrong(tmp_path, server):
    done = CliRunner().invoke(main, ["serve", str(tmp_path)])
    assert done.exit_code == 1 and "has no atlas.json" in done.output
    done = CliRunner().invoke(main, ["serve", str(saved(tmp_path, 2, 2)), "--port", str(server.server_port)])
    assert done.exit_code == 1 and "cannot be used" in re.sub(r"\s+", " ", done.output)


def test_the_command_serves_until_ctrl_c(tmp_path, monkeypatch):
    def stops(self: Server) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Server, "serve_forever", stops)
    done = CliRunner().invoke(main, ["serve", str(saved(tmp_path, 2, 2))])
    assert done.exit_code == 0 and re.search(r"Open http://127\.0\.0\.1:\d+/[\w-]{32}/ in a browser", done.output)
