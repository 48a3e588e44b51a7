"""The async twin: ``headwater.aio.connect`` returns a client with the same methods, to await.

async with headwater.aio.connect() as hw:
    rides = hw.stream("rides")
    await rides.write("ride-1", b"{}")
"""

from headwater.aio_client import AsyncHeadwater, connect
from headwater.ick.aio_ick import AsyncIck, AsyncIckChannel
from headwater.log.aio_group import AsyncGroup
from headwater.log.aio_stream import AsyncStream
from headwater.log.aio_topic import AsyncTopic, AsyncTopicGroup
from headwater.queue.aio_queue import AsyncQueue
from headwater.timed.aio_runner import AsyncTimedRunner
from headwater.timed.aio_timed_jobs import AsyncTimedJobs
from headwater.workers.aio_queue_worker import AsyncQueueWorker
from headwater.workers.aio_worker import AsyncWorker

__all__ = [
    "AsyncGroup",
    "AsyncHeadwater",
    "AsyncIck",
    "AsyncIckChannel",
    "AsyncQueue",
    "AsyncQueueWorker",
    "AsyncStream",
    "AsyncTimedJobs",
    "AsyncTimedRunner",
    "AsyncTopic",
    "AsyncTopicGroup",
    "AsyncWorker",
    "connect",
]
