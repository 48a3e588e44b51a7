"""Fields that the requests of several objects share, with their bounds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from headwater.errors import InvalidInput
from headwater.kernel.inputs import Encoding, from_text
from headwater.log.keys import MAX_MS, MAX_OFFSET, MAX_READ

# How long a request may wait for messages; one that is not answered yet holds a connection.
MAX_BLOCK_MS: Final = 60_000
# As many has the largest offset; of a text that is much longer, Python makes no number.
MAX_DIGITS: Final = len(str(MAX_OFFSET))

Offset: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_OFFSET, description="An offset, from 1 on.")]
Start: TypeAlias = Offset | Literal["first", "last"]
Count: TypeAlias = Annotated[int, Meta(ge=1, le=10_000, description="How many to return at most.")]
ReadCount: TypeAlias = Annotated[
    int, Meta(ge=1, le=MAX_READ, description="How many messages to return at most.")
]
Milliseconds: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_MS, description="Milliseconds.")]
BlockMs: TypeAlias = Annotated[
    int,
    Meta(
        ge=0,
        le=MAX_BLOCK_MS,
        description="Milliseconds to wait for a first message, when there is none.",
    ),
]
AckMs: TypeAlias = Annotated[
    int,
    Meta(
        ge=1,
        le=MAX_MS,
        description="Milliseconds after which a message that is not acknowledged is redelivered.",
    ),
]
WithHeaders: TypeAlias = Annotated[
    bool, Meta(description="Whether Arrow has a column of headers; JSON always shows them.")
]


class MemberBody(msgspec.Struct, forbid_unknown_fields=True):
    """A member of a dirty list, as text or base64."""

    member: str
    encoding: Encoding | None = None


class ScoredBody(msgspec.Struct, forbid_unknown_fields=True):
    """A member of a dirty list, as text or base64, and its score."""

    member: str
    score: float
    encoding: Encoding | None = None


GivenMembers: TypeAlias = Annotated[
    list[MemberBody], Meta(max_length=10_000, description="Members.")
]
GivenScores: TypeAlias = Annotated[
    list[ScoredBody],
    Meta(max_length=10_000, description="Members; the lower of two scores of a member counts."),
]


def members_of(given: Iterable[MemberBody | ScoredBody]) -> list[str | bytes]:
    """Return members as the library takes them; raises InvalidInput for what is not base64."""
    try:
        return [from_text(body.member, body.encoding) for body in given]
    except ValueError as error:
        raise InvalidInput(str(error)) from None


def scores_of(given: list[ScoredBody]) -> dict[str | bytes, float]:
    """Return members with their scores; the lower one counts where a member is given twice."""
    scores: dict[str | bytes, float] = {}
    for member, body in zip(members_of(given), given, strict=True):
        scores[member] = min(body.score, scores.get(member, body.score))
    return scores


class RangeOfOffsets(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A range of offsets, both ends included."""

    first: Offset
    last: Offset


# Not pairs for ranges: msgspec 0.22 crashes on unions of numbers with bounds and tuples.
GivenOffsets: TypeAlias = Annotated[
    list[Offset | RangeOfOffsets],
    Meta(max_length=10_000, description="Offsets, and ranges of them."),
]


class ListQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Which part of a list: names that begin with ``prefix``, after one, and how many."""

    prefix: str = ""
    after: str = ""
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100

    def of(self, names: list[str]) -> tuple[list[str], str | None]:
        """Return the names of this part, of names that are sorted, and after which to continue."""
        found = [name for name in names if name > self.after and name.startswith(self.prefix)]
        page = found[: self.limit]
        return page, page[-1] if len(found) > len(page) else None
