"""The pytest plugin of Headwater: a private store for each test that asks for one.

pytest loads it by itself, so it imports nothing of Headwater before a fixture is used; leave it out
with ``-p no:headwater``. ``headwater.testing`` does the same without pytest.

    headwater_store, hw   a private, empty store: a client with ``url``, ``clock``, ``faults``;
                          $HEADWATER_URL leads to it, so headwater.connect() does, too
    async_hw              an async client of the same store, in whatever loop the test runs
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from headwater.aio import AsyncHeadwater
    from headwater.testing import PrivateStore


@pytest.fixture
def headwater_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[PrivateStore]:
    """Return a private, empty store for this test; $HEADWATER_URL leads to it."""
    from headwater.testing import store

    with store() as found:
        monkeypatch.setenv("HEADWATER_URL", found.url)
        yield found


@pytest.fixture
def hw(headwater_store: PrivateStore) -> PrivateStore:
    """Return the private store of this test, as a client."""
    return headwater_store


@pytest.fixture
def async_hw(headwater_store: PrivateStore) -> AsyncHeadwater:
    """Return an async client of the private store of this test; it connects with its first call."""
    return headwater_store.async_client()
