"""``headwater timeline``: the options of a farm; write, read and serve its timelines."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from headwater import views
from headwater.cli import output
from headwater.cli.options import AsJson, OptionGroup, grouped, refused
from headwater.errors import InvalidInput
from headwater.serve.limits import HttpLimits

if TYPE_CHECKING:
    from headwater.timeline import Farm
    from headwater.timeline.farm.aio_farm import AsyncFarm
    from headwater.timeline.records import InstanceStatus, Tuple, Written
    from headwater.timeline.walker import Sample

T = TypeVar("T")

# ── Options ───────────────────────────────────────────────────────────────────────────────────────


# The defaults of the farm. Importing it for them would slow down every command; a test compares.
QUORUM = "51%"
MAX_SIZE = 10_000
TIMEOUT_MS = 3000

Instances = Annotated[
    str,
    typer.Option(
        "--instances",
        envvar="HEADWATER_INSTANCES",
        metavar="FARM",
        help='The farm: instances separated by ",", clusters by ";", as "a:1,b:1;c:1,d:1".',
        show_default=False,
    ),
]
Quorum = Annotated[
    str, typer.Option(help="How many clusters must take a write, or a percentage of them.")
]
MaxSize = Annotated[int, typer.Option(metavar="N", help="A key shows at most N elements.")]
Keep = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="A key keeps N elements, deleted ones included. Default: twice --max-size.",
        show_default=False,
    ),
]
Hash = Annotated[str, typer.Option(help="How keys are spread: murmur3, fnv or fnva.")]
Horizon = Annotated[
    str | None,
    typer.Option(metavar="SCORE", help="Elements below this score are removed and refused."),
]
Timeout = Annotated[
    int, typer.Option("--timeout-ms", help="Milliseconds after which an instance has failed.")
]
Rate = Annotated[int, typer.Option(metavar="N", help="Compare at most N timelines a second.")]
StateFile = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="FILE",
        help="The file that keeps the progress, so that the next run continues there.",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class FarmFlags(OptionGroup):
    """The farm, and what all that use it must agree on."""

    instances: Instances
    max_size: MaxSize = MAX_SIZE
    keep: Keep = None
    horizon: Horizon = None
    hash: Hash = "murmur3"
    timeout_ms: Timeout = TIMEOUT_MS

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of ``Farm.open`` beside the instances."""
        from headwater.timeline.records import read_score

        try:
            horizon = None if self.horizon is None else read_score(self.horizon)
        except InvalidInput as error:
            raise InvalidInput(f"--horizon: {error}") from None
        facts = {name: getattr(self, name) for name in ("max_size", "keep", "hash", "timeout_ms")}
        return {**facts, "horizon": horizon}

    def open(self) -> Farm:
        """Open the farm."""
        from headwater.timeline import Farm

        return Farm.open(self.instances, **self.arguments())

    def run(self, work: Callable[[AsyncFarm], Awaitable[T]]) -> T:
        """Return what is found out on the farm by tasks."""
        import asyncio

        from headwater.timeline.farm.aio_farm import AsyncFarm

        async def run() -> T:
            async with AsyncFarm.open(self.instances, **self.arguments()) as farm:
                return await work(farm)

        return asyncio.run(run())


@dataclass(frozen=True)
class WritingFarmFlags(FarmFlags):
    """The farm, for commands that write."""

    quorum: Quorum = QUORUM

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of ``Farm.open`` beside the instances."""
        return {**super().arguments(), "write_quorum": self.quorum}


# ── Records ───────────────────────────────────────────────────────────────────────────────────────


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
    from headwater.timeline import Cursor

    if offset and (start or stop):
        raise InvalidInput("--offset goes with neither --start nor --stop; leave one out")
    for word, option in ((start, "--start"), (stop, "--stop")):
        try:
            if word:
                Cursor.parse(word)
        except InvalidInput:
            raise refused(f"{word!r} is not a cursor; copy one as it is printed", option) from None
    with farm.open() as opened:
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


@grouped
def score(
    farm: FarmFlags,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The timeline.", show_default=False)],
    member: Annotated[str, typer.Argument(metavar="MEMBER", help="Member.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Show the newest operation on a member of a timeline, even when it was a delete."""
    with farm.open() as opened:
        state = opened.score([(key, member)])[key, member]
    if state is None:
        text = "no operation is known"
    else:
        text = f"{'deleted' if state.deleted else 'inserted'} at {state.score}"
    output.answer(views.timelines.TimelineScoreView.of(key, member, state), text, as_json)


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
    from headwater.timeline import Written

    done = Written()
    tuples = iter(given.tuples())
    with given.open() as farm:
        write = farm.insert if verb == "insert" else farm.delete
        while batch := list(islice(tuples, _BATCH)):
            done = done.plus(write(batch))
    counts = counts_text(done) or "nothing to do"
    output.answer(views.timelines.TimelineWrittenView.of(done), counts, given.as_json)


