"""A second client, for operations of two clients that take turns or finish each other's work."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import headwater
from headwater.store.store import Store


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    """The store of somebody else, on the server of ``hw``."""
    with headwater.connect(store_url) as hw:
        yield hw.store
