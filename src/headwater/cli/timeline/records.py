"""Commands on timelines themselves: insert, delete, select."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from headwater import views
from headwater.cli import output
from headwater.cli.option_groups import grouped
from headwater.cli.options import AsJson, refused
from headwater.cli.timeline.cli_types import FarmFlags, WritingFarmFlags
from headwater.errors import InvalidInput

if TYPE_CHECKING:
    from headwater.timeline.records import Tuple

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
    str | None,
    typer.Option(help="The score of all of them. Default: this machine's time in milliseconds."),
]
_BATCH = 1000


@dataclass(frozen=True, kw_only=True)
class _WriteFlags(WritingFarmFlags):
    """What is written, and where."""

    key: _Key = None
    members: _Members = None
    score: _Score = None
    as_json: AsJson = False

    def tuples(self) -> Iterable[Tuple]:
        """Return what is to be written, from the arguments or from standard input."""
        if self.key is None:
            return map(_read, sys.stdin.buffer)
        if not self.members:
            raise InvalidInput(
                f"name members of {self.key!r}, or no key and give JSON by standard input"
            )
        from headwater.timeline.records import read_score

        when = round(time.time() * 1000) if self.score is None else read_score(self.score)
        return [(self.key, when, member) for member in self.members]


@grouped
def insert(given: _WriteFlags) -> None:
    """Insert members into a timeline, or the records on the lines of standard input.

    Each line is a JSON document with key, score and member, as `select --json` prints them.
    """
    _write("insert", given)


@grouped
def delete(given: _WriteFlags) -> None:
    """Delete members from a timeline: inserts up to that score lose. See insert for its input."""
    _write("delete", given)


@grouped
def select(
    farm: FarmFlags,
    keys: Annotated[
        list[str], typer.Argument(metavar="KEY...", help="Timelines.", show_default=False)
    ],
    offset: Annotated[int, typer.Option(help="Rank of the first record.")] = 0,
    limit: Annotated[
        int, typer.Option(metavar="N", help="Print at most N records of each timeline.")
    ] = 10,
    start: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Print only records after this cursor.")
    ] = None,
    stop: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Print only records before this cursor.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show records, newest first, each with its cursor."""
    from headwater.timeline import Cursor, Farm

    if offset and (start or stop):
        raise InvalidInput("--offset goes with neither --start nor --stop; leave one out")
    for word, option in ((start, "--start"), (stop, "--stop")):
        try:
            if word:
                Cursor.parse(word)
        except InvalidInput:
            raise refused(f"{word!r} is not a cursor; copy one as it is printed", option) from None
    with Farm.open(farm.instances, **farm.arguments()) as opened:
        if start or stop:
            found = opened.select_range(keys, start, stop, limit)
        else:
            found = opened.select(keys, offset, limit)
        opened.settle()
    output.show_list(
        [record for of_key in found.values() for record in of_key],
        views.timelines.RecordView.of,
        {
            "key": lambda record: record.key,
            "score": lambda record: record.score,
            "member": lambda record: record.member,
            "cursor": Cursor.of,
        },
        as_json,
        nothing="no records",
        fold=2,
    )
    for failure in found.failures:
        output.warn(f"a cluster did not answer, records may be missing: {failure}")


def _read(line: bytes) -> Tuple:
    """Return the record on a line, as `select --json` prints it."""
    from headwater.timeline.feeding import read_tuple

    try:
        return read_tuple(line)
    except ValueError as error:
        raise InvalidInput(
            f"{line[:200]!r} is not a JSON document with key, score and member: {error}"
        ) from None


def _write(verb: str, given: _WriteFlags) -> None:
    from headwater.timeline import Farm, Written

    done = Written()
    tuples = iter(given.tuples())
    with Farm.open(given.instances, **given.arguments()) as farm:
        write = farm.insert if verb == "insert" else farm.delete
        while batch := list(islice(tuples, _BATCH)):
            done = done.plus(write(batch))
    counts = [f"{count} {name}" for name, count in done._asdict().items() if count]
    output.answer(
        views.timelines.TimelineWrittenView.of(done),
        ", ".join(counts) or "nothing to do",
        given.as_json,
    )
