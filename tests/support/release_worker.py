"""A worker of whatever release its process imports; run by tests/support/releases.py.

It takes facts as JSON: what to do, and a Job. ``work`` is one life of a worker of ``headwater
verify``; ``finish`` drains the groups and prints the log; ``wake`` connects, says so, and writes
when it is told to.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import headwater
from headwater.cli.verify.drive import STREAM, Job, Notes, drain, now_ms, roles


def work(job: Job) -> None:
    """Do what a worker of that name does, until its time is up."""
    roles(3, 3)[job.name](job)


def finish(job: Job) -> None:
    """Read and acknowledge all that is left, and print the log."""
    with headwater.connect(job.url) as hw:
        drained = drain(hw, job, Notes(job.notes))
        log = [
            (offset, value.decode())
            for batch in hw.stream(STREAM).scan()
            for offset, value in zip(
                batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True
            )
        ]
    print(json.dumps({"drained": drained, "log": log}))


def wake(job: Job) -> None:
    """Connect, then write when a line comes."""
    with headwater.connect(job.url) as hw:
        hw.stream(STREAM).info()
        print("connected", flush=True)
        sys.stdin.readline()
        try:
            hw.stream(STREAM).write("late", b"late")
        except headwater.HeadwaterError as error:
            print(f"{type(error).__name__}: {error}")


def main() -> None:
    """Run what the argument says."""
    facts: dict[str, Any] = json.loads(sys.argv[1])
    doing, lasts_ms = facts.pop("doing"), facts.pop("lasts_ms", 0)
    facts["notes"] = Path(facts["notes"])
    # Its time begins when all is imported and the server answers, however busy the machine is.
    headwater.connect(facts["url"]).close()
    job = Job(**facts, seed=1, until_ms=now_ms() + lasts_ms, ack_ms=2000)
    {"work": work, "finish": finish, "wake": wake}[doing](job)


if __name__ == "__main__":
    main()
