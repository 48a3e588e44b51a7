"""Between what callers write and what clusters take: tuples, keys and pairs in, records out."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat

from headwater.errors import InvalidInput
from headwater.timeline.cluster.calls import Change, Changes
from headwater.timeline.farm.disputes import Failures
from headwater.timeline.records import (
    Columns,
    Key,
    Member,
    Record,
    Selected,
    Spelled,
    Tuple,
    decode,
    encode,
    spell,
)


def check_tuples(tuples: Iterable[Tuple]) -> list[Spelled]:
    """Accept (key, score, member) tuples; gives each as it is sent."""
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


def group(operations: Iterable[Spelled], *, deleted: bool) -> Changes:
    """Sort operations by key."""
    changes: Changes = {}
    for key, score, member in operations:
        change = changes.get(key)
        if change is None:
            change = changes[key] = Change([], [])
        change[deleted].extend((score, member))
    return changes


def check_keys(keys: Iterable[Key]) -> dict[Key, bytes]:
    """Accept keys; gives the bytes of each."""
    if isinstance(keys, str | bytes):
        raise InvalidInput(f"keys are given as a list; write [{keys!r}]")
    return {key: encode(key, "key") for key in keys}


def check_pairs(
    pairs: Iterable[tuple[Key, Member]],
) -> dict[tuple[Key, Member], tuple[bytes, bytes]]:
    """Accept (key, member) pairs; gives the bytes of each."""
    asked: dict[tuple[Key, Member], tuple[bytes, bytes]] = {}
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise InvalidInput(f"a pair is (key, member), not {pair!r}; give a list of them")
        asked[pair] = (encode(pair[0], "key"), encode(pair[1], "member"))
    return asked


def shape(asked: dict[Key, bytes], columns: dict[bytes, Columns], failures: Failures) -> Selected:
    """Make records, in the manner in which their keys were asked for."""
    found: dict[Key, list[Record]] = {}
    for key, raw in asked.items():
        members, scores = columns.get(raw, ([], []))
        shown = members if isinstance(key, bytes) else map(decode, members)
        # As Record(...) does, without a call of Python for each: most of what a large answer costs.
        tuples = zip(repeat(key), scores, shown, strict=False)
        found[key] = list(map(tuple.__new__, repeat(Record), tuples))
    partial = {key for key, raw in asked.items() if raw in failures.keys}
    return Selected(found, failures.errors, partial)
