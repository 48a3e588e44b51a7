"""The stores that tests run on: embedded, plain, redis, cluster; each starts when first needed."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import tempfile
from pathlib import Path

import headwater
from headwater.store import embedded
from tests.support.servers import Cluster, Server, redis_binary


def works(hw: headwater.Headwater) -> bool:
    """Return whether a client can write to its store and read from it."""
    stream = hw.stream(f"s-{secrets.token_hex(4)}")
    return stream.write("t", b"v") == 1 and [m and m.value for m in stream.read(1, 2)] == [b"v"]


class Stores:
    """The servers of this test process, by kind."""

    def __init__(self) -> None:
        self._urls: dict[str, str] = {}
        self._end = contextlib.ExitStack()

    @property
    def urls(self) -> list[str]:
        """Return the URLs of those that have started."""
        return list(self._urls.values())

    def url(self, kind: str) -> str:
        """Return the URL of a store of that kind, starting it when it is the first time."""
        if kind not in self._urls:
            self._urls[kind] = getattr(self, f"_start_{kind}")()
        return self._urls[kind]

    def _start_embedded(self) -> str:
        directory = Path(tempfile.mkdtemp(prefix="hw-embedded-"))
        self._end.callback(shutil.rmtree, directory, ignore_errors=True)
        self._end.callback(embedded.stop, directory, now=True)
        self._end.callback(embedded.EmbeddedServer.open(directory).close)
        return f"embedded://{directory}"

    def _start_plain(self) -> str:
        return self._end.enter_context(Server()).url

    def _start_redis(self) -> str:
        return self._end.enter_context(Server(redis_binary())).url

    def _start_cluster(self) -> str:
        return self._end.enter_context(Cluster()).url

    def close(self) -> None:
        """End all servers."""
        self._end.close()
