"""Views of timed jobs: how they stand, and what happened to them."""

from __future__ import annotations

from headwater.timed.operating import TimedJobInfo
from headwater.timed.states import JobEvent
from headwater.views.record import view_of

JobEventView = view_of(JobEvent)
TimedJobInfoView = view_of(TimedJobInfo)
