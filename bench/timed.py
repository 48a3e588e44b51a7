"""What a runner of timed jobs costs: the share of a core that a thousand jobs take.

Each job is due about every five minutes, at moments of its own, as jobs of an application are; the
handlers do nothing. The rest of a run is measured, not its beginning, in which jobs are declared.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import headwater
from bench.harness import Row, server, socket_url

JOBS = 1000
# What the runner may take of a core.
MOST = 0.01


def run(seconds: float) -> list[Row]:
    """Measure one runner for a while."""
    with server("off") as client, headwater.connect(socket_url(client)) as hw:
        ran: list[int] = []
        runner = headwater.TimedRunner(hw)
        for place in range(JOBS):
            runner.every(250_000 + 100 * place, name=f"job-{place}")(_handler(ran))
        thread = threading.Thread(target=runner.run)
        thread.start()
        try:
            while len(headwater.TimedJobs(hw).list()) < JOBS:
                time.sleep(0.1)
            began, used = time.perf_counter(), time.process_time()
            before = len(ran)
            time.sleep(seconds)
            share = (time.process_time() - used) / (time.perf_counter() - began)
            done = (len(ran) - before) / (time.perf_counter() - began)
        finally:
            runner.stop()
            thread.join()
    name = f"timed jobs: share of a core, {JOBS:,} jobs, {done:.1f} runs a second"
    return [
        Row(name, "off", f"{share:.2%}", f"{MOST:.0%}", share / MOST, 1.0, 0.5, False),
    ]


def _handler(ran: list[int]) -> Callable[[], None]:
    return lambda: ran.append(1)
