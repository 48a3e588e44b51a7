"""The console shows what a store holds, to whom may see it, and changes what it says it will."""

from __future__ import annotations

import html
import json
import re
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import pytest

import headwater
from headwater import Headwater
from headwater.kernel.declaring import Scope
from headwater.serve.console.pages.table import PAGES
from headwater.serve.console.service import Console
from headwater.serve.limits import HttpLimits
from headwater.serve.tokens import TokenFile, add_token
from tests.support.api import Answer, ApiClient, ApiServer
from tests.support.console import Filled, path_of, send
from tests.support.stores import Stores


@pytest.fixture(scope="module")
def hw(stores: Stores) -> Iterator[Headwater]:
    with headwater.connect(stores.url("plain")) as hw:
        yield hw


@pytest.fixture(scope="module")
def api(stores: Stores) -> Iterator[ApiServer]:
    with ApiServer(stores.url("plain"), front=Console) as api:
        yield api


@pytest.fixture
def browser(api: ApiServer) -> ApiClient:
    return api.client()


@pytest.fixture(scope="module")
def filled(hw: Headwater) -> Filled:
    return Filled(hw)


def text_of(answer: Answer) -> str:
    text: str = answer.body.decode()
    return text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.show.__name__)
def test_every_page_is_shown_and_escapes_what_producers_wrote(
    browser: ApiClient, filled: Filled, page: object
) -> None:
    found = browser.get(path_of(page.path, filled))  # type: ignore[attr-defined]
    assert found.status == 200, text_of(found)
    assert "<script>alert" not in text_of(found)
    policy = found.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    # No code and no style inside the page, which the policy would refuse.
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|\sstyle=", text_of(found))


def test_a_ruler_shows_what_became_of_every_offset(browser: ApiClient, filled: Filled) -> None:
    shown = text_of(browser.get(path_of("/streams/{stream}", filled)))
    kinds = set(re.findall(r'<rect class="([\w-]+)" x=', shown))
    drawn = {"evicted", "sealed", "tail", "mark", "done", "pending-1", "dead", "new"}
    assert kinds == {*drawn, "bar"}
    assert "501 – 600: pending, attempt 1" in html.unescape(shown)
    assert "lag 1,903" in shown
    zoomed = browser.get(path_of("/streams/{stream}", filled) + "?first=550&last=560")
    assert "550 – 560" in text_of(zoomed)


@pytest.mark.parametrize("path", ["/", "/console/"])
def test_the_address_of_the_console_may_end_with_a_slash(browser: ApiClient, path: str) -> None:
    answer = browser.get(path)
    assert (answer.status, answer.headers["location"]) == (303, "/console")


@pytest.mark.parametrize("at", ["first", "last", "1500", "1,500", "2020-01-01T00:00:00Z"])
def test_messages_are_shown_from_any_place(browser: ApiClient, filled: Filled, at: str) -> None:
    shown = text_of(browser.get(f"{path_of('/streams/{stream}', filled)}?at={quote(at)}"))
    first = {"first": 101, "last": 2954, "1500": 1500, "1,500": 1500}.get(at, 101)
    assert f"Messages from {first:,}" in shown


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/console/streams/none", 404, "there is no stream"),
        ("/console/queues/none", 404, "there is no queue"),
        ("/console/nowhere", 404, "no such page"),
        ("/console/act?do=nothing", 404, "no such action"),
        ("/console/streams?from=x", 400, "is a number"),
    ],
)
def test_what_is_not_there_is_said(browser: ApiClient, path: str, status: int, said: str) -> None:
    found = browser.get(path)
    assert found.status == status
    assert said in text_of(found)
    assert "<nav" in text_of(found)


def test_an_action_says_what_it_will_do_and_then_does_it(
    browser: ApiClient, hw: Headwater, filled: Filled
) -> None:
    name, fields = filled.stream.name, {"do": "seek", "group": "mail", "to": "1,000"}
    bill = text_of(browser.get("/console/act?" + urlencode({**fields, "stream": name})))
    assert "delivers 101 messages again" in bill
    assert "headwater stream seek" in bill
    assert filled.group.info().next == 1101, "a bill changes nothing"
    done = send(browser, "/console/act", stream=name, **fields)
    assert done.status == 303
    said = parse_qs(urlsplit(done.headers["location"]).query)["said"]
    assert "Seek mail" in said[0]
    assert filled.group.info().next == 1000
    notes = hw.stream("hw.audit").read(max(hw.stream("hw.audit").info().last - 1, 1), 2)
    outcomes = [json.loads(note.value) for note in notes if note is not None]
    assert [note["outcome"] for note in outcomes] == ["begun", "done"]
    assert outcomes[0]["asked"] == {"to": 1000}
    assert outcomes[0]["before"]["next"] == 1101


