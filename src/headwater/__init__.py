"""Headwater: a durable log with consumer groups and replay, on the Redis or Valkey you run.

import headwater

with headwater.connect() as hw:
    rides = hw.stream("rides")
    rides.write("ride-1", b"{}")
    print(rides.read(1, 10))
"""

from headwater import aio
from headwater.client import Headwater, connect
from headwater.errors import (
    AccessDenied,
    EmbeddedServerFailed,
    HeadwaterError,
    InvalidInput,
    LibraryTooNew,
    LogError,
    OutcomeUnknown,
    PartitionMismatch,
    StaleSequence,
    StoreError,
    StoreTooOld,
    StoreUnreachable,
    UnknownGroup,
    UnknownStream,
    UnreadableNode,
)
from headwater.log.housekeeping import Kept
from headwater.log.stream import Group, Stream
from headwater.log.topic import Topic, TopicGroup
from headwater.log.types import (
    DeadLetter,
    GroupInfo,
    Message,
    Placed,
    Redriven,
    Retained,
    Retention,
    StreamInfo,
    TopicMessage,
)

__version__ = "0.1.0"

__all__ = [
    "AccessDenied",
    "DeadLetter",
    "EmbeddedServerFailed",
    "Group",
    "GroupInfo",
    "Headwater",
    "HeadwaterError",
    "InvalidInput",
    "Kept",
    "LibraryTooNew",
    "LogError",
    "Message",
    "OutcomeUnknown",
    "PartitionMismatch",
    "Placed",
    "Redriven",
    "Retained",
    "Retention",
    "StaleSequence",
    "StoreError",
    "StoreTooOld",
    "StoreUnreachable",
    "Stream",
    "StreamInfo",
    "Topic",
    "TopicGroup",
    "TopicMessage",
    "UnknownGroup",
    "UnknownStream",
    "UnreadableNode",
    "__version__",
    "aio",
    "connect",
]
