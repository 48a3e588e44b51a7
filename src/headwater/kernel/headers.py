"""Headers: a small map beside the value of a message, from names to bytes; sizes of messages.

They hold what belongs to a message and not to its value: the context of a trace, a content type,
where it came from. They are stored as one MessagePack map, sorted by name; a message without
headers stores nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import msgspec

from headwater.errors import InvalidInput, UnreadableNode
from headwater.kernel.inputs import MAX_EXACT, check_int

# ── Headers ───────────────────────────────────────────────────────────────────────────────────────


MAX_HEADERS: Final = 32
MAX_HEADER_NAME_BYTES: Final = 128
MAX_HEADERS_BYTES: Final = 4096
# Names that begin with this are given by Headwater itself.
RESERVED: Final = "hw."
# So many bytes they may take beyond the limit: what an application may write is never refused. The
# error of a dead letter takes most of it.
MAX_RESERVED_BYTES: Final = 5120
# The id of the row of an outbox that a message comes from, in decimal digits.
OUTBOX_ID: Final = "hw.outbox-id"

GivenHeaders: TypeAlias = Mapping[str, bytes | str]

_NAME = re.compile(rf"[!-~]{{1,{MAX_HEADER_NAME_BYTES}}}")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, bytes]).decode


class Headers(Mapping[str, bytes]):
    """The headers of a message: an immutable map, which is decoded when it is first looked at.

    ``Headers({"content-type": "text/plain"})`` checks what it is given and raises InvalidInput.
    """

    __slots__ = ("_fields", "encoded")

    encoded: bytes

    def __init__(self, given: GivenHeaders | None = None) -> None:
        self.encoded = encode_headers(given)
        self._fields: dict[str, bytes] | None = None

    @classmethod
    def stored(cls, encoded: bytes) -> Headers:
        """Return headers out of the bytes that are stored of them."""
        made = cls.__new__(cls)
        made.encoded = encoded
        made._fields = None
        return made

    def _found(self) -> dict[str, bytes]:
        fields = self._fields
        if fields is None:
            try:
                fields = _decode(self.encoded) if self.encoded else {}
            except msgspec.DecodeError as error:
                raise UnreadableNode(
                    f"its headers are not a map of str to bytes ({error})"
                ) from None
            self._fields = fields
        return fields

    def __getitem__(self, name: str) -> bytes:
        return self._found()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found())

    def __len__(self) -> int:
        return len(self._found())

    def __hash__(self) -> int:
        return hash(frozenset(self._found().items()))

    def __repr__(self) -> str:
        return f"Headers({self._found()!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (Headers.stored, (self.encoded,))


def check_stored(stored: Iterable[bytes]) -> None:
    """Raise UnreadableNode when bytes that are stored as headers are none."""
    for encoded in stored:
        len(Headers.stored(encoded))


def encode_headers(given: GivenHeaders | None) -> bytes:
    """Return what is stored of headers, nothing when there are none; raises InvalidInput.

    Headers of a message that was read are taken as they are, also those that Headwater gave.
    """
    if not given:
        if given is None or isinstance(given, Mapping):
            return b""
        raise InvalidInput(f"headers must be a mapping of str to bytes, not {given!r}")
    if isinstance(given, Headers):
        return given.encoded
    if not isinstance(given, Mapping):
        raise InvalidInput(f"headers must be a mapping of str to bytes, not {given!r}")
    for name in given:
        if isinstance(name, str) and name.startswith(RESERVED):
            raise InvalidInput(
                f"header {name!r} begins with {RESERVED!r}, which is for names of Headwater's own; "
                "choose another name"
            )
    return encode_fields(given)


def encode_fields(given: Mapping[Any, Any]) -> bytes:
    """Return what is stored of headers that may have names of Headwater's own."""
    if not given:
        return b""
    own = sum(isinstance(name, str) and name.startswith(RESERVED) for name in given)
    if len(given) - own > MAX_HEADERS:
        raise InvalidInput(f"a message may have {MAX_HEADERS} headers, not {len(given)}; use fewer")
    encoded = _encode({_name(name): _value(name, given[name]) for name in sorted(given, key=str)})
    if len(encoded) > MAX_HEADERS_BYTES + (MAX_RESERVED_BYTES if own else 0):
        raise InvalidInput(
            f"the headers of a message may take {MAX_HEADERS_BYTES} bytes, not {len(encoded)}; "
            "put what is large into the value"
        )
    return encoded


def with_header(encoded: bytes | None, name: str, value: bytes) -> bytes:
    """Return stored headers with one more of Headwater's own, which no limit refuses."""
    fields = _decode(encoded) if encoded else {}
    fields[name] = value
    return _encode(dict(sorted(fields.items())))


def _name(name: Any) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidInput(
            f"the name of a header must be 1 to {MAX_HEADER_NAME_BYTES} visible ASCII characters, "
            f"not {name!r}; choose another"
        )
    return name


def _value(name: Any, value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise InvalidInput(
                f"header {name!r} is not valid Unicode ({error.reason}); encode it"
            ) from None
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise InvalidInput(
        f"header {name!r} must be bytes or str, not {type(value).__name__}; encode it, for example "
        "with str(value)"
    )


NO_HEADERS: Final = Headers()


class Carried:
    """What goes with every message that this process writes: the context of a trace.

    ``context`` is None unless tracing is installed; whoever writes looks at it first, so that it
    costs nothing then. It returns headers for the moment at which a message is made.
    """

    context: Callable[[], Mapping[str, str]] | None = None

    @classmethod
    def beside(cls, given: GivenHeaders | None) -> GivenHeaders | None:
        """Return headers with what goes with them; what was given wins.

        Headers of a message that was read stay as they are.
        """
        # A value that is not a mapping is refused where it is encoded.
        if cls.context is None or not isinstance(given, dict | None):
            return given
        found = cls.context()
        return {**found, **(given or {})} if found else given


# ── Sizes ─────────────────────────────────────────────────────────────────────────────────────────
# Sizes of messages: a list of them ends early where it has as many bytes as it may have.


# A server returns no more messages once they have as many bytes.
LIST_BYTES = 4 * 1024 * 1024


class Sized(Protocol):
    """What has a value, and headers beside it; some have a tag and a cause, too."""

    @property
    def value(self) -> bytes:
        """What was written."""

    @property
    def headers(self) -> Headers:
        """What was written beside the value."""


SizedItem = TypeVar("SizedItem", bound=Sized)


def bytes_of(items: Iterable[Sized]) -> int:
    """Return how many bytes messages have: their values, headers, tags and causes."""
    return sum(map(_size_of, items))


def first_of(items: list[SizedItem], max_bytes: int | None) -> list[SizedItem]:
    """Return the first of some items, up to the one with which they have ``max_bytes``."""
    if max_bytes is None:
        return items
    for place, item in enumerate(items, 1):
        max_bytes -= _size_of(item)
        if max_bytes <= 0:
            return items[:place]
    return items


def check_max_bytes(max_bytes: int | None) -> int | None:
    """Accept how many bytes a list ends at; None is no limit."""
    return None if max_bytes is None else check_int(max_bytes, "max_bytes", 1, MAX_EXACT)


def _size_of(item: Sized) -> int:
    size = len(item.value) + len(item.headers.encoded) + len(getattr(item, "tag", ""))
    cause = getattr(item, "cause", None)
    return size if cause is None else size + len(cause.text)
