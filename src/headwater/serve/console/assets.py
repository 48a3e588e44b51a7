"""Files that the pages use: our style sheet and script, and what is taken from others.

Each has its digest in its address, so that browsers keep it until it changes.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Final

import msgspec

from headwater.serve.http.messages import Reply, Request

_KINDS: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_KEPT: Final = b"Cache-Control: public, max-age=31536000, immutable\r\n"


class Asset(msgspec.Struct, frozen=True, gc=False):
    """A file as it is sent."""

    body: bytes
    kind: str
    digest: str

    def reply(self, request: Request) -> Reply:
        """Return the file, or that the client has it already."""
        tag = f'"{self.digest}"'
        headers = b"ETag: %b\r\nX-Content-Type-Options: nosniff\r\n" % tag.encode() + _KEPT
        if (request.headers or {}).get(b"if-none-match", b"").decode("latin-1") == tag:
            return Reply(304, b"", self.kind, headers)
        return Reply(200, self.body, self.kind, headers)


@cache
def _assets() -> dict[str, Asset]:
    found = {}
    for file in files("headwater.serve.console").joinpath("static").iterdir():
        kind = _KINDS.get(file.name[file.name.rfind(".") :])
        if kind is not None:
            body = file.read_bytes()
            found[file.name] = Asset(body, kind, sha256(body).hexdigest()[:16])
    return found


def find_asset(path: str) -> Asset | None:
    """Return the file of an address behind ``static/``, whatever digest it has; None for none."""
    return _assets().get(path.rpartition("/")[2]) if "/" in path else None


def asset_path(name: str) -> str:
    """Return the address of a file behind ``static/``."""
    return f"{_assets()[name].digest}/{name}"
