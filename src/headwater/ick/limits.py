"""What dirty lists accept, and how members and scores are spelled; checked before sending.

Members are bytes to the server. A str stands for its UTF-8 bytes; what comes back is a str where it
is UTF-8, and else the bytes, so that whatever comes back can be given again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from headwater.errors import InvalidInput
from headwater.inputs import MAX_EXACT, check_int
from headwater.store.call import Argument

Member: TypeAlias = "str | bytes"

MAX_KEY_BYTES: Final = 1024
MAX_CALL_BYTES: Final = 256 * 1024 * 1024
MAX_RESERVE: Final = 1_000_000
MAX_SHARDS: Final = 1024

SCAN_MEMBERS: Final = 1000
MOVE_MEMBERS: Final = 500


def check_reserve(count: int) -> int:
    """Accept how many members to reserve."""
    return check_int(count, "n", 0, MAX_RESERVE)


def check_shards(shards: int) -> int:
    """Accept a number of shards."""
    return check_int(shards, "shards", 1, MAX_SHARDS)


def encode(member: Member) -> bytes:
    """Spell a member."""
    if isinstance(member, str):
        try:
            return member.encode()
        except UnicodeEncodeError:
            raise InvalidInput(
                f"the member {member!r} has half a surrogate pair; give it as bytes"
            ) from None
    if not isinstance(member, bytes):
        raise InvalidInput(f"a member must be str or bytes, not {type(member).__name__}")
    return member


def decode(member: bytes) -> Member:
    """Give a member as text, or as it is when it is not UTF-8."""
    try:
        return member.decode()
    except UnicodeDecodeError:
        return member


def spell_score(score: float) -> Argument:
    """Spell a score so that not a digit is lost; raises InvalidInput where one would be."""
    if isinstance(score, bool) or not isinstance(score, int | float):
        raise InvalidInput(f"a score must be an int or a float, not {score!r}")
    if isinstance(score, int):
        if abs(score) > MAX_EXACT + 1 and not _is_exact(score):
            raise InvalidInput(
                f"the score {score} would be rounded: whole numbers are exact up to {MAX_EXACT}; "
                "use milliseconds or microseconds, not nanoseconds"
            )
        return score
    if math.isnan(score):
        raise InvalidInput("a score must be a number, not NaN, which has no place in order")
    return repr(float(score))


def _is_exact(score: int) -> bool:
    try:
        return int(float(score)) == score
    except OverflowError:
        return False


def spell_pairs(scores: Mapping[Member, float]) -> list[tuple[Argument, bytes]]:
    """Spell members with their scores, as the server takes them."""
    if not isinstance(scores, Mapping):
        raise InvalidInput(
            f"members come with their scores, as {{member: score}}, not {type(scores).__name__}"
        )
    pairs = [(spell_score(score), encode(member)) for member, score in scores.items()]
    _check_size(member for _, member in pairs)
    return pairs


def spell_members(members: Iterable[Member]) -> list[bytes]:
    """Spell members."""
    found = [encode(member) for member in members]
    _check_size(found)
    return found


def _check_size(members: Iterable[bytes]) -> None:
    # Some 40 bytes go along with each member: its score, and how long both are.
    size = sum(len(member) + 40 for member in members)
    if size > MAX_CALL_BYTES:
        raise InvalidInput(
            f"a call of {size} bytes is too large, {MAX_CALL_BYTES} are allowed; split it"
        )
