"""Pages out of templates: what a template may call, how facts are shown, and the files of pages."""

from __future__ import annotations

import datetime as dt
import json
import shlex
import time
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any, Final

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from headwater.log.types import Retention
from headwater.serve.console.links import query
from headwater.serve.console.values import hex_dump, line, payload, visible
from headwater.serve.http.messages import Reply, Request, path_part
from headwater.views.overview import live_members

# Each has its digest in its address, so that browsers keep it until it changes.
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


_UNITS: Final = ("B", "kB", "MB", "GB", "TB")
_AGES: Final = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


@cache
def environment() -> Environment:
    """Return where templates are found; everything that they show is escaped."""
    made = Environment(
        loader=PackageLoader("headwater.serve.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        number=number, size=size, age=age, moment=moment, payload=payload, name=path_part
    )
    made.filters.update(
        exact=exact_time, policy=policy, span=span, json=as_json, hex=hex_dump, python=repr
    )
    made.filters.update(shell=shlex.quote, score=score, bound=bound, visible=visible, line=line)
    made.filters.update(mean_size=mean_size, rate=rate, counted=counted)
    made.globals.update(query=query, asset=asset_path, bar_x=list.index, live_members=live_members)
    return made


def render(template: str, context: dict[str, Any]) -> bytes:
    """Return a page."""
    return environment().get_template(template).render(context).encode()


def number(value: float | None) -> str:
    """Spell a number with its thousands grouped."""
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def counted(count: int, noun: str) -> str:
    """Spell how many of something there are: 1 message, 2,000 messages."""
    return f"{number(count)} {noun}{'s' * (count != 1)}"


def rounded(value: float) -> str:
    """Spell a number with one digit behind the point where that matters."""
    return number(round(value, 1) if value < 10 and value != int(value) else round(value))


def rate(value: float | None) -> str:
    """Spell how many there are a second."""
    return "–" if value is None else f"{rounded(value)}/s"


def score(value: float) -> str:
    """Spell a score as it is, a whole number without a point."""
    return f"{value:,.0f}" if value == int(value) and abs(value) < 2**53 else repr(value)


def size(value: float) -> str:
    """Spell a number of bytes in the unit that suits it."""
    for unit in _UNITS[:-1]:
        if abs(value) < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} {_UNITS[-1]}"


def mean_size(value: float) -> str:
    """Spell how many bytes something takes on average."""
    return f"{value:.1f} B" if value < 1000 else size(value)


def age(ms: float | None) -> str:
    """Spell how long something takes or has lasted."""
    if ms is None:
        return "–"
    seconds = ms / 1000
    if seconds < 0.1:
        return f"{ms:.0f} ms" if ms >= 1 else "0 s"
    # What rounds to 10.0 is spelled as what follows it.
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    for length, unit in _AGES:
        if seconds >= 2 * length or unit == "s":
            return f"{seconds / length:.0f} {unit}"
    raise AssertionError


def bound(ms: int | None) -> str:
    """Spell the upper end of a span of waits; None is beyond the largest, a day."""
    if ms is None:
        return "over 1 d"
    for length, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s")):
        if ms >= length:
            return f"up to {ms / length:g} {unit}"
    return f"up to {ms} ms"


def moment(ms: int | None) -> Markup:
    """Return when something was: how long ago, and the exact time on hover."""
    if not ms:
        return Markup("–")
    iso = dt.datetime.fromtimestamp(ms / 1000, dt.UTC).isoformat(timespec="milliseconds")
    ago = time.time() * 1000 - ms
    words = f"{age(ago)} ago" if ago >= 0 else f"in {age(-ago)}"
    return Markup('<time datetime="{0}" title="{1}">{2}</time>').format(iso, exact_time(ms), words)


def exact_time(ms: int) -> str:
    """Spell a moment to the millisecond, in UTC."""
    moment = dt.datetime.fromtimestamp(ms / 1000, dt.UTC).replace(tzinfo=None)
    return moment.isoformat(sep=" ", timespec="milliseconds") + " UTC"


def span(ms: int) -> str:
    """Spell a span of time as forms and commands take it: 7d, 90m, 1500ms."""
    for length, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s")):
        if ms and ms % length == 0:
            return f"{ms // length}{unit}"
    return f"{ms}ms"


def _spaced(span: str) -> str:
    """Spell a span as a text has it, such as 7 d."""
    unit = span.lstrip("0123456789")
    return f"{span.removesuffix(unit)} {'min' if unit == 'm' else unit}"


def policy(keep: Retention) -> str:
    """Spell how much of a stream is kept."""
    limits = [
        keep.max_age_ms is not None and f"for {_spaced(span(keep.max_age_ms))}",
        keep.max_count is not None and f"the newest {number(keep.max_count)}",
        keep.max_bytes is not None and f"up to {size(keep.max_bytes)}",
    ]
    said = " and ".join(limit for limit in limits if limit)
    return f"kept {said}" if said else "everything is kept"


def as_json(value: Any) -> str:
    """Spell a value as JSON, for an attribute that a script reads."""
    return json.dumps(value, separators=(",", ":"))
