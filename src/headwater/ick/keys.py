"""The keys of dirty lists, what they accept, and how members and scores are encoded."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Final, TypeAlias, TypeVar

from headwater.errors import InvalidInput
from headwater.kernel import inputs
from headwater.kernel.declaring import Param, Spelling
from headwater.kernel.inputs import check_int, check_name
from headwater.store.call import Argument

# ── Limits ────────────────────────────────────────────────────────────────────────────────────────
# What dirty lists accept, and how members and scores are encoded; checked before sending.
#
# Members are bytes to the server. A str stands for its UTF-8 bytes; a result is a str where it is
# UTF-8, and else bytes, so that every result can be passed in again.


_Word = TypeVar("_Word")
_Row = TypeVar("_Row")

Member: TypeAlias = "str | bytes"
Scores: TypeAlias = "Mapping[str, float] | Mapping[bytes, float] | Mapping[Member, float]"
GivenMember: TypeAlias = Annotated[Member, Param("Members.", Spelling.MEMBERS, metavar="MEMBER")]
GivenScores: TypeAlias = Annotated[
    Scores,
    Param(
        "Members; the lower of two scores of a member counts.", Spelling.SCORES, called="members"
    ),
]
NotBefore: TypeAlias = Annotated[
    int | dt.datetime | None,
    Param(
        "The time before which they are not delivered.",
        Spelling.TIME,
        least=0,
        most=inputs.MAX_EXACT,
        metavar="UNIX-MS",
    ),
]

ReserveCount: TypeAlias = Annotated[
    int,
    Param("How many are reserved.", least=0, most=10_000, called="count", typed=10),
]
Backwash: TypeAlias = Annotated[
    bool,
    Param("First return what is reserved, so that the lowest of all are reserved."),
]
Shard: TypeAlias = Annotated[
    int | None, Param("Only those of one shard.", least=0, most=1023, metavar="N")
]

MAX_KEY_BYTES: Final = 1024
MAX_CALL_BYTES: Final = 256 * 1024 * 1024
MAX_RESERVE: Final = 1_000_000
MAX_SHARDS: Final = 1024
Shards: TypeAlias = Annotated[
    int, Param("The new number of shards.", least=1, most=MAX_SHARDS, metavar="NUMBER")
]

SCAN_MEMBERS: Final = 1000
# How many members one call adds, reserves or commits; a larger request takes several calls. In a
# channel each member is in several sets.
STEP_MEMBERS: Final = 1000
CHANNEL_MEMBERS: Final = 500
MOVE_MEMBERS: Final = 250

# What goes along with each member: its score, and how long both are.
_BESIDES: Final = 40


# A scan begins with so many, as members may be large, and then takes as many as have this size.
_FIRST_SCANNED: Final = 50
_SCANNED_BYTES: Final = 1024 * 1024


def next_scan(found: Sequence[tuple[Member, *tuple[object, ...]]] | None = None) -> int:
    """Return about how many members the next page of a scan has, by those of the page before."""
    if not found:
        return _FIRST_SCANNED if found is None else SCAN_MEMBERS
    each = max(1, sum(len(member) for member, *_ in found) // len(found))
    return max(1, min(SCAN_MEMBERS, _SCANNED_BYTES // each))


def first_members(
    found: list[_Row], size_of: Callable[[_Row], int], max_bytes: int | None
) -> list[_Row]:
    """Return the first of some members, up to the one with which they have ``max_bytes``."""
    if max_bytes is None:
        return found
    for place, row in enumerate(found, 1):
        max_bytes -= size_of(row)
        if max_bytes <= 0:
            return found[:place]
    return found


def check_reserve(count: int) -> int:
    """Accept how many members to reserve."""
    return check_int(count, "n", 0, MAX_RESERVE)


def check_shards(shards: int) -> int:
    """Accept a number of shards."""
    return check_int(shards, "shards", 1, MAX_SHARDS)


def encode(member: Member) -> bytes:
    """Encode a member."""
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
    """Return a member as text, or as it is when it is not UTF-8."""
    try:
        return member.decode()
    except UnicodeDecodeError:
        return member


def spell_score(score: float) -> Argument:
    """Format a score without losing a digit; raises InvalidInput where one would be lost."""
    if isinstance(score, bool) or not isinstance(score, int | float):
        raise InvalidInput(f"a score must be an int or a float, not {score!r}")
    if isinstance(score, int):
        if abs(score) > inputs.MAX_EXACT + 1 and not _is_exact(score):
            raise InvalidInput(
                f"the score {score} would be rounded: whole numbers are exact up to "
                f"{inputs.MAX_EXACT}; use milliseconds or microseconds, not nanoseconds"
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


def spell_pairs(scores: Scores) -> list[Argument]:
    """Encode members with their scores as the server takes them: score, member, score, ..."""
    if not isinstance(scores, Mapping):
        raise InvalidInput(
            f"members come with their scores, as {{member: score}}, not {type(scores).__name__}"
        )
    words: list[Argument] = []
    size = 0
    for member, score in scores.items():
        # The common cases inline: this loop is most of the cost of a large add.
        plain = type(score) is float and score == score
        words.append(repr(score) if plain else spell_score(score))
        spelled = encode(member)
        words.append(spelled)
        size += len(spelled) + _BESIDES
    _check_size(size)
    return words


def spell_members(members: Iterable[Member]) -> list[bytes]:
    """Encode members."""
    found = [encode(member) for member in members]
    _check_size(sum(map(len, found)) + _BESIDES * len(found))
    return found


def steps_of(
    words: Sequence[_Word], each: int, members: int = STEP_MEMBERS
) -> list[Sequence[_Word]]:
    """Divide words, this many per member, into parts that one call takes."""
    step = members * each
    return [words[at : at + step] for at in range(0, len(words), step)]


def _check_size(size: int) -> None:
    if size > MAX_CALL_BYTES:
        raise InvalidInput(
            f"a call of {size} bytes is too large, {MAX_CALL_BYTES} are allowed; split it"
        )


# ── Keys ──────────────────────────────────────────────────────────────────────────────────────────


CHANNELS = "hw:{channels}"


def ick_keys(name: str, one_server: bool) -> tuple[str, str, str]:
    """Return the keys of an Ick: its flag, its producer set, its consumer set.

    They are those of redis-ick, without a prefix of ours. On a cluster they must share a slot: they
    do unless the name has braces that do not form a hash tag, which is refused there.
    """
    if not isinstance(name, str):
        raise InvalidInput(f"the key of an Ick must be a str, not {type(name).__name__}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidInput(
            f"the key of an Ick must be text, not {name!r}; choose another"
        ) from None
    if not 1 <= size <= MAX_KEY_BYTES:
        raise InvalidInput(
            f"the key of an Ick must have 1 to {MAX_KEY_BYTES} bytes, not {size}; choose another"
        )
    pset = f"{name}/ick/{{{name}}}/pset"
    if not one_server and hash_tag(pset) != hash_tag(name):
        raise InvalidInput(
            f"the keys of the Ick {name!r} would be in different slots of a cluster; use a key "
            "without braces, or one whose braces hold a hash tag, as 'a{b}'"
        )
    return name, pset, f"{name}/ick/{{{name}}}/cset"


def hash_tag(key: str) -> str:
    """Return the part of a key by which a cluster finds its slot."""
    _, opened, rest = key.partition("{")
    tag, closed, _ = rest.partition("}")
    return tag if opened and closed and tag else key


def channel_key(name: str) -> str:
    """Return the key of a channel, under which its layout is kept."""
    return f"hw:c:{{{check_name(name, 'channel')}}}"


def shard_key(name: str, epoch: int, shard: int) -> str:
    """Return the key of a shard; every other key of it begins with this one."""
    return f"hw:cs:{{{name}/{epoch}/{shard}}}"
