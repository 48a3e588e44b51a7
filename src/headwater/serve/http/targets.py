"""What a request is addressed to: its target, names in its path, and the Host header."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from headwater.serve.http.messages import Refused

_HOST: Final = re.compile(rb"[\w.~!$&'()*+,;=%-]*(:\d*)?|\[[\w.:%]+\](:\d*)?", re.ASCII)
# Clients and proxies take these parts for steps in the path, even percent-encoded, and remove them.
_STEP: Final = re.compile(r"{*\.\.?}*")


def check_host(value: bytes) -> None:
    """Accept the value of a Host header, which may be empty; raises Refused for another."""
    if not _HOST.fullmatch(value.strip()):
        raise Refused(400, "the Host header is not the name of a host")


def split_target(method: str, target: bytes) -> tuple[str, str]:
    """Return the path and the query of a target; raises Refused for one that is not allowed."""
    if b"#" in target:
        raise Refused(400, "the target of a request has no fragment; leave out what follows #")
    if target.startswith(b"/"):
        path, _, query = target.decode().partition("?")
        return path, query
    if target == b"*" and method == "OPTIONS":
        return "*", ""
    # The absolute form, which clients send that believe this is a proxy. A server has to accept it,
    # and its host takes the place of that of the Host header, which means nothing here either.
    try:
        parts = urlsplit(target.decode())
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        known = False
    if not known:
        raise Refused(400, "the target of a request begins with / or is an address with http")
    if parts.username is not None or parts.password is not None:
        raise Refused(400, "the target of a request has no user and no password")
    return parts.path or "/", parts.query


def path_part(name: str) -> str:
    """Spell a name as one part of a path, which clients and proxies leave as it is.

    The names ``.`` and ``..`` are put in braces; a name that looks like that gets a further pair.
    """
    return quote(f"{{{name}}}" if _STEP.fullmatch(name) else name, safe="")


def name_of_part(part: str) -> str:
    """Return the name that a part of a path spells; raises Refused, 400."""
    try:
        name = unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise Refused(400, "a name in the path is not UTF-8") from None
    inner = name[1:-1]
    return inner if name == f"{{{inner}}}" and _STEP.fullmatch(inner) else name
