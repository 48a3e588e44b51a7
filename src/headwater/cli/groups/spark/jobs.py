"""Commands that run a job of Spark: each is the options of a function of ``headwater.spark.jobs``.

Such a command opens a session, calls the job, and prints the summary that it returns. Spark itself
starts with the first use that the job makes of the session, so that a job refuses before that what
it cannot use: a name that is unknown, a store or a database that is not there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, cast, runtime_checkable

import typer

from headwater import views
from headwater.cli import output
from headwater.cli.groups.spark.queries import PLACE
from headwater.cli.groups.timeline.records import FarmFlags, Keep, Rate
from headwater.cli.options import (
    AsJson,
    DatabaseUrl,
    DryRun,
    OptionGroup,
    StoreUrl,
    StreamName,
    connected,
    duration_ms,
    grouped,
)
from headwater.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.spark.jobs.progress import Summary
    from headwater.spark.jobs.reconcile import AccountVerdict, Reconciled

# What goes wrong is printed as one line, not as stacks of Java.
_QUIET = {"spark.log.level": "FATAL"}
_SHOWN = 20


# ── Running ───────────────────────────────────────────────────────────────────────────────────────


@runtime_checkable
class _Arguments(Protocol):
    """A group of options that stands for arguments of a job."""

    def arguments(self) -> dict[str, Any]:
        """Return the arguments; within a session, since it may need PySpark."""


@dataclass(frozen=True)
class JobFlags(OptionGroup):
    """The options of every job."""

    master: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where Spark runs: local[4], spark://host:7077, yarn. Default: what spark-submit "
            "or Spark's own settings say, else every core of this machine.",
        ),
    ] = None
    conf: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="A setting of Spark; may be repeated."),
    ] = None
    as_json: AsJson = False

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the job that these options stand for."""
        return {}

    @contextmanager
    def session(self, job: str) -> Iterator[SparkSession]:
        """Open a session for the length of a job; raises SparkMissing when there is no Spark.

        A session that was there before stays.
        """
        given = _QUIET | settings(self.conf)
        from headwater.spark.engine.session import require_spark

        require_spark()
        from headwater.spark.engine.failures import translating_errors

        late = _LateSession(self.master, f"headwater {job}", given)
        try:
            with translating_errors():
                # It is none to isinstance, which no job asks.
                yield cast("SparkSession", late)
        finally:
            late.end()

    def run(self, job: str, given: dict[str, Any]) -> None:
        """Run a job and print what it has done; the exit code is 1 when not all of it is settled.

        A job that takes the argument ``stop`` ends in order on Ctrl-C and SIGTERM.
        """
        with self.session(job) as spark:
            from headwater.kernel.stopping import StopSignal, stop_on_signals
            from headwater.spark.jobs.progress import JobReport

            arguments: dict[str, Any] = {"report": JobReport.of_command(quiet=self.as_json)}
            for name, value in given.items():
                if isinstance(value, _Arguments):
                    arguments |= value.arguments()
                elif value is not None:
                    arguments[name] = value
            self.require()
            work = getattr(import_module(f"headwater.spark.jobs.{job}"), job)
            stopping: AbstractContextManager[None] = nullcontext()
            if "stop" in inspect.signature(work).parameters:
                arguments["stop"] = stop = StopSignal()
                stopping = stop_on_signals(stop.set)
            with stopping:
                done: Summary = work(spark, **arguments)
        if self.as_json:
            output.show_json(views.jobs.job_view(done))
        else:
            _SHOWS.get(job, _show)(done)
        if not done.settled:
            raise typer.Exit(1)

    def require(self) -> None:
        """Raise what is wrong with the options that the job itself would not raise."""


