"""Jobs as an App has them: ``headwater run bench.job_app:app``, as bench/jobs.py runs it."""

from __future__ import annotations

import asyncio
import os
import time

import headwater
from bench.job_tally import Tally

QUEUE = "jobs"
app = headwater.App()
handler, concurrency = os.environ["BENCH_HANDLER"], int(os.environ["BENCH_CONCURRENCY"])
tally = Tally(int(os.environ["BENCH_JOBS"]))

if handler == "async":

    @app.worker(queue=QUEUE, concurrency=concurrency)
    async def work_in_task(_: headwater.Delivery) -> None:
        await asyncio.sleep(0.001)
        tally()

else:
    pause_s = 0.001 if handler == "sync" else None

    @app.worker(queue=QUEUE, concurrency=concurrency)
    def work_in_thread(_: headwater.Delivery) -> None:
        if pause_s is not None:
            time.sleep(pause_s)
        tally()
