"""python -m tests.support.spark.dying_totals STREAM URL DB STEP: a totals job that kills itself.

With signal 9, when it comes to that step for the second time.
"""

from __future__ import annotations

import os
import signal
import sys

from examples.rocket_rides.sums import SHAPE
from headwater.spark import session
from headwater.spark.jobs.totals import totals
from tests.spark.conftest import SMALL


def main(stream: str, url: str, db: str, step: str) -> None:
    passed: list[str] = []

    def die(at: str) -> None:
        passed.append(at)
        if passed.count(step) == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    spark = session("local[2]", **SMALL)
    totals(spark, stream, url=url, db=db, shape=SHAPE, batch=100, available_now=True, steps=die)


if __name__ == "__main__":
    main(*sys.argv[1:])
