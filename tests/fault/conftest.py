"""A second client for operations that take turns, and data directories for embedded servers."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater
from headwater.store import embedded
from headwater.store.store import Store


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
