"""Which dead letters a request means: the fields that groups, topics and queues share.

A list of letters ends once they have 4 MiB, and names the place where the next one begins.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from headwater.kernel.failures import LetterFilter
from headwater.log.keys import MAX_OFFSET, MAX_READ
from headwater.serve.fields import Count

_Moment = Annotated[int, Meta(ge=0, le=MAX_OFFSET, description="Milliseconds since 1970.")]
_Attempts = Annotated[int, Meta(ge=0, le=MAX_OFFSET)]
LettersCount = Annotated[int, Meta(ge=1, le=MAX_READ)]


class MatchingBody(msgspec.Struct, forbid_unknown_fields=True):
    """Which dead letters: those that fit everything that is given.

    ``error`` is part of the last error, in any case. They were given up at ``after_ms`` or later,
    and before ``before_ms``. Messages of queues have no tag.
    """

    tag: str | None = None
    error: str | None = None
    min_attempts: _Attempts | None = None
    after_ms: _Moment | None = None
    before_ms: _Moment | None = None


class LettersQuery(msgspec.Struct, forbid_unknown_fields=True):
    """How many dead letters, and which: those that fit everything that is given.

    ``from`` is where a list before ended, as its ``next``.
    """

    count: Count = 100
    from_: str = msgspec.field(default="", name="from")
    tag: str | None = None
    error: str | None = None
    min_attempts: _Attempts | None = None
    after_ms: _Moment | None = None
    before_ms: _Moment | None = None


def letter_filter(given: MatchingBody | LettersQuery | None) -> LetterFilter | None:
    """Return the filter of a request as the library takes it; None when it asks for all."""
    if given is None:
        return None
    found = LetterFilter(
        given.tag, given.error, given.min_attempts, given.after_ms, given.before_ms
    )
    if isinstance(given, LettersQuery) and found == LetterFilter():
        return None
    return found
