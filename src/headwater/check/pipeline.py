"""Histories of the pipeline: what transactions staged, against what reached the log and consumers.

Every staged value is unique, so that it can be followed. Without I/O: it takes what was seen and
returns anomalies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from headwater.check.history import Anomaly


class Transaction(NamedTuple):
    """What one transaction staged, as (stream, value) in order, and how it ended."""

    staged: list[tuple[str, str]]
    outcome: Literal["committed", "aborted"]


def check_streamed(
    transactions: Iterable[Transaction], logs: Mapping[str, Sequence[str]]
) -> list[Anomaly]:
    """Compare the streams, each as its values in order, with the transactions.

    lost            a committed value is not in its stream
    duplicate       it is there more than once
    aborted-read    a value of a transaction that was rolled back is in a stream
    invented        a stream has a value that no transaction staged for it
    reordered       values of one transaction are in a stream in another order
    """
    return list(_check_streamed(list(transactions), logs))


def _check_streamed(
    transactions: list[Transaction], logs: Mapping[str, Sequence[str]]
) -> Iterator[Anomaly]:
    places: dict[tuple[str, str], list[int]] = {}
    for stream, values in logs.items():
        for place, value in enumerate(values):
            places.setdefault((stream, value), []).append(place)
    staged = {row for transaction in transactions for row in transaction.staged}
    for row in places.keys() - staged:
        yield Anomaly("invented", f"{row[1]} in {row[0]}")
    for transaction in transactions:
        last: dict[str, int] = {}
        for row in transaction.staged:
            found = places.get(row, [])
            if transaction.outcome == "aborted":
                if found:
                    yield Anomaly("aborted-read", f"{row[1]} in {row[0]}")
                continue
            if not found:
                yield Anomaly("lost", f"{row[1]} of {row[0]}")
                continue
            if len(found) > 1:
                yield Anomaly("duplicate", f"{row[1]} at {found} of {row[0]}")
            if found[0] < last.get(row[0], -1):
                yield Anomaly("reordered", f"{row[1]} at {found[0]} of {row[0]}")
            last[row[0]] = found[0]


def check_effects(log: Sequence[str], applied: Sequence[str]) -> list[Anomaly]:
    """Compare what a consumer has applied, in order, with the log that it has read to its end.

    double-effect   a message was applied more than once
    no-effect       it was not applied
    invented        something was applied that is not in the log
    reordered       the order of application is not that of the log
    """
    return list(_check_effects(log, applied))


def _check_effects(log: Sequence[str], applied: Sequence[str]) -> Iterator[Anomaly]:
    times = Counter(applied)
    known = set(log)
    for value in log:
        if times[value] > 1:
            yield Anomaly("double-effect", f"{value}, {times[value]} times")
        elif not times[value]:
            yield Anomaly("no-effect", value)
    for value in times.keys() - known:
        yield Anomaly("invented", value)
    once = [value for value in dict.fromkeys(applied) if value in known]
    if once != [value for value in log if times[value]]:
        yield Anomaly("reordered", f"{len(once)} values")
