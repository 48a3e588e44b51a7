"""What goes into a timeline and comes out: keys, members, scores, records; and the merge rule.

Keys and members are bytes. A str stands for its UTF-8 bytes. A key asked for as bytes returns its
members as bytes; one asked for as str returns members as str where they are UTF-8, and else as
bytes. So whatever comes out can be given again, and no two keys or members become the same.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import struct
from collections.abc import Iterable, Mapping
from decimal import Decimal
from itertools import repeat
from typing import Final, NamedTuple, TypeAlias

from headwater.errors import InvalidInput, StoreError
from headwater.kernel.inputs import check_int

# ── Scores ────────────────────────────────────────────────────────────────────────────────────────
# Numbers that a double keeps exactly, in every spelling; all others are refused.
#
# A whole number is accepted when a double holds that very number. Most fractions are held by no
# double, 0.1 for example; one is accepted when it is how programs print a double: with as few
# digits as tell it from its neighbours, with 17 digits, or with all of them. So the score that is
# kept is the number that was written, and is shown as that.


MAX_EXACT: Final = 2**53

_NUMBER: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
# A double can represent any number of this many characters, without an exponent, distinctly.
_SAFE_LENGTH: Final = 15


def check_score(score: float) -> float:
    """Return a number that a double holds exactly; minus zero is zero. Raises InvalidInput."""
    if type(score) is float and math.isfinite(score):
        return score + 0.0
    if isinstance(score, bool) or not isinstance(score, int | float):
        raise InvalidInput(
            f"a score must be an int or a float, not {score!r}; convert it, or scale it to a whole "
            "number"
        )
    try:
        number = float(score)
    except OverflowError:
        raise InvalidInput(f"the score {score} is too large for a double; scale it down") from None
    if not math.isfinite(number):
        raise InvalidInput(f"a score must be finite, not {score}, which has no place in order")
    if number != score:
        raise _rounded(str(score))
    return number + 0.0


def read_score(text: str) -> float:
    """Return the number that a text states in decimal, as in JSON; raises InvalidInput."""
    if not _NUMBER.fullmatch(text):
        raise InvalidInput(f"a score must be a number, not {_short(text)}; write it as 17 or 17.5")
    return read_number(text)


def read_number(text: str) -> float:
    """Return the score that a text spells which is known to be a number; raises InvalidInput."""
    number = float(text)
    if len(text) <= _SAFE_LENGTH and "e" not in text and "E" not in text:
        return number + 0.0
    if -MAX_EXACT < number < MAX_EXACT and repr(number) == text:
        return number + 0.0
    if not math.isfinite(number):
        raise InvalidInput(f"the score {_short(text)} is too large for a double; scale it down")
    written = Decimal(text)
    if written != Decimal(number):
        printed = () if written == written.to_integral_value() else (repr(number), f"{number:.17g}")
        if all(written != Decimal(one) for one in printed):
            raise _rounded(_short(text))
    return number + 0.0


def exact(score: float) -> int | float:
    """Return a score so that JSON has it exactly: JSON shortens a float, but not an int."""
    return score if -MAX_EXACT <= score <= MAX_EXACT else int(score)


def _rounded(text: str) -> InvalidInput:
    return InvalidInput(
        f"the score {text} would be rounded: doubles hold whole numbers exactly up to 2**53, and "
        "about 16 digits; use milliseconds or microseconds, not nanoseconds"
    )


def _short(text: str) -> str:
    return text if len(text) <= 60 and text.isprintable() else f"{text[:60]!r}..."


# ── Merging ───────────────────────────────────────────────────────────────────────────────────────
# The merge rule of timelines, without I/O: what is true of a member, and what a key keeps.
#
# A member's state is its newest operation: a higher score wins, and of equal scores the delete.
# That is a maximum, so the order, number and grouping of operations do not matter. A key keeps the
# newest ``keep`` of its states by (score, member), inserts and deletes counted together, and none
# below the horizon. Both keep an upper end of one order in which a state only ever rises; hence
# whatever falls out can never be part of a later result, and keeping commutes with merging:
# ``kept(merge(kept(a), kept(b))) == kept(merge(a, b))``.
#
# Of what is kept, the newest ``max_size`` that are inserted are shown. Roshi keeps ``max_size``
# inserts and as many deletes, and all of them fit into twice ``max_size``, which is the default.
#
# The functions in the server mirror this rule; unions of reads, repairs and tests use this module.


NO_HORIZON = -math.inf


class State(NamedTuple):
    """The newest operation on a member; of two states the greater one is true."""

    score: float
    deleted: bool


# Where an element stands in its key; the newest is the greatest.
Rank: TypeAlias = "tuple[float, bytes]"
# What is known of a key: the states of its members.
States: TypeAlias = "dict[bytes, State]"


def newest(states: Iterable[State | None]) -> State | None:
    """Merge what several replicas know of a member; None stands for one that does not know it."""
    return max((state for state in states if state is not None), default=None)


def merge(replicas: Iterable[Mapping[bytes, State]]) -> States:
    """Merge what several replicas know of a key."""
    merged: States = {}
    for replica in replicas:
        for member, state in replica.items():
            known = merged.get(member)
            if known is None or state > known:
                merged[member] = state
    return merged


def kept(states: Mapping[bytes, State], keep: int, horizon: float = NO_HORIZON) -> States:
    """Return what a key keeps of states that were merged into it."""
    living = [item for item in states.items() if item[1].score >= horizon]
    living.sort(key=lambda item: (item[1].score, item[0]), reverse=True)
    return dict(living[:keep])


def shown(states: Mapping[bytes, State], max_size: int) -> list[tuple[bytes, float]]:
    """Return what reads show of what a key keeps: the newest inserted members, with scores."""
    inserted = [(state.score, member) for member, state in states.items() if not state.deleted]
    return [(member, score) for score, member in sorted(inserted, reverse=True)[:max_size]]


def behind(replica: Mapping[bytes, State], truth: Mapping[bytes, State]) -> States:
    """Return the states that a replica lacks, or has in an older version."""
    return {member: state for member, state in truth.items() if replica.get(member) != state}


# ── Records ───────────────────────────────────────────────────────────────────────────────────────


Key: TypeAlias = "str | bytes"
Member: TypeAlias = "str | bytes"
Tuple: TypeAlias = "tuple[Key, float, Member]"
# The same as it is sent: the score as text, all of it checked.
Spelled: TypeAlias = "tuple[bytes, str, bytes]"
# A member with its score, as a server returns it.
Row: TypeAlias = "tuple[bytes, float]"
# Members, and their scores: rows without an object for each.
Columns: TypeAlias = "tuple[list[bytes], list[float]]"

MAX_KEY_BYTES: Final = 64 * 1024
MAX_MEMBER_BYTES: Final = 1024 * 1024
MAX_SIZE: Final = 1_000_000
DEFAULT_SIZE: Final = 10_000
# Room for all that several clusters of Roshi can hold of a key, each with other elements.
MAX_KEEP: Final = 10 * MAX_SIZE


class Record(NamedTuple):
    """An element of a timeline."""

    key: Key
    score: float
    member: Member


class Selected(dict[Key, list[Record]]):
    """Elements by key, as the key was given; a key without elements has an empty list.

    ``failures`` are the errors of clusters that could not answer when others could: such an answer
    is ``partial``, and ``partial_keys`` may lack elements that only those clusters have.
    """

    def __init__(
        self, found: dict[Key, list[Record]], failures: list[StoreError], partial_keys: set[Key]
    ) -> None:
        super().__init__(found)
        self.failures = failures
        self.partial_keys = partial_keys

    @property
    def partial(self) -> bool:
        """Whether a cluster that was asked did not answer for some key."""
        return bool(self.partial_keys)


class Cursor(NamedTuple):
    """A place in a timeline, from which a page begins or at which it ends; itself excluded.

    As text it is the score's IEEE-754 bits as a decimal number, ``A``, and the member in URL-safe
    base64. It need not be an element that exists.
    """

    score: float
    member: bytes

    def __str__(self) -> str:
        (bits,) = struct.unpack(">Q", struct.pack(">d", self.score))
        return f"{bits}A{base64.urlsafe_b64encode(self.member).decode()}"

    @classmethod
    def of(cls, record: Record) -> Cursor:
        """Return the cursor of a record: a page that starts there continues after it."""
        return cls(record.score, encode(record.member, "member"))

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Return the cursor that a text stands for; raises InvalidInput when it is none."""
        bits, mark, member = text.partition("A") if isinstance(text, str) else ("", "", "")
        try:
            if not (mark and bits.isascii() and bits.isdecimal()):
                raise ValueError
            (score,) = struct.unpack(">d", struct.pack(">Q", int(bits)))
            padded = member + "=" * (-len(member) % 4)
            found = base64.b64decode(padded, altchars=b"-_", validate=True)
        except (ValueError, struct.error, binascii.Error):
            raise InvalidInput(
                f"{text!r} is not a cursor; give one as an answer returned it, or "
                "str(Cursor(score, member))"
            ) from None
        return cls(check_score(score), found)


