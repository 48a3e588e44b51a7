"""What a request is addressed to: its target, and the Host header."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from headwater.serve.http.messages import Refused

_HOST: Final = re.compile(rb"[\w.~!$&'()*+,;=%-]*(:\d*)?|\[[\w.:%]+\](:\d*)?", re.ASCII)


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