class _LateSession:
    """A session of Spark that starts with its first use, which takes many seconds."""

    def __init__(self, master: str | None, app_name: str, conf: dict[str, str]) -> None:
        self._how = (master, app_name, conf)
        self._made: SparkSession | None = None
        self._used: SparkSession | None = None

    def __getattr__(self, name: str) -> Any:
        if self._used is None:
            from pyspark.sql import SparkSession

            from headwater.spark import session

            master, app_name, conf = self._how
            there = SparkSession.getActiveSession()
            if there is None:
                there = self._made = session(master, app_name=app_name, **conf)
            else:
                _refuse_other_master(there, master)
            self._used = there
        return getattr(self._used, name)

    def end(self) -> None:
        """Stop the session, unless it was there before, or never started."""
        if self._made is not None:
            self._made.stop()


def _refuse_other_master(spark: SparkSession, master: str | None) -> None:
    """Refuse a master that a job would not run at, since a session is there already."""
    from headwater.spark.engine.session import other_master

    if (runs_at := other_master(spark, master)) is not None:
        raise InvalidInput(
            f"a session of Spark runs at {runs_at} already, not at {master}; "
            "stop it first, or leave --master out"
        )


@dataclass(frozen=True)
class StoreJobFlags(JobFlags):
    """The options of a job that uses a store."""

    store: StoreUrl = None

    def arguments(self) -> dict[str, Any]:
        """See JobFlags."""
        return {"url": self.store}

    @contextmanager
    def session(self, job: str) -> Iterator[SparkSession]:
        """Open a session as JobFlags does; raises the error of a store that cannot be used."""
        with connected(self.store), super().session(job) as spark:
            yield spark


@dataclass(frozen=True, kw_only=True)
class LogJobFlags(StoreJobFlags):
    """The options of a job that works on one stream or topic."""

    name: StreamName
    topic: Annotated[bool, typer.Option("--topic", help="The name is that of a topic.")] = False

    def arguments(self) -> dict[str, Any]:
        """See JobFlags."""
        stream, topic = (None, self.name) if self.topic else (self.name, None)
        return {"url": self.store, "stream": stream, "topic": topic}


@dataclass(frozen=True, kw_only=True)
class FollowedLogFlags(LogJobFlags):
    """The options of a job that waits for a log that is not there; its name may be mistyped."""

    def require(self) -> None:
        """Raise UnknownStream or UnknownTopic unless what the job works on is there."""
        from headwater.spark.log.target import named_target

        named_target(**self.arguments(), purpose="to follow").require()


