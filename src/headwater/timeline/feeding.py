"""From messages of a log to operations on timelines, so that a farm can be rebuilt.

Operations commute and may be repeated: messages can be read from any offset on, twice, and by
several programs at once, and the timelines are the same in the end. The value of a message that
holds operations is a JSON document, or a list of them:

    {"key": "ada", "score": 17.5, "member": "ride-1"}
    {"key": "ada", "score": 19, "member": "ride-1", "deleted": true}

A score that would be rounded is refused. With a ``key_encoding`` or ``member_encoding`` of
``base64`` the key or member is any bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal, NamedTuple

import msgspec

from headwater.errors import InvalidInput
from headwater.kernel.inputs import Encoding, from_text
from headwater.timeline.farm.farm import Farm
from headwater.timeline.records import Key, Member, Tuple, Written, check_score, read_number

BATCH: Final = 1000


class Operation(NamedTuple):
    """An insert into a timeline, or a delete."""

    key: Key
    score: float
    member: Member
    deleted: bool = False


class _Document(msgspec.Struct):
    key: str
    # An int as it is, any other number by read_number: what would be rounded is refused.
    score: Any
    member: str
    deleted: bool = False
    key_encoding: Encoding | Literal[""] = ""
    member_encoding: Encoding | Literal[""] = ""


_read = msgspec.json.Decoder(list[_Document] | _Document, float_hook=read_number).decode
_read_one = msgspec.json.Decoder(_Document, float_hook=read_number).decode


def operations(value: bytes) -> list[Operation]:
    """Return the operations of a message; raises InvalidInput for a value that holds none."""
    try:
        found = _read(value)
        documents = found if isinstance(found, list) else [found]
        return [Operation(*_tuple(document), document.deleted) for document in documents]
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidInput(
            f"{value[:100]!r} does not hold operations on timelines ({error}); give JSON with key, "
            "score and member, or read such messages by a function of your own"
        ) from None


def read_tuple(line: bytes) -> Tuple:
    """Return the tuple that one JSON document holds; raises ValueError."""
    try:
        return _tuple(_read_one(line))
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _tuple(document: _Document) -> Tuple:
    return (
        from_text(document.key, document.key_encoding or None),
        check_score(document.score),
        from_text(document.member, document.member_encoding or None),
    )


def apply(farm: Farm, given: Iterable[Operation]) -> Written:
    """Write operations in batches; returns when a quorum has them all. Raises QuorumFailed."""
    done = Written()
    batches: tuple[list[Tuple], list[Tuple]] = ([], [])
    writes = (farm.insert, farm.delete)
    for operation in given:
        batch = batches[operation.deleted]
        batch.append((operation.key, operation.score, operation.member))
        if len(batch) >= BATCH:
            done = done.plus(writes[operation.deleted](batch))
            batch.clear()
    for write, batch in zip(writes, batches, strict=True):
        if batch:
            done = done.plus(write(batch))
    return done
