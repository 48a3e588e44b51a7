"""Clients of both kinds for tests that start servers of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeAlias

import pytest

import headwater
from tests.support import blocking
from tests.support.consumers import Desk
from tests.support.stores import Stores

Dial: TypeAlias = Callable[[str | None], headwater.Headwater]


@pytest.fixture(params=["sync", "async"])
def dial(request: pytest.FixtureRequest) -> Iterator[Dial]:
    """Connect to a URL, once by the sync and once by the async client; closed after the test."""
    with contextlib.ExitStack() as opened:

        def dial(url: str | None) -> headwater.Headwater:
            if request.param == "async":
                hw = blocking.connect(request.getfixturevalue("loop"), url)
            else:
                hw = headwater.connect(url)
            opened.callback(hw.close)
            return hw

        yield dial


@pytest.fixture(params=["sync", "async"])
def desk(request: pytest.FixtureRequest, stores: Stores, database_url: str) -> Iterator[Desk]:
    """Make consumers of both manners, on both kinds of database."""
    loop = request.getfixturevalue("loop") if request.param == "async" else None
    with contextlib.closing(Desk(request.param, stores.url("plain"), database_url, loop)) as desk:
        yield desk
