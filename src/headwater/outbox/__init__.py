"""From a transaction to the log: stage in SQL, stream to the log, consume with a checkpoint.

engine = sqlalchemy.create_engine("sqlite:///app.db")
outbox = Outbox(engine)
outbox.create_all()
with engine.begin() as conn:
    outbox.stage(conn, "rides", "ride-1", {"distance_mm": 1200})

Needs ``pip install 'headwater[sql]'``; SQLAlchemy is imported with the first use of a name.
"""

from typing import TYPE_CHECKING

from headwater.kernel.packaging import names_of as _names_of

if TYPE_CHECKING:
    from headwater.outbox.aio_consumer_loop import AsyncConsumer
    from headwater.outbox.consumer_letters import ConsumerLetter, ConsumerRedriven
    from headwater.outbox.consumer_loop import Consumer
    from headwater.outbox.consumers import consumer
    from headwater.outbox.outbox import Outbox
    from headwater.outbox.plan import ConsumerStats
    from headwater.outbox.schema import statements
    from headwater.outbox.status import Checkpoint, Status, write_reset
    from headwater.outbox.streamer import Progress, Streamer
    from headwater.workers.aio_worker import AsyncWorker
    from headwater.workers.worker import Worker

__all__ = [
    "AsyncConsumer",
    "AsyncWorker",
    "Checkpoint",
    "Consumer",
    "ConsumerLetter",
    "ConsumerRedriven",
    "ConsumerStats",
    "Outbox",
    "Progress",
    "Status",
    "Streamer",
    "Worker",
    "consumer",
    "statements",
    "write_reset",
]

# SQLAlchemy takes half a second to import, and the extra `sql` brings it.
_HOMES = {
    "headwater.outbox.aio_consumer_loop": ("AsyncConsumer",),
    "headwater.outbox.consumer_letters": ("ConsumerLetter", "ConsumerRedriven"),
    "headwater.outbox.consumer_loop": ("Consumer",),
    "headwater.outbox.consumers": ("consumer",),
    "headwater.outbox.outbox": ("Outbox",),
    "headwater.outbox.plan": ("ConsumerStats",),
    "headwater.outbox.status": (
        "Checkpoint",
        "Status",
        "write_reset",
    ),
    "headwater.outbox.schema": ("statements",),
    "headwater.outbox.streamer": (
        "Progress",
        "Streamer",
    ),
    "headwater.workers.aio_worker": ("AsyncWorker",),
    "headwater.workers.worker": ("Worker",),
}

if not TYPE_CHECKING:  # a checker would take it for a promise of any name
    __getattr__ = _names_of("headwater.outbox", _HOMES, extra="sql")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