def counts_text(done: Written) -> str:
    """Return what happened to a batch, as a list of counts; nothing when nothing did."""
    return ", ".join(f"{count} {name}" for name, count in done._asdict().items() if count)


# ── Servers ───────────────────────────────────────────────────────────────────────────────────────


@grouped
def serve(
    farm: WritingFarmFlags,
    limits: HttpLimits,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 6302,
    workers: Annotated[int, typer.Option(metavar="N", help="Serve with N processes.")] = 1,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="HEADWATER_TIMELINE_TOKEN",
            help="The token that every request must carry. Set it with the environment variable, "
            "because other users of the machine can see arguments.",
            show_default=False,
        ),
    ] = None,
    read_token: Annotated[
        str | None,
        typer.Option(
            envvar="HEADWATER_TIMELINE_READ_TOKEN",
            help="A token that allows reading only.",
            show_default=False,
        ),
    ] = None,
    lenient: Annotated[
        bool,
        typer.Option(
            "--lenient", help="Accept everything that Roshi accepts, with the same results."
        ),
    ] = False,
    read_strategy: Annotated[
        str,
        typer.Option(
            help="SendAllReadAll, SendOneReadOne, SendAllReadFirstLinger, SendVarReadFirstLinger."
        ),
    ] = "SendAllReadAll",
    read_rate: Annotated[
        int, typer.Option(metavar="N", help="SendVar asks all clusters for N keys a second.")
    ] = 2000,
    promote_after_ms: Annotated[
        int,
        typer.Option(
            "--promote-after-ms",
            help="Milliseconds after which SendVar asks the other clusters too.",
        ),
    ] = 50,
    repair_strategy: Annotated[
        str, typer.Option(help="AllRepairs, NoRepairs or RateLimitedRepairs.")
    ] = "RateLimitedRepairs",
    repair_rate: Annotated[
        int, typer.Option(metavar="N", help="RateLimitedRepairs repairs N elements a second.")
    ] = 1000,
) -> None:
    """Serve timelines over HTTP as Roshi does, until Ctrl-C or SIGTERM.

    Without a token it listens on the loopback only. Rates and limits are those of each process.
    After either signal, running requests are completed, and the exit code is 0.
    """
    from headwater.kernel.packaging import extra_needed

    with extra_needed("serve"):
        from headwater.app.serving import ServedTimelines, run_server
        from headwater.serve.listening import ListenAddress
    from headwater.app.log_lines import configure

    served = ServedTimelines(
        http=ListenAddress(host, port),
        limits=limits,
        instances=farm.instances,
        farm={
            **farm.arguments(),
            "read_strategy": read_strategy,
            "read_rate": read_rate,
            "promote_after_ms": promote_after_ms,
            "repair_strategy": repair_strategy,
            "repair_rate": repair_rate,
        },
        token=token,
        read_token=read_token,
        lenient=lenient,
    )
    configure("text", None, {})
    run_server(served, workers, lambda url: output.say(f"serving timelines on {url}"))


# ── Instances ─────────────────────────────────────────────────────────────────────────────────────


@grouped
def status(
    farm: FarmFlags,
    sample: Annotated[
        int,
        typer.Option(
            min=0, max=10_000, metavar="N", help="Compare about N timelines of each instance."
        ),
    ] = 100,
    as_json: AsJson = False,
) -> None:
    """Show for each instance whether it is available, what it holds, and how far it is behind.

    How far is estimated from a sample of timelines. The exit code is 1 when an instance is not
    available.
    """
    from headwater.timeline import walker

    async def look(farm: AsyncFarm) -> tuple[list[InstanceStatus], dict[tuple[int, str], Sample]]:
        instances = await farm.status()
        return instances, await walker.sample(farm, sample, random.Random()) if sample else {}

    found, samples = farm.run(look)
    nothing = walker.Sample()
    output.show_list(
        [(one, samples.get((one.cluster, one.instance), nothing)) for one in found],
        lambda row: views.timelines.InstanceView.of(
            row[0], sampled=row[1].keys, behind=row[1].behind
        ),
        {
            "cluster": lambda row: row[0].cluster,
            "instance": lambda row: row[0].instance,
            "state": lambda row: "up" if row[0].up else "down",
            "keys": lambda row: row[0].keys,
            "memory": lambda row: output.size_text(row[0].memory_bytes),
            "sampled": lambda row: row[1].keys,
            "behind": lambda row: row[1].behind,
        },
        as_json,
        nothing="no instances",
        fold=0,
        styles={"up": "green", "down": "red"},
    )
    for one in found:
        if not one.up:
            output.warn(f"error: {one.fault}")
    raise typer.Exit(0 if all(one.up for one in found) else 1)
