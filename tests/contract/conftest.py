"""Clients and farms of both kinds for tests that start servers of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

import headwater
from headwater.kernel.failures import START_MS
from headwater.kernel.instrument import current, installed
from headwater.log import node
from headwater.outbox import Outbox, Streamer
from headwater.timeline import Farm
from tests.support import blocking
from tests.support.commands import StreamCommands
from tests.support.consumers import Desk
from tests.support.farms import OpenFarm, Replica, one_each, open_farm, replicas
from tests.support.instruments import Recorder
from tests.support.servers import Server, locked, redis_binary
from tests.support.stores import Stores
from tests.support.streamers import MakeStreamer
from tests.support.workers import Crew

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.support.resp import RespServer
    from tests.support.timeline_http import Client, LocalServer

Dial: TypeAlias = Callable[[str | None], headwater.Headwater]


@pytest.fixture(params=["sync", "async"])
def dial(request: pytest.FixtureRequest) -> Iterator[Dial]:
    """Connect to a URL, once by the sync and once by the async client; closed after the test."""
    with contextlib.ExitStack() as opened:

        def dial(url: str | None, **words: Any) -> headwater.Headwater:
            if request.param == "async":
                hw = blocking.connect(request.getfixturevalue("loop"), url, **words)
            else:
                hw = headwater.connect(url, **words)
            opened.callback(hw.close)
            return hw

        yield dial


@pytest.fixture
def dial_at_once(dial: Callable[..., headwater.Headwater]) -> Dial:
    """Connect without waiting for a store that does not answer."""
    return partial(dial, wait_ms=0)


@pytest.fixture
def dial_patiently(dial: Callable[..., headwater.Headwater]) -> Dial:
    """Connect, and wait for a store that is not there yet, as programs do that run on and on."""
    return partial(dial, wait_ms=START_MS)


@pytest.fixture(params=["sync", "async"])
def desk(request: pytest.FixtureRequest, stores: Stores, database_url: str) -> Iterator[Desk]:
    """Make consumers of both manners, on both kinds of database."""
    loop = request.getfixturevalue("loop") if request.param == "async" else None
    with contextlib.closing(Desk(request.param, stores.url("plain"), database_url, loop)) as desk:
        yield desk


@pytest.fixture
def make_streamer(outbox: Outbox, hw: headwater.Headwater) -> Iterator[MakeStreamer]:
    """Make streamers of one outbox; closed after the test."""
    with contextlib.ExitStack() as made:
        yield lambda **options: made.enter_context(Streamer(outbox, hw, **options))


@pytest.fixture
def streamer(make_streamer: MakeStreamer) -> Streamer:
    return make_streamer()


@pytest.fixture(scope="session")
def door(stores: Stores) -> Iterator[RespServer]:
    """The RESP door to a plain store, without tokens."""
    from tests.support.resp import RespServer

    with RespServer(stores.url("plain")) as door:
        yield door


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A real browser; tests are skipped, with the reason, where none can be had."""
    from tests.support.browser import open_browser

    with open_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server on a loopback port."""
    with Server(tcp=True) as server:
        yield server


@pytest.fixture(scope="module")
def locked_server() -> Iterator[Server]:
    """A server with a password, and a user who may do all that is needed."""
    with locked() as server:
        yield server


@pytest.fixture(scope="module", params=["plain", "redis"])
def farm_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(redis_binary() if request.param == "redis" else None) as server:
        yield server


@pytest.fixture
def three(farm_server: Server) -> list[Replica]:
    """Three empty instances."""
    return replicas(farm_server, 3)


@pytest.fixture(params=["sync", "async"])
def open_(
    request: pytest.FixtureRequest, loop: blocking.Loop, three: list[Replica]
) -> Iterator[OpenFarm]:
    """Open farms, by default one of three clusters; closed after the test."""
    with contextlib.ExitStack() as opened:

        def open_(urls: str | None = None, **words: Any) -> Farm:
            farm = open_farm(request.param, loop, urls or one_each(three), **words)
            opened.callback(farm.close)
            return farm

        yield open_


@pytest.fixture
def farm(open_: OpenFarm) -> Farm:
    return open_()


@pytest.fixture(scope="module")
def valkey() -> Iterator[Server]:
    """Start a server of the test module's own."""
    with Server() as server:
        yield server


@pytest.fixture
def eight(valkey: Server) -> list[Replica]:
    """Empty eight instances, for farms of every shape."""
    return replicas(valkey, 8)


@pytest.fixture
def hw_stream(stores: Stores, name: str) -> Iterator[StreamCommands]:
    """Commands on a stream of the embedded store, and the stream."""
    url = stores.url("embedded")
    with headwater.connect(url) as hw:
        yield StreamCommands(url, hw.stream(name))


@pytest.fixture
def nodes_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes of two messages, so that a few hundred messages take several steps."""
    monkeypatch.setattr(node, "NODE_MESSAGES", 2)


@pytest.fixture(params=["sync", "async"])
def crew(request: pytest.FixtureRequest, stores: Stores, loop: blocking.Loop) -> Iterator[Crew]:
    """Make workers of both manners."""
    with contextlib.closing(Crew(request.param, stores.url("plain"), loop)) as crew:
        yield crew


@pytest.fixture
def told() -> Iterator[Recorder]:
    """An instrument, installed for the length of a test."""
    recorder = Recorder()
    with installed(recorder):
        yield recorder
    assert current() is None
    assert not +recorder.open, "what began has ended"


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let walks of farms scan few timelines at a time, and note each few."""
    from headwater.timeline import walker

    monkeypatch.setattr(walker, "POOL", 10)
    monkeypatch.setattr(walker, "STEP", 5)


@pytest.fixture
def roshi_server(three: list[Replica]) -> Iterator[LocalServer]:
    """Serve a farm of three clusters over HTTP."""
    from tests.support.timeline_http import LocalServer

    with LocalServer(one_each(three)) as server:
        yield server


@pytest.fixture
def roshi(roshi_server: LocalServer) -> Iterator[Client]:
    """Connect to that server."""
    from tests.support.timeline_http import Client

    with contextlib.closing(Client(roshi_server.port)) as client:
        yield client
