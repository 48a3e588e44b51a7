"""Stores and clients for all tests; servers start when first needed, once per test process.

A test that takes ``client`` runs on the sync and the async client and on every kind of store. One
that is about the store takes ``store_url`` or ``hw``. One that takes ``engine`` or
``database_url`` runs on SQLite and on Postgres, each time on an empty database. Names are random,
so that tests may share servers.
"""

from __future__ import annotations

import contextlib
import gc
import os
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings

import headwater
from headwater.outbox import Outbox
from tests.support import blocking
from tests.support.books import Books
from tests.support.not_run import pytest_collection_modifyitems, pytest_terminal_summary
from tests.support.postgres import Postgres, postgres_folder
from tests.support.scrubbed import assert_left_sound, note_maker
from tests.support.stores import Stores

__all__ = ["pytest_collection_modifyitems", "pytest_terminal_summary"]

# What collecting the tests makes stays: to look for garbage in it takes two fifths of the time.
gc.disable()

# How long an example takes depends on what else the machine does.
settings.register_profile("headwater", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("headwater")

STORES = ["embedded", "plain", "redis", pytest.param("cluster", marks=pytest.mark.cluster)]
CLIENTS = [
    "embedded-sync",
    "plain-async",
    "redis-sync",
    pytest.param("cluster-async", marks=pytest.mark.cluster),
]
# The models run on a cluster by both clients in any case.
if "HEADWATER_LONG" in os.environ:
    CLIENTS.append(pytest.param("cluster-sync", marks=pytest.mark.cluster))


def pytest_collection_finish() -> None:
    """Look for garbage in what the tests make, and nowhere else."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def stores() -> Iterator[Stores]:
    with contextlib.closing(Stores()) as stores:
        yield stores
        assert_left_sound(stores.urls)


@pytest.fixture(scope="session")
def loop() -> Iterator[blocking.Loop]:
    with contextlib.closing(blocking.Loop()) as loop:
        yield loop


@pytest.fixture(params=STORES)
def store_url(request: pytest.FixtureRequest, stores: Stores) -> str:
    return stores.url(request.param)


@pytest.fixture
def hw(store_url: str) -> Iterator[headwater.Headwater]:
    with headwater.connect(store_url) as hw:
        yield hw


@pytest.fixture
def connect(
    request: pytest.FixtureRequest, stores: Stores
) -> Iterator[Callable[[str], headwater.Headwater]]:
    """Open clients by kind of store and of client, as in "plain-async"; closed after the test."""
    with contextlib.ExitStack() as opened:

        def connect(kind: str) -> headwater.Headwater:
            store, _, manner = kind.partition("-")
            url = stores.url(store)
            if manner == "async":
                hw = blocking.connect(request.getfixturevalue("loop"), url)
            else:
                hw = headwater.connect(url)
            opened.callback(hw.close)
            return hw

        yield connect


@pytest.fixture(params=CLIENTS)
def client(
    request: pytest.FixtureRequest, connect: Callable[[str], headwater.Headwater]
) -> headwater.Headwater:
    return connect(request.param)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with Postgres(postgres_folder()) as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database of its own, of each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'app.db'}"
    else:
        server: Postgres = request.getfixturevalue("postgres")
        url = server.database()
        yield url
        server.drop(url)


@pytest.fixture
def engine(database_url: str) -> Iterator[sa.Engine]:
    engine = sa.create_engine(database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def outbox(engine: sa.Engine) -> Outbox:
    outbox = Outbox(engine)
    outbox.create_all()
    return outbox


@pytest.fixture
def books(outbox: Outbox, name: str) -> Books:
    """Account for what transactions stage; see tests.support.books."""
    return Books(outbox, name)


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """A server that a test may end."""
    with Postgres(postgres_folder()) as server:
        yield server


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads for those that block."""
    with ThreadPoolExecutor(16) as pool:
        yield pool


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name that nobody else uses; what it leaves in the shared stores must be sound."""
    name = f"s-{secrets.token_hex(6)}"
    note_maker(name, request.node)
    return name


@pytest.fixture
def stream(client: headwater.Headwater, name: str) -> headwater.Stream:
    """A stream that was never written."""
    return client.stream(name)


@pytest.fixture
def queue(client: headwater.Headwater, name: str) -> headwater.Queue:
    """A queue that was never pushed to."""
    return client.queue(name)