def test_a_queue_is_paused_and_purged(browser: ApiClient, hw: Headwater) -> None:
    queue = hw.queue(f"console-{secrets.token_hex(4)}")
    queue.push_many([b"a", b"b"])
    queue.bury(*queue.pop(1, ack_ms=60_000), error="broken")
    found = []
    for action in ("queue-state", "queue-state", "purge"):
        assert send(browser, "/console/act", do=action, queue=queue.name).status == 303
        stats = queue.stats()
        found.append((stats.paused, stats.ready, stats.dead))
    assert found == [(True, 1, 1), (False, 1, 1), (False, 0, 0)]


def test_a_form_of_a_foreign_page_changes_nothing(browser: ApiClient, hw: Headwater) -> None:
    queue = hw.queue(f"console-{secrets.token_hex(4)}")
    queue.push(b"a")
    sent = send(browser, "/console/act", "http://evil.example", do="purge", queue=queue.name)
    assert sent.status == 403
    assert queue.stats().ready == 1


HOLDERS = {
    "reader": {Scope.READ: ["mine-*"]},
    "admin": {Scope.ADMIN: ["mine-*"]},
    "root": {Scope.ADMIN: ["*"]},
}


class Guarded:
    """A console with tokens, and browsers that are signed in."""

    def __init__(self, url: str, folder: Path) -> None:
        path = folder / "tokens.json"
        self.tokens = {who: add_token(path, who, given) for who, given in HOLDERS.items()}
        self.api = ApiServer(url, TokenFile(path), front=Console)

    def sign_in(self, who: str) -> tuple[ApiClient, str]:
        client = self.api.client()
        signed = send(client, "/console/sign-in", token=self.tokens[who], back="/console/dead")
        assert (signed.status, signed.headers["location"]) == (303, "/console/dead")
        cookie = signed.headers["set-cookie"]
        assert "HttpOnly; SameSite=Strict" in cookie
        return client, cookie.partition(";")[0]


