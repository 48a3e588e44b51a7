"""A server with a password, which needs escaping in a URL: for tests of who may connect."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

from tests.support.servers import Server

PASSWORD = "p@ss/wörd:?#"
SAFE_PASSWORD = quote(PASSWORD, safe="")


@contextmanager
def locked() -> Iterator[Server]:
    """Run a server with a password, and the user "app", who may do all that is needed."""
    with Server(tcp=True, options={"requirepass": PASSWORD}) as server:
        with server.client() as admin:
            admin.acl_setuser(
                "app", enabled=True, passwords=["+app-pw"], keys=["hw:*"], commands=["+@all"]
            )
        yield server
