"""The API in an application of a user: the same answers, the same checks, mounted anywhere."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from headwater import InvalidInput
from headwater.serve import Grant, Scope, asgi_app
from headwater.serve.tokens import add_token
from tests.support.api import ApiClient, messages_of
from tests.support.asgi import JSON_HEADERS, Exchange, lifespan_of, under_uvicorn
from tests.support.stores import Stores

ALL = Grant("the app", {Scope.ADMIN: ["*"]})


@pytest.fixture(scope="module")
def url(stores: Stores) -> str:
    return stores.url("plain")


@pytest.fixture
def name() -> str:
    return f"s-{secrets.token_hex(4)}"


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())


def test_nobody_opens_it_by_accident(url: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="who may ask"):
        asgi_app(url)
    with pytest.raises(InvalidInput, match="who may ask"):
        asgi_app(url, tokens=tmp_path / "tokens.json", grant=ALL)


@pytest.mark.parametrize("root", ["", "/hw", "/a b/c"])
def test_it_serves_the_same_api_wherever_it_is_mounted(url: str, name: str, root: str) -> None:
    async def work() -> None:
        async with asgi_app(url, grant=ALL) as api:
            path = messages_of(f"{name}/0")
            assert "%2F" in path
            wrote = await Exchange(api, "POST", path, b'{"value":"x"}', root).answer()
            assert (wrote.status, wrote.body["stream"]) == (201, f"{name}/0")
            assert wrote.headers["x-request-id"]
            read = await Exchange(api, "GET", f"{path}?from=1", root=root).answer()
            assert [message["value"] for message in read.body["messages"]] == ["x"]
            head = await Exchange(api, "HEAD", f"{path}?from=1", root=root).answer()
            assert (head.status, head.body) == (200, b"")
            assert int(head.headers["content-length"]) > 50
            known = (*JSON_HEADERS, (b"if-none-match", read.headers["etag"].encode()))
            same = await Exchange(api, "GET", f"{path}?from=1", root=root, headers=known).answer()
            assert (same.status, same.body) == (304, b"")
            wrong = await Exchange(api, "GET", "/v1/nothing", root=root).answer()
            assert (wrong.status, wrong.body["status"]) == (404, 404)
            told = (await Exchange(api, "GET", "/v1/openapi.json", root=root).answer()).body
            assert told.get("servers", [{"url": ""}]) == [{"url": root}]

    run(work)


def test_a_token_is_asked_for_before_a_body_is_read(url: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    token = add_token(path, "reader", {Scope.READ: [name]})
    shown = (*JSON_HEADERS, (b"authorization", f"Bearer {token}".encode()))

    async def work() -> None:
        async with asgi_app(url, tokens=path) as api:
            for headers, status in ((JSON_HEADERS, 401), (shown, 403)):
                exchange = Exchange(api, "POST", messages_of(name), b"{}", headers=headers)
                assert (await exchange.answer()).status == status
                assert exchange.received == 0
            assert (
                await Exchange(api, "GET", messages_of(name), headers=shown).answer()
            ).status == 200
            assert (await Exchange(api, "GET", "/healthz", b"x").answer()).status == 401

    run(work)


def test_an_application_says_what_each_of_its_clients_may_do(url: str, name: str) -> None:
    grants = {
        "ann": Grant("ann", {Scope.WRITE: ["*"]}),
        "bob": Grant("bob", {Scope.READ: [f"{name}*"]}),
    }

    async def work() -> None:
        async with asgi_app(url, grant=lambda scope: grants.get(scope["user"])) as api:

            async def status(user: str, method: str, path: str, body: bytes = b"") -> int:
                return (await Exchange(api, method, path, body, user=user).answer()).status

            path = messages_of(name)
            assert await status("ann", "POST", path, b'{"value":"x"}') == 201
            assert await status("bob", "POST", path, b'{"value":"x"}') == 403
            assert await status("bob", "GET", path) == 200
            assert await status("bob", "GET", messages_of("other")) == 403
            assert await status("eve", "GET", path) == 401
            assert await status("ann", "DELETE", f"/v1/streams/{name}") == 403

    run(work)


def test_a_page_of_a_foreign_site_does_not_use_the_cookies_of_a_user(url: str, name: str) -> None:
    async def work() -> None:
        async with asgi_app(url, grant=ALL, origins=("https://friend.example",)) as api:
            for origin, status in (
                (b"https://evil.example", 403),
                (b"null", 403),
                (b"https://app.example", 201),
                (b"https://friend.example", 201),
            ):
                headers = (*JSON_HEADERS, (b"origin", origin))
                exchange = Exchange(
                    api, "POST", messages_of(name), b'{"value":"x"}', headers=headers
                )
                assert (await exchange.answer()).status == status, origin

    run(work)


def test_a_body_is_read_as_far_as_it_may_be(url: str, name: str) -> None:
    async def work() -> None:
        async with asgi_app(url, grant=ALL, max_body=100) as api:
            large = json.dumps({"value": "x" * 100}).encode()
            for headers in (JSON_HEADERS, (*JSON_HEADERS, (b"content-length", b"0"))):
                exchange = Exchange(api, "POST", messages_of(name), large, headers=headers)
                assert (await exchange.answer()).status == 413
            left = Exchange(api, "POST", messages_of(name))
            left._events.get_nowait()
            left.leave()
            await left.done
            assert left.sent == [], "who has gone is not answered, and has written nothing"
            assert (await Exchange(api, "GET", messages_of(name)).answer()).body["last"] == 0

    run(work)


def test_a_client_that_leaves_ends_what_waits_for_it(url: str, name: str) -> None:
    async def work() -> None:
        async with asgi_app(url, grant=ALL) as api:
            path = f"/v1/streams/{name}/groups/g"
            await Exchange(api, "POST", messages_of(name), b'{"value":"1"}').answer()
            first = await Exchange(api, "POST", f"{path}/read", b'{"ack_ms":null}').answer()
            assert len(first.body["messages"]) == 1
            poll = Exchange(api, "POST", f"{path}/read", b'{"block_ms":60000,"ack_ms":null}')
            while not (await Exchange(api, "GET", path).answer()).body["waiting"]:
                assert not poll.done.done()
            poll.leave()
            await asyncio.wait_for(poll.done, 60)
            while (await Exchange(api, "GET", path).answer()).body["waiting"]:
                pass
            await Exchange(api, "POST", messages_of(name), b'{"value":"2"}').answer()
            again = await Exchange(api, "POST", f"{path}/read", b'{"ack_ms":null}').answer()
            assert [m["value"] for m in again.body["messages"]] == ["2"], "nobody else took it"

    run(work)


def test_a_tail_is_sent_as_it_comes_and_ends_with_its_client_or_the_application(
    url: str, name: str
) -> None:
    async def work() -> None:
        api = asgi_app(url, grant=ALL)
        async with lifespan_of(api) as sent:
            assert sent == [{"type": "lifespan.startup.complete"}]
            tail, other = (Exchange(api, "GET", f"/v1/streams/{name}/tail") for _ in range(2))
            await tail.until_sent(b"retry")
            await other.until_sent(b"retry")
            await Exchange(api, "POST", messages_of(name), b'{"value":"1"}').answer()
            await tail.until_sent(b"id: 1\n")
            tail.leave()
            await asyncio.wait_for(tail.done, 60)
            await other.until_sent(b"id: 1\n")
        answer = await other.answer()
        assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream")
        assert other.sent[-1] == {"type": "http.response.body", "body": b""}, "it ends as a whole"

    run(work)


def test_it_serves_only_while_it_is_open(url: str) -> None:
    async def work() -> None:
        api = asgi_app(url, grant=ALL)
        with pytest.raises(InvalidInput, match="async with"):
            await Exchange(api, "GET", "/healthz").answer()
        async with api:
            with pytest.raises(InvalidInput, match="open already"):
                await api.__aenter__()
            assert (await Exchange(api, "GET", "/healthz").answer()).status == 200
        async with api:
            assert (await Exchange(api, "GET", "/readyz").answer()).status == 200
        gone = asgi_app("nonsense://nowhere", grant=ALL)
        async with lifespan_of(gone) as sent:
            assert sent[0]["type"] == "lifespan.startup.failed"
            assert "not a store URL" in sent[0]["message"]

    run(work)


def test_the_console_is_shown_to_whom_the_application_lets_in(url: str, name: str) -> None:
    ann = Grant("ann", {Scope.READ: ["*"]})

    async def work() -> None:
        grant = {"ann": ann}.get
        async with asgi_app(url, grant=lambda scope: grant(scope["user"]), console=True) as api:

            async def page(user: str, path: str, method: str = "GET", body: bytes = b"") -> Any:
                exchange = Exchange(api, method, path, body, root="/hw", user=user)
                return await exchange.answer()

            shown = await page("ann", "/console")
            assert (shown.status, shown.headers["content-type"][:9]) == (200, "text/html")
            assert b'href="/hw/console' in shown.body
            for path in ("/console", "/console/streams", "/console/sign-in", "/console/act"):
                assert (await page("eve", path)).status == 401, path
            assert (await page("eve", "/console/sign-in", "POST", b"token=x")).status == 401
            assert (await page("ann", messages_of(name), "POST", b'{"value":"x"}')).status == 403

    run(work)


def test_a_browser_shows_its_token_to_a_mounted_console_by_a_cookie(
    url: str, tmp_path: Path
) -> None:
    path = tmp_path / "tokens.json"
    token = add_token(path, "ann", {Scope.READ: ["*"]})

    async def work() -> None:
        async with asgi_app(url, tokens=path, console=True) as api:
            signed_in = (*JSON_HEADERS, (b"cookie", f"headwater_token={token}".encode()))
            for headers, status in ((JSON_HEADERS, 401), (signed_in, 200)):
                answer = await Exchange(api, "GET", "/console/streams", headers=headers).answer()
                assert answer.status == status
            answer = await Exchange(api, "GET", "/v1/streams", headers=signed_in).answer()
            assert answer.status == 401, "a cookie is for pages alone"

    run(work)


def test_fastapi_mounts_it_under_uvicorn(url: str, name: str) -> None:
    api = asgi_app(url, grant=lambda scope: scope["state"].get("grant"))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> Any:
        async with api:
            yield

    app = FastAPI(lifespan=lifespan)
    app.mount("/hw", api)

    @app.middleware("http")
    async def let_in(request: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
        if request.headers.get("x-user") == "ann":
            request.state.grant = ALL
        return await call_next(request)

    ann = {"X-User": "ann"}
    with under_uvicorn(app) as port:
        client = ApiClient(port)
        path = f"/hw{messages_of(name)}"
        assert client.post(path, {"value": "x"}).status == 401
        assert client.post(path, {"value": "x"}, headers=ann).status == 201
        lines = client.get(path, accept="application/x-ndjson", x_user="ann").body
        assert json.loads(lines)["value"] == "x"
        assert client.get("/hw/v1/openapi.json").body["servers"] == [{"url": "/hw"}]
        client.close()
    with under_uvicorn(asgi_app(url, grant=ALL)) as port:
        client, writer = ApiClient(port), ApiClient(port)
        events = client.events(f"/v1/streams/{name}/tail?from=1")
        assert next(events)["id"] == "1"
        writer.post(messages_of(name), {"value": "y"})
        assert next(events)["id"] == "2"
        client.close()
        writer.close()
