"""A server without tokens trusts its machine, and no page of a foreign site that is shown there."""

from __future__ import annotations

import http.client
import http.server
import json
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

import headwater
from headwater.serve.listening import ListenAddress
from headwater.serve.monitoring import monitored
from tests.support.api import ApiServer, messages_of
from tests.support.browser import Tab, open_browser
from tests.support.farms import one_each, replicas
from tests.support.servers import Server
from tests.support.timeline_http import Client, LocalServer, element, records

# Names that anybody may own and point to 127.0.0.1, whatever they begin with.
FOREIGN_HOSTS = ["127.evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "127.1"]
OWN_HOSTS = ["127.0.0.1", "127.8.9.10", "localhost", "LocalHost", "[::1]"]

Ask = Callable[..., int]


@contextmanager
def api(valkey: Server) -> Iterator[tuple[int, str, bytes]]:
    with ApiServer(valkey.url) as opened:
        yield opened.port, messages_of("guarded"), b'{"value": "x"}'


@contextmanager
def roshi(valkey: Server) -> Iterator[tuple[int, str, bytes]]:
    with LocalServer(one_each(replicas(valkey, 1))) as opened:
        yield opened.port, "/", json.dumps([element("k", 1, "a")]).encode()


@contextmanager
def watched(_: Server) -> Iterator[tuple[int, str, bytes]]:
    with monitored(ListenAddress("127.0.0.1", 0)) as url:
        yield int(url.rpartition(":")[2]), "/metrics", b""


@pytest.fixture(scope="module", params=[api, roshi, watched])
def ask(request: pytest.FixtureRequest, valkey: Server) -> Iterator[Ask]:
    """Ask each kind of server for what it is there for."""
    with request.param(valkey) as (port, path, body):

        def ask(**headers: str) -> int:
            headers.setdefault("Host", f"127.0.0.1:{port}")
            with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as sent:
                sent.request("POST" if body else "GET", path, body or None, headers)
                return sent.getresponse().status

        yield ask


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
def test_a_name_that_only_looks_like_the_loopback_is_refused(ask: Ask, host: str) -> None:
    assert ask(Host=f"{host}:6300") == 403
    assert ask(Host=host) == 403


@pytest.mark.parametrize("host", OWN_HOSTS)
def test_every_spelling_of_the_loopback_is_served(ask: Ask, host: str) -> None:
    assert ask(Host=f"{host}:6300") < 300
    assert ask(Host=f"{host}:6300", Origin=f"http://{host}:6300") < 300


@pytest.mark.parametrize("origin", ["https://evil.example", "http://127.0.0.1:1", "null"])
def test_a_request_of_a_page_of_another_origin_is_refused(ask: Ask, origin: str) -> None:
    assert ask(Origin=origin) == 403


@pytest.mark.timeout(300)
def test_a_browser_cannot_be_led_to_a_server_by_a_foreign_site(valkey: Server) -> None:
    """The page of a foreign site sends across origins, or has its name pointed to the loopback."""
    with (
        open_browser("--host-resolver-rules=MAP *.evil.example 127.0.0.1") as browser,
        ApiServer(valkey.url) as api,
        LocalServer(one_each(replicas(valkey, 1))) as timelines,
        page_of_another_site() as elsewhere,
        headwater.connect(valkey.url) as hw,
    ):
        name = f"s-{secrets.token_hex(4)}"
        hw.stream(name).write("", b"secret")
        of_stream = {"GET": messages_of(name), "POST": messages_of(name)}
        for port, paths in (
            (api.port, {**of_stream, "DELETE": f"/v1/streams/{name}"}),
            (timelines.port, {"GET": "/?key=aw", "POST": "/", "DELETE": "/"}),
        ):
            with closing(Tab(browser, f"http://127.evil.example:{port}")) as rebound:
                assert rebound.open(paths.pop("GET")).status == 403
                sent = "([method, path]) => fetch(path, {method}).then((answer) => answer.status)"
                for asked in paths.items():
                    assert rebound.page.evaluate(sent, list(asked)) == 403
        with closing(Tab(browser, f"http://page.evil.example:{elsewhere}")) as foreign:
            foreign.open("/")
            for port, path, body in (
                (api.port, messages_of(name), {"value": "forged"}),
                (timelines.port, "/", [element("k", 1, "forged")]),
            ):
                # It is sent without asking the server first; what comes back is not shown.
                words = [f"http://127.0.0.1:{port}{path}", json.dumps(body)]
                sent = "([to, body]) => fetch(to, {method: 'POST', mode: 'no-cors', body})"
                foreign.page.evaluate(sent, words)
        assert [message and message.value for message in hw.stream(name).read(1, 9)] == [b"secret"]
        with closing(Client(timelines.port)) as client:
            assert records(client.select("k"), "k") == []


@contextmanager
def page_of_another_site() -> Iterator[int]:
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as site:
        serving = threading.Thread(target=site.serve_forever)
        serving.start()
        try:
            yield site.server_port
        finally:
            site.shutdown()
            serving.join()