Place: TypeAlias = "Cursor | Record | tuple[float, Member] | str | None"


def check_place(place: Place, what: str) -> Cursor | None:
    """Accept a cursor as text, as a Cursor or (score, member), or as the record it points to."""
    if place is None:
        return None
    if isinstance(place, str):
        return Cursor.parse(place)
    if isinstance(place, Record):
        return Cursor.of(place)
    if not isinstance(place, tuple) or len(place) != 2:
        raise InvalidInput(f"{what} must be a cursor, a record or (score, member), not {place!r}")
    return Cursor(check_score(place[0]), encode(place[1], "member"))


class Repaired(NamedTuple):
    """What a repair of whole keys found and did.

    Of ``elements``, inserted or deleted, ``differing`` were not the same on all clusters, and
    ``written`` were brought to a cluster that lacked them. ``failures`` counts, for each key, the
    clusters that could not be read or written. ``trimmed`` are elements that were removed from a
    cluster because newer ones fill their key, ``forgotten`` those that are below the horizon.
    """

    keys: int = 0
    elements: int = 0
    differing: int = 0
    written: int = 0
    failures: int = 0
    trimmed: int = 0
    forgotten: int = 0

    def plus(self, other: Iterable[int]) -> Repaired:
        """Add the figures of other keys."""
        return Repaired(*map(sum, zip(self, other, strict=True)))


