"""From a URL to an address: which server, how to reach it, how to name it without its secrets.

embedded:///dir  embedded:            a private server in a directory
redis://[user:password@]host:port/db  one server          rediss:// the same over TLS
unix:///path/to/socket[?db=0]         one server, by socket
redis+cluster://host:port[,host:port] a cluster           rediss+cluster:// over TLS
redis+sentinel://host[,host]/service[/db]  the primary that sentinels name; rediss+sentinel://

A URL may carry a password, so an error never repeats a part of it that could be one.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qsl, unquote

from headwater.errors import InvalidInput

URL_VARIABLE = "HEADWATER_URL"
_SERVERS = (
    *("redis", "rediss", "unix"),
    *("redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel"),
)
_SCHEMES = (
    "redis:// rediss:// unix:// redis+cluster:// rediss+cluster:// redis+sentinel:// "
    "rediss+sentinel:// embedded:"
)
_TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_ca_path")
# A sentinel has users of its own.
_SENTINEL_OPTIONS = {"sentinel_username": "username", "sentinel_password": "password"}
_SENTINEL_PORT = 26379
_CERT_REQS = ("required", "optional", "none")
# A name, or an address of IPv6 in brackets, which may name a zone.
_NODE = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+(?:%\w+)?\]|[^\[\]:]+)(?::(?P<port>[0-9]{1,5}))?")


class Address(NamedTuple):
    """Where a store is; ``safe`` is the name of it that may be shown and logged.

    Of a primary that sentinels name, ``nodes`` are the sentinels, and ``sentinel_options`` say how
    they are reached.
    """

    kind: Literal["embedded", "single", "cluster", "sentinel"]
    safe: str
    options: dict[str, Any]
    nodes: tuple[tuple[str, int], ...] = ()
    directory: Path | None = None
    service: str = ""
    sentinel_options: dict[str, Any] = {}  # noqa: RUF012  nobody changes it

    def __repr__(self) -> str:
        return f"Address({self.safe!r})"


def resolve(url: str | None, default_directory: Path) -> Address:
    """Parse ``url``, else ``$HEADWATER_URL``, else take the embedded store's directory.

    Raises InvalidInput for an invalid URL.
    """
    source = "this" if url is not None else f"what ${URL_VARIABLE} or a profile says"
    url = url if url is not None else os.environ.get(URL_VARIABLE) or "embedded:"
    if not isinstance(url, str):
        raise InvalidInput(f"a store URL must be a str, not {type(url).__name__}")
    scheme, colon, rest = url.partition(":")
    if colon and scheme == "embedded":
        path = unquote(rest.removeprefix("//"))
        directory = Path(path) if path else default_directory
        return Address("embedded", f"embedded://{directory}", {}, directory=directory)
    if scheme in _SERVERS and rest.startswith("//"):
        parts = _split(url)
        return _socket(parts) if scheme == "unix" else _network(parts)
    raise InvalidInput(f"{source} is not a store URL; {_meant(url)}")


def _meant(url: str) -> str:
    """Return what was most likely meant by a text; it is not shown if it might hold a password."""
    host = re.fullmatch(r"(?:rediss?:?/{0,2})?([\w.-]+:[0-9]{1,5})", url)
    return f"did you mean redis://{host[1]}?" if host else f"it begins with one of {_SCHEMES}"


class _Parts(NamedTuple):
    scheme: str
    authority: str
    path: str
    query: str


def _split(url: str) -> _Parts:
    """Cut a URL into its parts.

    Not by urlsplit: some releases of Python refuse a list of hosts with brackets there, and all of
    them drop signs that cannot be printed.
    """
    if not url.isprintable():
        raise InvalidInput("the store URL has a character that cannot be printed; remove it")
    scheme, _, rest = url.partition("://")
    whole, _, query = rest.partition("?")
    authority, slash, path = whole.partition("/")
    if "#" in rest or "@" in path + query:
        raise InvalidInput(
            "the store URL has one of the characters / ? # in its user name or password, or a # "
            "at its end; write them as %2F %3F %23"
        )
    return _Parts(scheme, authority, slash + path, query)


def _socket(parts: _Parts) -> Address:
    credentials, _, host = parts.authority.rpartition("@")
    path = unquote(parts.path)
    if host or not path.strip("/"):
        raise InvalidInput("a unix:// URL needs the socket's path; write unix:///path/to/socket")
    query = dict(parse_qsl(parts.query))
    options: dict[str, Any] = {"unix_socket_path": path, "db": _number(query.pop("db", "0"), "db")}
    _refuse_unknown(query)
    _credentials(options, credentials)
    safe = f"unix://{path}" + (f"?db={options['db']}" if options["db"] else "")
    return Address("single", safe, options)


def _network(parts: _Parts) -> Address:
    scheme, credentials, hosts = parts.scheme, *parts.authority.rpartition("@")[::2]
    port = _SENTINEL_PORT if scheme.endswith("+sentinel") else 6379
    nodes = tuple(_node(host, port) for host in (hosts or "localhost").split(","))
    safe = f"{scheme}://" + ",".join(node_name(*node) for node in nodes)
    options: dict[str, Any] = {}
    _credentials(options, credentials)
    query = dict(parse_qsl(parts.query))
    if scheme.startswith("rediss"):
        options["ssl"] = True
        options.update({name: query.pop(name) for name in _TLS_OPTIONS if name in query})
        if options.get("ssl_cert_reqs", "required") not in _CERT_REQS:
            raise InvalidInput(f"ssl_cert_reqs in the store URL is one of {', '.join(_CERT_REQS)}")
    if scheme.endswith("+sentinel"):
        return _sentinels(parts.path, query, Address("sentinel", safe, options, nodes))
    _refuse_unknown(query)
    database = _number(parts.path.strip("/") or "0", "database")
    if scheme.endswith("+cluster"):
        if database:
            raise InvalidInput("a cluster has database 0 only; take the database out of the URL")
        return Address("cluster", safe, options, nodes)
    if len(nodes) > 1:
        raise InvalidInput(f"{safe} names several hosts; use {scheme}+cluster:// for a cluster")
    options["host"], options["port"] = nodes[0]
    options["db"] = database
    return Address("single", safe + (f"/{database}" if database else ""), options, nodes)


def _sentinels(path: str, query: dict[str, str], address: Address) -> Address:
    service, _, database = unquote(path.strip("/")).partition("/")
    if not service:
        raise InvalidInput(
            f"{address.safe} names no service; write the name by which the sentinels know the "
            "primary after the hosts, for example redis+sentinel://host:26379/mymaster"
        )
    own = {_SENTINEL_OPTIONS[name]: query.pop(name) for name in _SENTINEL_OPTIONS if name in query}
    _refuse_unknown(query)
    for name in address.options:
        if name.startswith("ssl"):
            own[name] = address.options[name]
    number = _number(database or "0", "database")
    return address._replace(
        safe=f"{address.safe}/{service}" + (f"/{number}" if number else ""),
        options={**address.options, "db": number},
        service=service,
        sentinel_options=own,
    )


def node_name(host: str, port: int) -> str:
    """Return host:port as URLs write it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _node(text: str, default_port: int) -> tuple[str, int]:
    found = _NODE.fullmatch(text)
    port = int(found["port"] or default_port) if found else 0
    if found and not 0 < port < 65536:
        raise InvalidInput("the port in the store URL is too large or 0; use one from 1 to 65535")
    if not found or not _is_host(found["host"]):
        raise InvalidInput(
            "after the user name and password a store URL names host:port, for example "
            "redis://user:password@localhost:6379"
        )
    return found["host"].strip("[]"), port


def _is_host(text: str) -> bool:
    """Return whether a resolver would accept the name; it raises on others, whatever they hold."""
    try:
        text.encode("idna")
    except UnicodeError:
        return False
    return bool(text)


def _credentials(options: dict[str, Any], text: str) -> None:
    username, _, password = text.partition(":")
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
            f"known are db (unix://), {' and '.join(_SENTINEL_OPTIONS)} (+sentinel://) and, over "
            f"TLS, {', '.join(_TLS_OPTIONS)}"
        )