def runs_job(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command that runs the job of its name: the function declares its options alone.

    An option is the argument of the job that has its name, and one that is not given is left to the
    job. A group of options says itself which arguments it stands for.
    """

    @wraps(command)
    def run(**given: Any) -> None:
        flags: JobFlags = given["flags"]
        flags.run(command.__name__, given)

    return grouped(run)


def settings(words: list[str] | None) -> dict[str, str]:
    """Parse settings of Spark, each as spark.some.key=value."""
    found = pairs(words, "--conf", "a setting like spark.executor.memory=2g")
    for key in found:
        if not key.startswith("spark."):
            raise typer.BadParameter(
                f"{key!r} is not a setting like spark.executor.memory=2g", param_hint="--conf"
            )
    return found


def pairs(words: list[str] | None, option: str, like: str) -> dict[str, str]:
    """Parse words like key=value; ``like`` says what they are, for those that are not."""
    found = {}
    for word in words or ():
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"{word!r} is not {like}", param_hint=option)
        found[key] = value
    return found


def _span(option: str, help: str) -> Any:
    """Return an option that is a span of time, as 7d, 12h, 30m, and is parsed to milliseconds."""
    return typer.Option(
        option, metavar="SPAN", help=help, parser=lambda word: duration_ms(word, option)
    )


def _show(done: Summary) -> None:
    output.say(done.headline())
    output.show_facts(done.facts())


# ── Jobs ──────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class ShapeFlags(OptionGroup):
    """What is in a record."""

    value: Annotated[str, typer.Option(metavar="FIELD", help="The field to add up, an integer.")]
    per: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FIELD", help="Add up for each value of a field; may be repeated."
        ),
    ] = None
    window: Annotated[
        str,
        typer.Option(
            metavar="SPAN", help="Also add up for each window of this length; 0: no windows."
        ),
    ] = "1m"

    def arguments(self) -> dict[str, Any]:
        """Return the shape; a name and its field may be the same."""
        from headwater.spark.jobs.folding import Shape

        words = (word.partition("=") for word in self.per or ())
        per = {name: field or name for name, _, field in words}
        return {"shape": Shape(self.value, per, duration_ms(self.window, "--window"))}


@runs_job
def totals(
    db: DatabaseUrl,
    shape: ShapeFlags,
    *,
    job: Annotated[str, typer.Option(help="The name under which the sums are kept.")] = "totals",
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Add up what is there, then end.")
    ] = False,
    every_ms: Annotated[str, _span("--every", "How often to look for new messages.")] = "1s",
    batch: Annotated[
        int, typer.Option(min=1, metavar="N", help="Add up to N messages in one transaction.")
    ] = 200_000,
    on_gap: Annotated[
        Literal["stop", "skip"],
        typer.Option(help="What to do about messages that were evicted unread."),
    ] = "stop",
    anew: Annotated[
        bool, typer.Option("--anew", help="Remove the sums, and begin at the first message.")
    ] = False,
    dry_run: DryRun = False,
    flags: FollowedLogFlags,
) -> None:
    """Add up a stream or topic into the table headwater_totals, each record once.

    It continues where it was, until Ctrl-C or SIGTERM, or with --available-now until the end of the
    log.
    """


@dataclass(frozen=True, kw_only=True)
class ComparedFlags(OptionGroup):
    """The table that is right, and the tables that consumers keep."""

    table: Annotated[str, typer.Option(help="The canonical table, with one row for each event.")]
    per: Annotated[str, typer.Option(help="The column that sums are kept by.")]
    value: Annotated[str, typer.Option(help="The column that is added up.")]
    state: Annotated[
        str, typer.Option(metavar="TABLE", help="The table where consumers keep sums by key.")
    ]
    key: Annotated[str, typer.Option(help="The column that identifies a row.")] = "id"
    record_key: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="The key in a record. Default: as --key."),
    ] = None
    whole: Annotated[
        str | None,
        typer.Option(
            metavar="TABLE", help="The table where consumers keep the sum of all, if they do."
        ),
    ] = None
    records: Annotated[
        str, typer.Option(metavar="COLUMN", help="The number of records in both tables.")
    ] = "records"
    total: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="The sum in both tables. Default: as --value."),
    ] = None

    def arguments(self) -> dict[str, Any]:
        """Return both."""
        from headwater.spark.jobs.ledger import Keeping
        from headwater.spark.jobs.reconcile import Canon

        key, per, value, total = self.key, self.per, self.value, self.total or self.value
        return {
            "canon": Canon(self.table, key=key, per=per, value=value, record_key=self.record_key),
            "keeping": Keeping(self.state, self.whole, per=per, records=self.records, total=total),
        }


@runs_job
def reconcile(
    db: DatabaseUrl,
    compared: ComparedFlags,
    *,
    consumers: Annotated[
        list[str] | None,
        typer.Option("--consumer", help="Compare only this consumer; may be repeated."),
    ] = None,
    consumers_db: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The database of the consumers, if it is another."),
    ] = None,
    archive: Annotated[
        str | None,
        typer.Option(metavar="PLACE", help="An archive of the stream, for evicted messages."),
    ] = None,
    partitions: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Read the table with N tasks, divided by its key."),
    ] = 1,
    fix: Annotated[
        bool, typer.Option("--fix", help="Write reset records for consumers that drifted.")
    ] = False,
    dry_run: DryRun = False,
    flags: LogJobFlags,
) -> None:
    """Compare consumers with the canonical table, each at its own position.

    The exit code is 1 when a consumer has drifted; with --fix only when no reset could be written
    for it.
    """


@runs_job
def compact(
    *,
    marker_ms: Annotated[
        str,
        _span(
            "--markers",
            "The age after which delete markers are removed, once every reader is past them.",
        ),
    ] = "24h",
    dry_run: DryRun = False,
    flags: LogJobFlags,
) -> None:
    """Keep the last message of every tag; offsets do not change. It may be run again after a crash.

    The exit code is 1 when others changed parts of the log at the same moment; these parts are left
    as they are.
    """


@dataclass(frozen=True)
class FilesFlags(OptionGroup):
    """Files to read."""

    files: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="Read this file or folder; may be repeated."),
    ] = None
    format: Annotated[
        str, typer.Option(help="The format of the files: parquet, csv, json, orc.")
    ] = "parquet"
    schema: Annotated[
        str | None,
        typer.Option(metavar="DDL", help="The columns of the files: 'id bigint, name string'."),
    ] = None
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="An option of Spark's reader, such as header=true; may be repeated.",
        ),
    ] = None

    def arguments(self) -> dict[str, Any]:
        """Return the files, and how Spark reads them."""
        options = pairs(self.option, "--option", "an option like header=true")
        files, schema = self.files or (), self.schema
        return {"files": files, "format": self.format, "schema": schema, "options": options}


@runs_job
def backfill(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="The name of this backfill, under which it continues after a crash.",
            show_default=False,
        ),
    ],
    *,
    db: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="HEADWATER_DB",
            help="The database of --table or --query: sqlite:///file or postgresql://….",
        ),
    ] = None,
    table: Annotated[str | None, typer.Option(help="Read this table.")] = None,
    query: Annotated[str | None, typer.Option(metavar="SQL", help="Read this query.")] = None,
    files: FilesFlags,
    stream: Annotated[str | None, typer.Option(help="Write to this stream.")] = None,
    topic: Annotated[str | None, typer.Option(help="Write to this topic, by tag.")] = None,
    queue: Annotated[str | None, typer.Option(help="Push to this queue.")] = None,
    ick: Annotated[str | None, typer.Option(metavar="KEY", help="Add to this Ick.")] = None,
    channel: Annotated[str | None, typer.Option(help="Add to this channel.")] = None,
    timelines: Annotated[
        str | None,
        typer.Option(
            metavar="FARM", help="Insert into timelines: tag is the key, value the member."
        ),
    ] = None,
    max_size: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Timelines: a key shows at most N elements.", show_default="10000"
        ),
    ] = None,
    keep: Keep = None,
    tag: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="The column of the tag, or of a list's member."),
    ] = None,
    value: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="The column of the value. Default: the row as JSON."),
    ] = None,
    score: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="The column of a member's score. Default: it is 0."),
    ] = None,
    order_by: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="The column to sort by. Default: the primary key of a table.",
        ),
    ] = None,
    chunk_rows: Annotated[
        int, typer.Option(min=1, metavar="N", help="Write about N rows at once.")
    ] = 500_000,
    dry_run: DryRun = False,
    flags: StoreJobFlags,
) -> None:
    """Write the rows of a table, a query or files to one place, each once.

    Run it again under the same name after a crash: it continues, and writes no row twice.
    """


@runs_job
def archive(
    to: Annotated[str, typer.Option(metavar="PLACE", help=f"The archive. {PLACE}")],
    *,
    evict: Annotated[
        bool, typer.Option("--evict", help="Then evict what is archived and no longer needed.")
    ] = False,
    dry_run: DryRun = False,
    flags: LogJobFlags,
) -> None:
    """Archive the new messages of a stream as a Delta table; run it regularly.

    Retention waits for the archive from the first run on.
    """


@runs_job
def restore(
    archive: Annotated[str, typer.Option("--from", metavar="PLACE", help="The archive.")],
    into: Annotated[str, typer.Option(metavar="NAME", help="The stream or topic to write to.")],
    *,
    first: Annotated[
        int | None, typer.Option(min=1, metavar="OFFSET", help="The first offset to restore.")
    ] = None,
    last: Annotated[
        int | None, typer.Option(min=1, metavar="OFFSET", help="The last offset to restore.")
    ] = None,
    append: Annotated[
        bool, typer.Option("--append", help="Write after the messages that the target has.")
    ] = False,
    dry_run: DryRun = False,
    flags: LogJobFlags,
) -> None:
    """Write a stream's archive, or a range of it, to a stream; each message once.

    Run it again after a crash: it continues where it was. Tags, values and times are kept; offsets
    are kept when the target is empty, the range begins at 1, and nothing is missing in it.
    """


@dataclass(frozen=True)
class WalkedFarmFlags(FarmFlags):
    """The farm to walk through."""

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the job."""
        return {"instances": self.instances, **super().arguments()}


@runs_job
def walk(
    farm: WalkedFarmFlags, *, rate: Rate = 10_000, dry_run: DryRun = False, flags: JobFlags
) -> None:
    """Compare all timelines on all clusters, repair what differs, and show who was behind.

    The exit code is 1 when something could not be read or written.
    """


# ── Reconcile ─────────────────────────────────────────────────────────────────────────────────────
# What a comparison prints.


def _show_reconciled(found: Reconciled) -> None:
    """Print a comparison for people."""
    output.show_table(
        ["account", "kind", "next", "verdict"],
        [
            (each.name, each.kind, ", ".join(map(str, each.next.values())), _verdict(each))
            for each in found.verdicts
        ],
    )
    drift = [
        (
            *(each.name, one.name or "(all)", one.has.records, one.right.records),
            *(one.has.total, one.right.total, one.has.total - one.right.total),
        )
        for each in found.drifted
        for one in each.drift
    ]
    if drift:
        output.say("")
        output.show_table(
            ["account", "of", "records", "right", "total", "right", "too much"], drift[:_SHOWN]
        )
        if len(drift) > _SHOWN:
            output.say(f"and {len(drift) - _SHOWN} more")
    output.say("")
    for line in _findings(found):
        output.say(line)
    for each in found.drifted:
        if each.state is not None:
            output.say(f"reset of {each.name}: {each.state}")
    output.say(found.headline())


def _verdict(verdict: AccountVerdict) -> str:
    if verdict.unjudged:
        return f"not judged: {verdict.unjudged}"
    if not verdict.drift:
        return "right"
    if verdict.reset is not None:
        return f"drifted; reset by offset {verdict.reset}"
    return "drifted" if verdict.kind == "consumer" else "drifted; run it with --anew"


def _findings(found: Reconciled) -> list[str]:
    """Return what was found beside drift, a sentence each."""
    lines = []
    if found.lost:
        keys = ", ".join(found.lost_keys)
        what = (
            "rows without a record"
            if found.complete
            else "rows whose records were evicted or never written (--archive shows which)"
        )
        lines.append(f"{found.lost} {what}: {keys}")
    if found.phantoms:
        some = ", ".join(f"{key} at {offset}" for key, offset in found.phantom_records)
        lines.append(f"{found.phantoms} records without a row: {some}")
    if found.doubles:
        some = ", ".join(f"{key} at {a} and {b}" for key, a, b in found.double_records)
        lines.append(f"{found.doubles} rows with several records: {some}")
    if found.unreadable:
        lines.append(f"{found.unreadable} messages without a key")
    for stream, first in found.first.items():
        if first > 1:
            lines.append(f"offsets 1 to {first - 1} of {stream} could not be read")
    return lines


# Jobs that print more than a headline and facts.
_SHOWS: dict[str, Callable[[Any], None]] = {"reconcile": _show_reconciled}
