"""From a URL to an address: which server, how to reach it, how to name it without its secrets.

embedded:///dir  embedded:            a private server in a directory
redis://[user:password@]host:port/db  one server          rediss:// the same over TLS
unix:///path/to/socket[?db=0]         one server, by socket
redis+cluster://host:port[,host:port] a cluster           rediss+cluster:// over TLS
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from headwater.errors import InvalidInput

URL_VARIABLE = "HEADWATER_URL"
_SCHEMES = "redis:// rediss:// unix:// redis+cluster:// rediss+cluster:// embedded:"
_TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_ca_path")


class Address(NamedTuple):
    """Where a store is; ``safe`` is the name of it that may be shown and logged."""

    kind: Literal["embedded", "single", "cluster"]
    safe: str
    options: dict[str, Any]
    nodes: tuple[tuple[str, int], ...] = ()
    directory: Path | None = None


def resolve(url: str | None, default_directory: Path) -> Address:
    """Parse ``url``, else ``$HEADWATER_URL``, else take the embedded store's directory.

    Raises InvalidInput for a URL that cannot be meant.
    """
    url = url if url is not None else os.environ.get(URL_VARIABLE) or "embedded:"
    scheme, colon, rest = url.partition(":")
    if not colon:
        raise InvalidInput(f"{url!r} is not a store URL; use one of {_SCHEMES}")
    if scheme == "embedded":
        path = unquote(rest.removeprefix("//"))
        directory = Path(path) if path else default_directory
        return Address("embedded", f"embedded://{directory}", {}, directory=directory)
    if scheme == "unix":
        return _socket(url)
    if scheme in ("redis", "rediss", "redis+cluster", "rediss+cluster"):
        return _network(url, scheme)
    raise InvalidInput(f"store URL scheme {scheme!r} is not known; use one of {_SCHEMES}")


def _socket(url: str) -> Address:
    parts = urlsplit(url)
    path = unquote(parts.path)
    if not path:
        raise InvalidInput("a unix:// URL needs the socket's path; write unix:///path/to/socket")
    query = dict(parse_qsl(parts.query))
    options: dict[str, Any] = {"unix_socket_path": path, "db": _number(query.pop("db", "0"), "db")}
    _refuse_unknown(query)
    _credentials(options, parts.username, parts.password)
    return Address("single", f"unix://{path}", options)


def _network(url: str, scheme: str) -> Address:
    parts = urlsplit(url)
    credentials, _, hosts = parts.netloc.rpartition("@")
    nodes = tuple(_node(host) for host in hosts.split(",")) if hosts else (("localhost", 6379),)
    safe = f"{scheme}://" + ",".join(f"{host}:{port}" for host, port in nodes)
    options: dict[str, Any] = {}
    username, _, password = credentials.partition(":")
    _credentials(options, username or None, password or None)
    query = dict(parse_qsl(parts.query))
    if scheme.startswith("rediss"):
        options["ssl"] = True
        options.update({name: query.pop(name) for name in _TLS_OPTIONS if name in query})
    _refuse_unknown(query)
    if scheme.endswith("+cluster"):
        return Address("cluster", safe, options, nodes)
    if len(nodes) > 1:
        raise InvalidInput(f"{safe} names several hosts; use {scheme}+cluster:// for a cluster")
    options["host"], options["port"] = nodes[0]
    database = parts.path.strip("/")
    options["db"] = _number(database or "0", "database")
    if options["db"]:
        safe += f"/{options['db']}"
    return Address("single", safe, options, nodes)


def _node(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if text.startswith("[") and text.endswith("]"):
        host, colon, port = text, "", ""
    if not colon:
        host, port = text, "6379"
    number = _number(port, "port")
    if not host or not 0 < number < 65536:
        raise InvalidInput(f"{text!r} is not host:port; write for example localhost:6379")
    return host.strip("[]"), number


def _credentials(options: dict[str, Any], username: str | None, password: str | None) -> None:
    if username:
        options["username"] = unquote(username)
    if password:
        options["password"] = unquote(password)


def _number(text: str, what: str) -> int:
    if not text.isdecimal():
        raise InvalidInput(f"the {what} in the store URL must be a number, not {text!r}")
    return int(text)


def _refuse_unknown(query: dict[str, str]) -> None:
    if query:
        raise InvalidInput(
            f"unknown option {next(iter(query))!r} in the store URL; "
            f"known are db (unix://) and, over TLS, {', '.join(_TLS_OPTIONS)}"
        )
