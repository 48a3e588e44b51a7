"""A second client for operations that take turns, data directories, consumers as processes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

import headwater
from headwater.store import embedded
from headwater.store.store import Store
from tests.support.consumers import ConsumerProcesses, create_tables
from tests.support.failing_calls import FailingServer
from tests.support.zygote import Zygote


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    """The store of somebody else, on the server of ``hw``."""
    with headwater.connect(store_url) as hw:
        yield hw.store


@pytest.fixture
def directory() -> Iterator[Path]:
    """A data directory that does not exist yet; its server is stopped afterwards."""
    parent = Path(tempfile.mkdtemp(prefix="hw-test-"))
    path = parent / "data"
    yield path
    embedded.stop(path, now=True)
    shutil.rmtree(parent)


@pytest.fixture(scope="module")
def members() -> Iterator[Zygote]:
    """A process that forks consumers and workers."""
    with Zygote("tests.support.members") as members:
        yield members


@pytest.fixture(scope="module")
def failing() -> Iterator[FailingServer]:
    """A server on which calls of functions fail."""
    with FailingServer() as server:
        yield server


@pytest.fixture(params=["sync", "async"])
def manner(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def consumers(
    members: Zygote, engine: sa.Engine, database_url: str, store_url: str, name: str
) -> ConsumerProcesses:
    """Start consumers of the stream or topic ``name`` in processes of their own."""
    create_tables(engine)
    return ConsumerProcesses(members, database_url, store_url, name)