@pytest.fixture(scope="module")
def guarded(stores: Stores, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    guarded = Guarded(stores.url("plain"), tmp_path_factory.mktemp("tokens"))
    with guarded.api:
        yield guarded


def test_nobody_sees_a_page_without_a_token(guarded: Guarded, filled: Filled) -> None:
    client = guarded.api.client()
    for page in PAGES:
        found = client.get(path_of(page.path, filled))
        assert found.status == 401
        assert "Sign in" in text_of(found)
        assert filled.queue.name not in text_of(found).replace(path_of(page.path, filled), "")
    wrong = send(client, "/console/sign-in", token="hw_wrong")
    assert (wrong.status, "set-cookie" in wrong.headers) == (401, False)


def test_who_signs_in_comes_to_the_page_that_was_asked_for(guarded: Guarded) -> None:
    client, token = guarded.api.client(), guarded.tokens["root"]
    asked = text_of(client.get("/console/streams/rides?at=7&tag=a"))
    assert 'name="back" value="/console/streams/rides?at=7&amp;tag=a"' in asked
    back = "/console/streams/rides?at=7"
    wrong = text_of(send(client, "/console/sign-in", token="hw_wrong", back=back))
    assert f'name="back" value="{back}"' in wrong
    assert "does not know that token" in wrong
    signed = send(client, "/console/sign-in", token=token, back=back)
    assert signed.headers["location"] == back
    for elsewhere in ("https://example.org", "//example.org/console", "/v1/streams"):
        signed = send(client, "/console/sign-in", token=token, back=elsewhere)
        assert signed.headers["location"] == "/console"


def test_a_change_with_an_expired_token_asks_to_sign_in_and_is_not_made(
    guarded: Guarded, hw: Headwater
) -> None:
    queue = hw.queue(f"expired-{secrets.token_hex(4)}")
    queue.push(b"x")
    found = send(guarded.api.client(), "/console/act", do="purge", queue=queue.name)
    assert found.status == 401
    assert "does not know that token" not in text_of(found), "nobody has typed one"
    assert 'name="back" value="/console"' in text_of(found)
    assert queue.stats().ready == 1


def test_a_cookie_is_for_pages_alone(guarded: Guarded) -> None:
    client, cookie = guarded.sign_in("root")
    assert client.get("/console/streams", Cookie=cookie).status == 200
    assert client.get("/v1/streams", Cookie=cookie).status == 401


def test_a_browser_sees_and_changes_what_its_token_allows(guarded: Guarded, hw: Headwater) -> None:
    mine, yours = f"mine-{secrets.token_hex(4)}", f"yours-{secrets.token_hex(4)}"
    for name in (mine, yours):
        hw.queue(name).push(b"x")
        hw.stream(name).write("t", b"x")
    reader, cookie = guarded.sign_in("reader")
    for kind in ("streams", "queues"):
        shown = text_of(reader.get(f"/console/{kind}?q={mine[-4:]}", Cookie=cookie))
        assert mine in shown
        shown = text_of(reader.get(f"/console/{kind}?q=yours", Cookie=cookie))
        assert yours not in shown
        assert reader.get(f"/console/{kind}/{yours}", Cookie=cookie).status == 403
    assert reader.get("/console/store", Cookie=cookie).status == 403
    assert "Purge" not in text_of(reader.get(f"/console/queues/{mine}", Cookie=cookie))
    for who, allowed in (("reader", False), ("admin", True)):
        client, cookie = guarded.sign_in(who)
        form = urlencode({"do": "purge", "queue": mine}).encode()
        media = "application/x-www-form-urlencoded"
        sent = client.ask("POST", "/console/act", form, media=media, headers={"Cookie": cookie})
        assert (sent.status == 303) is allowed, who
        assert (hw.queue(mine).stats().ready == 0) is allowed, who


def test_a_read_only_server_shows_and_changes_nothing(stores: Stores, hw: Headwater) -> None:
    queue = hw.queue(f"console-{secrets.token_hex(4)}")
    queue.push(b"x")
    with ApiServer(stores.url("plain"), front=Console, read_only=True) as api:
        client = api.client()
        shown = text_of(client.get(f"/console/queues/{queue.name}"))
        assert "read-only" in shown
        assert "Purge" not in shown
        assert send(client, "/console/act", do="purge", queue=queue.name).status == 403
    assert queue.stats().ready == 1


def test_files_are_kept_by_browsers_until_they_change(browser: ApiClient) -> None:
    page = text_of(browser.get("/console"))
    files = re.findall(r'(?:href|src)="(/console/static/[^"]+)"', page)
    assert len(set(files)) == 8
    for file in files:
        found = browser.get(file)
        assert found.status == 200
        assert "immutable" in found.headers["cache-control"]
        again = browser.get(file, If_None_Match=found.headers["etag"])
        assert again.status == 304


# A stranger has what anonymous clients have, and learns nothing of the store

SIGN_IN = "/console/sign-in"


@pytest.fixture(scope="module")
def crowded(stores: Stores, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    path = tmp_path_factory.mktemp("tokens") / "tokens.json"
    add_token(path, "root", {Scope.ADMIN: ["*"]})
    limits = HttpLimits(max_anonymous=2)
    with ApiServer(stores.url("plain"), TokenFile(path), limits, front=Console) as api:
        yield api


def head(port: int, *lines: str) -> bytes:
    """Send the head of a request, and return the first line of what is answered."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sent:
        sent.sendall("\r\n".join([*lines, "Host: x", "", ""]).encode())
        return sent.makefile("rb").readline()


def test_the_root_leads_to_the_console(crowded: ApiServer) -> None:
    assert head(crowded.port, "GET / HTTP/1.1") == b"HTTP/1.1 303 See Other\r\n"


def test_who_asks_for_the_form_stays_anonymous(crowded: ApiServer) -> None:
    """The oldest of too many anonymous connections is closed, whatever it has asked for."""
    with socket.create_connection(("127.0.0.1", crowded.port), timeout=60) as oldest:
        oldest.sendall(f"GET {SIGN_IN} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        answered = oldest.makefile("rb")
        assert b" 401 " in answered.readline()
        others = [crowded.client() for _ in range(2)]
        assert [client.get(SIGN_IN).status for client in others] == [401, 401]
        # It reads to the end, which comes only when the server closes the connection.
        assert b"</html>" in answered.read()
        for client in others:
            client.close()


@pytest.mark.parametrize("length", ["Content-Length: 5000", "Transfer-Encoding: chunked"])
def test_no_large_form_of_a_stranger_is_read(crowded: ApiServer, length: str) -> None:
    answered = head(crowded.port, f"POST {SIGN_IN} HTTP/1.1", length)
    assert b" 401 " in answered


def test_a_stranger_does_not_learn_where_the_store_is(crowded: ApiServer, stores: Stores) -> None:
    client = crowded.client()
    shown = client.get(SIGN_IN).body.decode()
    assert stores.url("plain").partition("://")[2].split("?")[0] not in shown
    client.close()


@pytest.mark.parametrize("path", ["timed/none", "streams/none/groups/none"])
def test_what_does_not_exist_is_no_outage(browser: ApiClient, path: str) -> None:
    assert browser.get(f"/console/{path}").status == 404


def test_an_action_is_shown_with_the_address_that_was_asked(
    api: ApiServer, browser: ApiClient
) -> None:
    browser.post("/v1/queues/strangers/messages", {"messages": [{"value": "x"}]})
    shown = text_of(browser.get("/console/act?do=purge&queue=strangers"))
    assert f"http://127.0.0.1:{api.port}/v1/queues/strangers/purge" in shown