class Written(NamedTuple):
    """What happened to a batch, as counted by the cluster that applied the most of it.

    ``applied`` changed something, ``unchanged`` did not because a newer or the same operation is
    known, ``rejected`` are older than all that is kept: these three count operations. ``trimmed``
    are elements removed because their key was over its size, ``forgotten`` those removed because
    they are below the horizon.
    """

    applied: int = 0
    unchanged: int = 0
    rejected: int = 0
    trimmed: int = 0
    forgotten: int = 0

    @property
    def removed(self) -> int:
        """Elements that were removed, for whatever reason."""
        return self.trimmed + self.forgotten

    def plus(self, other: Iterable[int]) -> Written:
        """Add the figures of another part of the batch."""
        return Written(*map(sum, zip(self, other, strict=True)))


class Compared(NamedTuple):
    """How clusters differ: for each, in order, how many elements a repair would bring it, by key.

    Keys on which a cluster is right are left out. Of ``elements`` in all, ``differing`` are not the
    same everywhere; ``failures`` counts, for each key, the clusters that could not be read.
    ``excess`` are elements that a repair would remove from a cluster: newer ones fill their key, or
    they are below the horizon.
    """

    behind: list[dict[Key, int]]
    elements: int
    differing: int
    failures: int
    excess: int


class InstanceStatus(NamedTuple):
    """Whether an instance serves, and what it holds; ``keys`` counts its sorted sets.

    ``cluster`` counts from 1. ``fault`` says why an instance does not serve.
    """

    instance: str
    up: bool
    keys: int = 0
    memory_bytes: int = 0
    fault: str = ""
    cluster: int = 0


