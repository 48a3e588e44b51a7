"""What holds the URL of a store or a database does not show it."""

from __future__ import annotations

import pytest

from headwater.spark.archives.manifest import Archive
from headwater.spark.icks import DirtyList
from headwater.spark.jobs.backfill import DirtyTarget, LogTarget, QueueTarget, TimelineTarget
from headwater.spark.jobs.backfill_inputs import TableInput
from headwater.spark.jobs.reconcile import Canon, Sources
from headwater.spark.log.staging import LogSink
from headwater.spark.log.target import StreamOrTopic
from headwater.spark.queues import QueueAddress, QueueStreamWriter, QueueWriter
from headwater.spark.timelines import FarmPlan

URL = "redis://:secret@host"


class _Intake(TableInput):
    """One whose database is not looked at."""

    def __post_init__(self) -> None:
        self._schema = self._key = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    "holder",
    [
        StreamOrTopic(URL, "name", False, "s3://key:secret@bucket"),
        Archive("s3://key:secret@bucket", "name"),
        LogSink(StreamOrTopic(URL, "name", True), 3),
        QueueAddress(URL, "name"),
        QueueWriter(QueueAddress(URL, "name"), None),
        QueueStreamWriter(QueueAddress(URL, "name")),
        DirtyList(URL, "name", False),
        LogTarget(URL, "stream", "name"),
        QueueTarget(URL, "name"),
        DirtyTarget(URL, "ick", "name", None),
        TimelineTarget(URL, FarmPlan(URL), "score"),
        FarmPlan(URL),
        _Intake(None, "name", URL),  # type: ignore[arg-type]
        Sources(None, {"url": URL}, URL, ("name",), Canon("t", per="p", value="v")),  # type: ignore[arg-type]
    ],
    ids=lambda holder: type(holder).__name__,
)
def test_no_url_is_shown(holder: object) -> None:
    assert "secret" not in repr(holder)
