"""One client per process and store, kept as long as the process lives.

Spark runs tasks in a pool of Python processes that it forks and reuses, and unpickles a new reader
or writer for each task: if those kept the connection, every task would connect anew.
"""

from __future__ import annotations

import os
import threading

from headwater.client import Headwater, connect
from headwater.store import faults
from headwater.store.directory import absolute, default_directory
from headwater.store.url import URL_VARIABLE, resolve

_clients: dict[tuple[int, str], Headwater] = {}
_opening = threading.Lock()


def client(url: str) -> Headwater:
    """Return this process's client of a store; a forked child gets its own. Raises as connect."""
    with _opening:
        key = (os.getpid(), url)
        if key not in _clients:
            # A task may begin while a store restarts that its query has used for long.
            _clients[key] = connect(url, wait_ms=int(faults.PATIENCE_S * 1000))
        return _clients[key]


def absolute_url(url: str | None) -> str:
    """Return a URL that means the same store in every process of this machine.

    None is ``$HEADWATER_URL``, else the embedded store, as for ``connect``; the directory of an
    embedded store is the one that the calling process would use. Raises InvalidInput.
    """
    url = url or os.environ.get(URL_VARIABLE) or "embedded:"
    address = resolve(url, default_directory())
    return url if address.directory is None else f"embedded://{absolute(address.directory)}"
