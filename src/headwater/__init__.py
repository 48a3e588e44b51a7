"""Headwater: a durable log with consumer groups and replay, on the Redis or Valkey you run.

import headwater

with headwater.connect() as hw:
    rides = hw.stream("rides")
    rides.write("ride-1", b"{}")
    print(rides.read(1, 10))
"""

from typing import TYPE_CHECKING

from headwater.errors import (
    AccessDenied,
    AllReplicasFailed,
    ArchiveDamaged,
    ArchiveMismatch,
    ArchiveTaken,
    CheckpointRemoved,
    DatabaseRefused,
    DatabaseUnreachable,
    DataLost,
    EmbeddedServerFailed,
    ExtraMissing,
    FarmMoved,
    GapError,
    HeadwaterError,
    IckError,
    InputChanged,
    InvalidInput,
    JavaMissing,
    JobForgotten,
    JobOvertaken,
    LayoutLost,
    LeaseLost,
    LibraryTooNew,
    LogError,
    NotAnIck,
    NotCreated,
    OffsetOutOfRange,
    OutboxError,
    OutcomeUnknown,
    PartitionMismatch,
    PoisonedBatch,
    PositionLost,
    QueryRefused,
    QueueError,
    QuorumFailed,
    ReshardRefused,
    RowRefused,
    SparkError,
    SparkFailed,
    SparkMissing,
    StagingGone,
    StaleSequence,
    StoreError,
    StoreTooOld,
    StoreUnreachable,
    StreamReplaced,
    TargetNotEmpty,
    TimelineError,
    TransactionEnded,
    UnknownArchive,
    UnknownGroup,
    UnknownIck,
    UnknownQueue,
    UnknownStream,
    UnknownTopic,
    UnreadableNode,
    ValueMisfit,
    WriteRefused,
)
from headwater.lazy_names import names_of as _names_of

if TYPE_CHECKING:
    from headwater import aio
    from headwater.client import Headwater, connect
    from headwater.ick.ick import Ick, IckChannel
    from headwater.ick.types import (
        Added,
        Batch,
        ChannelStats,
        KeptChannel,
        Layout,
        Lease,
        Listed,
        Reserved,
        ShardStats,
    )
    from headwater.log.group import Group
    from headwater.log.housekeeping import Kept
    from headwater.log.stream import Stream
    from headwater.log.topic import Topic, TopicGroup
    from headwater.log.types import (
        DeadLetter,
        GroupInfo,
        Message,
        Passage,
        Placed,
        Published,
        Redriven,
        Retained,
        Retention,
        StreamInfo,
        TopicMessage,
    )
    from headwater.queue.queue import Queue
    from headwater.queue.types import Delivery, KeptQueue, QueueItem, QueueSettings, QueueStats
    from headwater.workers.queue_worker import QueueWorker
    from headwater.workers.worker import Worker

__version__ = "0.1.0"

__all__ = [
    "AccessDenied",
    "Added",
    "AllReplicasFailed",
    "ArchiveDamaged",
    "ArchiveMismatch",
    "ArchiveTaken",
    "Batch",
    "ChannelStats",
    "CheckpointRemoved",
    "DataLost",
    "DatabaseRefused",
    "DatabaseUnreachable",
    "DeadLetter",
    "Delivery",
    "EmbeddedServerFailed",
    "ExtraMissing",
    "FarmMoved",
    "GapError",
    "Group",
    "GroupInfo",
    "Headwater",
    "HeadwaterError",
    "Ick",
    "IckChannel",
    "IckError",
    "InputChanged",
    "InvalidInput",
    "JavaMissing",
    "JobForgotten",
    "JobOvertaken",
    "Kept",
    "KeptChannel",
    "KeptQueue",
    "Layout",
    "LayoutLost",
    "Lease",
    "LeaseLost",
    "LibraryTooNew",
    "Listed",
    "LogError",
    "Message",
    "NotAnIck",
    "NotCreated",
    "OffsetOutOfRange",
    "OutboxError",
    "OutcomeUnknown",
    "PartitionMismatch",
    "Passage",
    "Placed",
    "PoisonedBatch",
    "PositionLost",
    "Published",
    "QueryRefused",
    "Queue",
    "QueueError",
    "QueueItem",
    "QueueSettings",
    "QueueStats",
    "QueueWorker",
    "QuorumFailed",
    "Redriven",
    "Reserved",
    "ReshardRefused",
    "Retained",
    "Retention",
    "RowRefused",
    "ShardStats",
    "SparkError",
    "SparkFailed",
    "SparkMissing",
    "StagingGone",
    "StaleSequence",
    "StoreError",
    "StoreTooOld",
    "StoreUnreachable",
    "Stream",
    "StreamInfo",
    "StreamReplaced",
    "TargetNotEmpty",
    "TimelineError",
    "Topic",
    "TopicGroup",
    "TopicMessage",
    "TransactionEnded",
    "UnknownArchive",
    "UnknownGroup",
    "UnknownIck",
    "UnknownQueue",
    "UnknownStream",
    "UnknownTopic",
    "UnreadableNode",
    "ValueMisfit",
    "Worker",
    "WriteRefused",
    "__version__",
    "aio",
    "connect",
]

# The clients bring in pyarrow and redis, a third of a second. The command line says what it can do
# without them, so they come with the first use of a name.
_HOMES = {
    "headwater.aio": ("aio",),
    "headwater.client": ("Headwater", "connect"),
    "headwater.ick.ick": ("Ick", "IckChannel"),
    "headwater.ick.types": (
        "Added",
        "Batch",
        "ChannelStats",
        "KeptChannel",
        "Layout",
        "Lease",
        "Listed",
        "Reserved",
        "ShardStats",
    ),
    "headwater.log.housekeeping": ("Kept",),
    "headwater.log.group": ("Group",),
    "headwater.log.stream": ("Stream",),
    "headwater.log.topic": ("Topic", "TopicGroup"),
    "headwater.log.types": (
        "DeadLetter",
        "GroupInfo",
        "Message",
        "Passage",
        "Placed",
        "Published",
        "Redriven",
        "Retained",
        "Retention",
        "StreamInfo",
        "TopicMessage",
    ),
    "headwater.queue.queue": ("Queue",),
    "headwater.queue.types": ("Delivery", "KeptQueue", "QueueItem", "QueueSettings", "QueueStats"),
    "headwater.workers.queue_worker": ("QueueWorker",),
    "headwater.workers.worker": ("Worker",),
}

if not TYPE_CHECKING:  # a checker would take it for a promise of any name
    __getattr__ = _names_of("headwater", _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
