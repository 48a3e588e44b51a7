"""Headwater: a durable log with consumer groups and replay, on the Redis or Valkey you run.

import headwater

with headwater.connect() as hw:
    rides = hw.stream("rides")
    rides.write("ride-1", b"{}")
    print(rides.read(1, 10))

To pytest, which finds a plugin in this distribution: PYTEST_DONT_REWRITE, it has no asserts.
"""

from typing import TYPE_CHECKING

from headwater.errors import *  # noqa: F403  which they are, stands in __all__
from headwater.kernel.packaging import __version__
from headwater.kernel.packaging import names_of as _names_of

if TYPE_CHECKING:
    from headwater import aio
    from headwater.app.application import App
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
    from headwater.kernel import instrument, tracing
    from headwater.kernel.failures import Cause, Failure, LetterFilter
    from headwater.kernel.headers import Headers
    from headwater.kernel.inputs import Limits
    from headwater.log.group import Group
    from headwater.log.replaying import Replayed
    from headwater.log.retention import Kept
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
        Searched,
        StreamInfo,
        TopicDeadLetter,
        TopicMessage,
        TopicWithInfo,
        WithInfo,
    )
    from headwater.queue.queue import Queue
    from headwater.queue.types import Delivery, KeptQueue, QueueItem, QueueSettings, QueueStats
    from headwater.store.presence import ServerJob
    from headwater.store.scrubbing import Defect, ScrubProgress, ScrubReport
    from headwater.timed.jobs import DueRun
    from headwater.timed.operating import TimedJobInfo
    from headwater.timed.runner import TimedRunner
    from headwater.timed.timed_jobs import TimedJobs
    from headwater.whole_store.letters import LettersMoved
    from headwater.whole_store.scrubbing import RepairReport
    from headwater.workers.attempts import Attempt
    from headwater.workers.queue_worker import QueueWorker
    from headwater.workers.worker import Worker

__all__ = [  # noqa: F405
    "AccessDenied",
    "Added",
    "AllReplicasFailed",
    "App",
    "AppRefused",
    "ArchiveDamaged",
    "ArchiveMismatch",
    "ArchiveTaken",
    "Attempt",
    "Batch",
    "BrokenObject",
    "Cause",
    "ChannelStats",
    "CheckpointRemoved",
    "CheckpointWentBack",
    "DataLost",
    "DatabaseRefused",
    "DatabaseUnreachable",
    "DeadLetter",
    "Defect",
    "Delivery",
    "DueRun",
    "EmbeddedServerFailed",
    "ExtraMissing",
    "Failure",
    "FarmMoved",
    "FarmUnreachable",
    "FormatTooNew",
    "GapError",
    "Group",
    "GroupInfo",
    "HandlerTimeout",
    "Headers",
    "Headwater",
    "HeadwaterError",
    "Ick",
    "IckChannel",
    "IckError",
    "InputChanged",
    "InvalidInput",
    "JavaMissing",
    "JobForgotten",
    "JobNameTaken",
    "JobOvertaken",
    "Kept",
    "KeptChannel",
    "KeptQueue",
    "Layout",
    "LayoutLost",
    "Lease",
    "LeaseLost",
    "LetterFilter",
    "LettersMoved",
    "Limits",
    "Listed",
    "LogError",
    "LostFuture",
    "Message",
    "MissingMessages",
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
    "RepairReport",
    "Replayed",
    "Reserved",
    "ReshardRefused",
    "Retained",
    "Retention",
    "ReusedSequence",
    "RowRefused",
    "ScrubProgress",
    "ScrubReport",
    "Searched",
    "ServerJob",
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
    "TimedJobInfo",
    "TimedJobs",
    "TimedRunner",
    "TimelineError",
    "TooManyClients",
    "Topic",
    "TopicDeadLetter",
    "TopicGroup",
    "TopicMessage",
    "TopicWithInfo",
    "TransactionEnded",
    "Undecodable",
    "UnknownArchive",
    "UnknownConsumer",
    "UnknownGroup",
    "UnknownIck",
    "UnknownQueue",
    "UnknownReader",
    "UnknownStream",
    "UnknownTimedJob",
    "UnknownTopic",
    "UnreadableNode",
    "ValueMisfit",
    "WithInfo",
    "Worker",
    "WriteRefused",
    "__version__",
    "aio",
    "connect",
    "instrument",
    "tracing",
]

# The clients bring in pyarrow and redis, a third of a second. The command line says what it can do
# without them, so they come with the first use of a name.
_HOMES = {
    "headwater.aio": ("aio",),
    "headwater.kernel.instrument": ("instrument",),
    "headwater.kernel.tracing": ("tracing",),
    "headwater.app.application": ("App",),
    "headwater.client": ("Headwater", "connect"),
    "headwater.kernel.failures": ("Cause", "Failure", "LetterFilter"),
    "headwater.kernel.headers": ("Headers",),
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
    "headwater.log.retention": ("Kept",),
    "headwater.whole_store.letters": ("LettersMoved",),
    "headwater.kernel.inputs": ("Limits",),
    "headwater.log.group": ("Group",),
    "headwater.log.replaying": ("Replayed",),
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
        "Searched",
        "StreamInfo",
        "TopicDeadLetter",
        "TopicMessage",
        "TopicWithInfo",
        "WithInfo",
    ),
    "headwater.queue.queue": ("Queue",),
    "headwater.queue.types": ("Delivery", "KeptQueue", "QueueItem", "QueueSettings", "QueueStats"),
    "headwater.whole_store.scrubbing": ("RepairReport",),
    "headwater.store.presence": ("ServerJob",),
    "headwater.store.scrubbing": (
        "Defect",
        "ScrubProgress",
        "ScrubReport",
    ),
    "headwater.timed.jobs": ("DueRun",),
    "headwater.timed.operating": ("TimedJobInfo",),
    "headwater.timed.runner": ("TimedRunner",),
    "headwater.timed.timed_jobs": ("TimedJobs",),
    "headwater.workers.attempts": ("Attempt",),
    "headwater.workers.queue_worker": ("QueueWorker",),
    "headwater.workers.worker": ("Worker",),
}

if not TYPE_CHECKING:  # a checker would take it for a promise of any name
    __getattr__ = _names_of("headwater", _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
