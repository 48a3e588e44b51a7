"""Commands on timelines themselves: insert, delete, select."""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli import output
from headwater.cli.options import AsJson
from headwater.cli.timeline.cli_types import (
    MAX_SIZE,
    QUORUM,
    TIMEOUT_MS,
    Hash,
    Horizon,
    Instances,
    MaxSize,
    Quorum,
    Timeout,
    text_json,
)
from headwater.errors import InvalidInput

if TYPE_CHECKING:
    from headwater.timeline.records import Key, Tuple, Written

_Key = Annotated[
    str | None,
    typer.Argument(
        metavar="[KEY]",
        help="The timeline; without it JSON from standard input.",
        show_default=False,
    ),
]
_Members = Annotated[
    list[str] | None,
    typer.Argument(metavar="[MEMBER]...", help="Members.", show_default=False),
]
_Score = Annotated[
    float | None,
    typer.Option(help="Their score; the time of this machine in milliseconds if not said."),
]
_BATCH = 1000


def insert(
    instances: Instances,
    key: _Key = None,
    members: _Members = None,
    score: _Score = None,
    quorum: Quorum = QUORUM,
    max_size: MaxSize = MAX_SIZE,
    horizon: Horizon = None,
    hash: Hash = "murmur3",
    timeout_ms: Timeout = TIMEOUT_MS,
    as_json: AsJson = False,
) -> None:
    """Insert members into a timeline, or what stands on the lines of standard input.

    Each line is a JSON document with key, score and member, as `select --json` prints them.
    """
    tuples = _given(key, members, score)
    words = _words(quorum, max_size, horizon, hash, timeout_ms)
    _show(_write("insert", instances, tuples, words), as_json)


def delete(
    instances: Instances,
    key: _Key = None,
    members: _Members = None,
    score: _Score = None,
    quorum: Quorum = QUORUM,
    max_size: MaxSize = MAX_SIZE,
    horizon: Horizon = None,
    hash: Hash = "murmur3",
    timeout_ms: Timeout = TIMEOUT_MS,
    as_json: AsJson = False,
) -> None:
    """Delete members from a timeline: inserts up to that score lose; see insert."""
    tuples = _given(key, members, score)
    words = _words(quorum, max_size, horizon, hash, timeout_ms)
    _show(_write("delete", instances, tuples, words), as_json)


def select(
    instances: Instances,
    keys: Annotated[
        list[str], typer.Argument(metavar="KEY...", help="Timelines.", show_default=False)
    ],
    offset: Annotated[int, typer.Option(help="Rank of the first record.")] = 0,
    limit: Annotated[int, typer.Option(help="Records of each timeline at most.")] = 10,
    start: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Only records behind this cursor.")
    ] = None,
    stop: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Only records before this cursor.")
    ] = None,
    max_size: MaxSize = MAX_SIZE,
    horizon: Horizon = None,
    hash: Hash = "murmur3",
    timeout_ms: Timeout = TIMEOUT_MS,
    as_json: AsJson = False,
) -> None:
    """Show records, newest first, each with its cursor."""
    from headwater.timeline import Cursor, Farm

    if offset and (start or stop):
        raise InvalidInput("--offset goes with neither --start nor --stop")
    with Farm.open(instances, **_words(QUORUM, max_size, horizon, hash, timeout_ms)) as farm:
        if start or stop:
            found = farm.select_range(keys, start, stop, limit)
        else:
            found = farm.select(keys, offset, limit)
        farm.settle()
    records = [record for of_key in found.values() for record in of_key]
    if as_json:
        output.show_json(
            *(
                {
                    **text_json("key", record.key),
                    "score": record.score,
                    **text_json("member", record.member),
                    "cursor": str(Cursor.of(record)),
                }
                for record in records
            )
        )
    elif records:
        rows = [(r.key, r.score, r.member, Cursor.of(r)) for r in records]
        output.show_table(["key", "score", "member", "cursor"], rows, fold=2)
    else:
        output.say("no records")
    for failure in found.failures:
        output.warn(f"a cluster did not answer, records may be missing: {failure}")


def _words(
    quorum: str, max_size: int, horizon: float | None, hash: str, timeout_ms: int
) -> dict[str, Any]:
    return {
        "write_quorum": quorum,
        "max_size": max_size,
        "horizon": horizon,
        "hash": hash,
        "timeout_ms": timeout_ms,
    }


def _given(key: str | None, members: list[str] | None, score: float | None) -> Iterable[Tuple]:
    if key is None:
        return map(_read, sys.stdin.buffer)
    if not members:
        raise InvalidInput(f"name members of {key!r}, or no key and give JSON by standard input")
    when = round(time.time() * 1000) if score is None else score
    return [(key, when, member) for member in members]


def _read(line: bytes) -> Tuple:
    """Understand a line as `select --json` prints it."""
    try:
        document = json.loads(line)
        return _text(document, "key"), document["score"], _text(document, "member")
    except (KeyError, TypeError, ValueError):
        raise InvalidInput(
            f"{line[:200]!r} is not a JSON document with key, score and member"
        ) from None


def _text(document: dict[str, Any], name: str) -> Key:
    text: str = document[name]
    return base64.b64decode(text) if document.get(f"{name}_encoding") == "base64" else text


def _write(verb: str, instances: str, tuples: Iterable[Tuple], words: dict[str, Any]) -> Written:
    from headwater.timeline import Farm, Written

    done = Written()
    batch: list[Tuple] = []
    with Farm.open(instances, **words) as farm:
        write = farm.insert if verb == "insert" else farm.delete
        for item in tuples:
            batch.append(item)
            if len(batch) == _BATCH:
                done = done.plus(write(batch))
                batch = []
        return done.plus(write(batch))


def _show(done: Written, as_json: bool) -> None:
    if as_json:
        output.show_json(done._asdict())
    else:
        told = [f"{n} {name}" for name, n in done._asdict().items() if n]
        output.say(", ".join(told) or "nothing to do")