def encode(text: str | bytes, what: str) -> bytes:
    """Return the bytes of a key or member; raises InvalidInput."""
    most = MAX_KEY_BYTES if what == "key" else MAX_MEMBER_BYTES
    if isinstance(text, str):
        try:
            text = text.encode()
        except UnicodeEncodeError:
            raise InvalidInput(
                f"the {what} {text!r} has half a surrogate pair; give it as bytes"
            ) from None
    if not isinstance(text, bytes):
        raise InvalidInput(f"a {what} must be str or bytes, not {type(text).__name__}")
    if len(text) > most:
        raise InvalidInput(f"a {what} has {len(text)} bytes, {most} are allowed; shorten it")
    return text


def decode(member: bytes) -> Member:
    """Return a member as text, or as it is when it is not UTF-8."""
    try:
        return member.decode()
    except UnicodeDecodeError:
        return member


def spell(key: Key, score: float, member: Member) -> Spelled:
    """Check a tuple and return it as it is sent; raises InvalidInput."""
    # There are many tuples, and most are valid: no further function is called for those.
    if type(key) is not bytes or len(key) > MAX_KEY_BYTES:
        key = encode(key, "key")
    if type(member) is not bytes or len(member) > MAX_MEMBER_BYTES:
        member = encode(member, "member")
    return key, repr(check_score(score)), member


def check_max_size(max_size: int) -> int:
    """Return how many elements a key shows; raises InvalidInput."""
    return check_int(max_size, "max_size", 1, MAX_SIZE)


def check_keep(keep: int | None, max_size: int) -> int:
    """Return how many elements a key keeps, by default twice what it shows; raises InvalidInput."""
    if keep is None:
        return 2 * max_size
    if check_int(keep, "keep", 1, MAX_KEEP) < max_size:
        raise InvalidInput(
            f"keep is {keep}, and max_size is {max_size}: a key cannot show more than it keeps; "
            f"give a keep of {max_size} or more, or leave it out for {2 * max_size}"
        )
    return keep


def check_tuples(tuples: Iterable[Tuple]) -> list[Spelled]:
    """Check (key, score, member) tuples and return each as it is sent; raises InvalidInput."""
    spelled: list[Spelled] = []
    for item in tuples:
        try:
            key, score, member = item
        except (TypeError, ValueError):
            raise InvalidInput(
                f"a tuple is (key, score, member), not {item!r}; give a list of them"
            ) from None
        spelled.append(spell(key, score, member))
    return spelled


def check_keys(keys: Iterable[Key]) -> dict[Key, bytes]:
    """Check keys and return the bytes of each; raises InvalidInput."""
    if isinstance(keys, str | bytes):
        raise InvalidInput(f"keys are given as a list; write [{keys!r}]")
    return {key: encode(key, "key") for key in keys}


def check_pairs(
    pairs: Iterable[tuple[Key, Member]],
) -> dict[tuple[Key, Member], tuple[bytes, bytes]]:
    """Check (key, member) pairs and return the bytes of each; raises InvalidInput."""
    asked: dict[tuple[Key, Member], tuple[bytes, bytes]] = {}
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise InvalidInput(f"a pair is (key, member), not {pair!r}; give a list of them")
        asked[pair] = (encode(pair[0], "key"), encode(pair[1], "member"))
    return asked


def records_of(asked: dict[Key, bytes], columns: dict[bytes, Columns]) -> dict[Key, list[Record]]:
    """Make records, with members as str for a key that was given as str."""
    found: dict[Key, list[Record]] = {}
    for key, raw in asked.items():
        members, scores = columns.get(raw, ([], []))
        shown = members if isinstance(key, bytes) else map(decode, members)
        # As Record(...) does, without a call of Python for each: most of what a large answer costs.
        tuples = zip(repeat(key), scores, shown, strict=False)
        found[key] = list(map(tuple.__new__, repeat(Record), tuples))
    return found
