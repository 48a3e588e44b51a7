"""From a transaction to the log: stage in SQL, stream to the log, consume with a checkpoint.

engine = sqlalchemy.create_engine("sqlite:///app.db")
outbox = Outbox(engine)
outbox.create_all()
with engine.begin() as conn:
    outbox.stage(conn, "rides", "ride-1", {"distance_mm": 1200})
"""

from headwater.outbox.aio_consumer import AsyncConsumer
from headwater.outbox.consumer import Consumer
from headwater.outbox.decorator import consumer
from headwater.outbox.outbox import Outbox
from headwater.outbox.plan import ConsumerStats
from headwater.outbox.reset import write_reset
from headwater.outbox.status import Checkpoint, Status
from headwater.outbox.streamer import Progress, Streamer
from headwater.workers.aio_worker import AsyncWorker
from headwater.workers.worker import Worker

__all__ = [
    "AsyncConsumer",
    "AsyncWorker",
    "Checkpoint",
    "Consumer",
    "ConsumerStats",
    "Outbox",
    "Progress",
    "Status",
    "Streamer",
    "Worker",
    "consumer",
    "write_reset",
]
