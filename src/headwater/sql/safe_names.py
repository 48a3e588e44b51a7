"""What may be shown of a database: which one it is, never its credentials.

Every error, repr, log line and plan names a database by ``safe_name``. Parameters of a URL are
shown by an allow-list, because any other may hold a secret. What a driver says goes through
``without_secrets``, because libpq quotes the connection string that it cannot read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import TypeAlias
from urllib.parse import parse_qsl, quote, quote_plus, urlencode

from psycopg import pq
from sqlalchemy import URL, Engine
from sqlalchemy.ext.asyncio import AsyncEngine

Database: TypeAlias = URL | Engine | AsyncEngine

HIDDEN = "***"
_SHORT = 3

# Parameters that say which database it is, or how it is opened.
_SHOWN = {
    "postgresql": {"host", "hostaddr", "port", "dbname", "user", "service", "sslmode"}
    | {"target_session_attrs"},
    "sqlite": {"mode", "cache", "immutable", "uri"},
}
# Parameters that libpq does not mark as passwords, and that lead to secrets all the same.
_LEAD_TO_SECRETS = {"passfile", "sslkey", "options", "service", "servicefile"}

# As in "password = 'it''s'", in a keyword string or behind the ? of a URL.
_ASSIGNMENT = re.compile(
    r"""([\w.%-]*(?:pass|pwd|secret|token|key|credential|options)[\w.%-]*\s*=\s*)"""
    r"""('(?:[^'\\]|\\.|'')*'?|"[^"]*"?|[^\s&;,'"]+)""",
    re.IGNORECASE,
)
# As in scheme://user:password@host; a password may hold an @ that was not encoded.
_USERINFO = re.compile(r"(://[^:/@\s'\"]*:).*@", re.DOTALL)
# libpq quotes what it cannot read of a connection string.
_UNREADABLE = re.compile(
    r"connection info string|connection option|percent-encoded|\bURI\b|\bsslmode\b|\bservice\b"
)


def safe_name(database: Database) -> str:
    """Return the URL of a database without its secrets and without its driver."""
    url = _url_of(database)
    kind = url.get_backend_name()
    name, _, parameters = (url.database or "").partition("?")
    pairs = [*parse_qsl(parameters)] if kind == "sqlite" else []
    pairs += [
        (key, value) for key, found in sorted(url.normalized_query.items()) for value in found
    ]
    shown = [
        (key, value)
        for key, value in pairs
        if key in _SHOWN.get(kind, ()) and not _holds_secret(value)
    ]
    user = quote(url.username or "", safe=" +") + (f":{HIDDEN}" if url.password else "")
    # After an @ that was not encoded, the rest of a password is parsed as a host.
    host = (url.host or "").rpartition("@")[2]
    place = f"[{host}]" if ":" in host else host
    place += f":{url.port}" if url.port else ""
    place += "" if url.database is None else f"/{_hide(name)}"
    if _split_password(url):
        place = _hide(name.rpartition("@")[2])
    query = f"?{urlencode(shown)}" if shown else ""
    return f"{kind}://{user and f'{user}@'}{place}{query}"


def without_secrets(text: str, database: Database) -> str:
    """Return what was said about a database without the secrets that are quoted in it."""
    url = _url_of(database)
    facts = {url.username, *url.query, "="}
    if not _split_password(url):
        facts |= {url.host, str(url.port or ""), url.database}
    quoted = re.findall(r'"([^"]*)"', text)
    if _UNREADABLE.search(text) and not facts.issuperset(quoted):
        text = re.sub(r'".*"', f'"{HIDDEN}"', text, flags=re.DOTALL)
    for secret in sorted(set(_secrets(url)) - facts - {""}, key=len, reverse=True):
        for spelled in {secret, quote(secret, safe=""), quote_plus(secret)}:
            text = re.sub(rf"(?<!\w){re.escape(spelled)}(?!\w)", HIDDEN, text)
    return _hide(text)


def _url_of(database: Database) -> URL:
    return database if isinstance(database, URL) else database.url


def _split_password(url: URL) -> bool:
    """Return whether a password with an @ and a / in it went into host, port and database."""
    return url.get_backend_name() != "sqlite" and "@" in (url.database or "")


def _hide(text: str) -> str:
    text = _USERINFO.sub(rf"\g<1>{HIDDEN}@", text)
    return _ASSIGNMENT.sub(rf"\g<1>{HIDDEN}", text)


def _holds_secret(text: str) -> bool:
    return _hide(text) != text


def _secrets(url: URL) -> Iterator[str]:
    """Find the values in a URL that must not be shown."""
    if url.password:
        yield str(url.password)
    if url.host and "@" in url.host:
        yield url.host.rpartition("@")[0]
    if _split_password(url):
        rest = (url.database or "").rpartition("@")[0]
        port = f":{url.port}" if url.port else ""
        yield from (f"{url.host}{port}/{rest}", rest, url.host or "")
    harmless = _SHOWN.get(url.get_backend_name(), set()) | _harmless()
    for name, values in url.normalized_query.items():
        for value in values:
            # Hiding very short values would remove ordinary numbers from a text.
            if (name not in harmless and len(value) > _SHORT) or _holds_secret(value):
                yield value


@cache
def _harmless() -> frozenset[str]:
    """Name the parameters of libpq whose values may stand in an error."""
    found = {
        option.keyword.decode() for option in pq.Conninfo.get_defaults() if option.dispchar == b""
    }
    return frozenset(found - _LEAD_TO_SECRETS)
