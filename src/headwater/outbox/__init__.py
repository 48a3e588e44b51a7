"""From a transaction to the log: stage in SQL, stream to the log, consume with a checkpoint.

engine = sqlalchemy.create_engine("sqlite:///app.db")
outbox = Outbox(engine)
outbox.create_all()
with engine.begin() as conn:
    outbox.stage(conn, "rides", "ride-1", {"distance_mm": 1200})
"""

from headwater.outbox.outbox import Outbox
from headwater.outbox.status import Checkpoint, Status
from headwater.outbox.streamer import Progress, Streamer

__all__ = [
    "Checkpoint",
    "Outbox",
    "Progress",
    "Status",
    "Streamer",
]
