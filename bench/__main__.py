"""Measure every row with its peers in one run; ``python -m bench scale`` is the long one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from bench import (
    api,
    ick,
    jobs,
    log,
    longest_calls,
    outbox,
    queue,
    resp,
    scale,
    scrape,
    timed,
    timeline,
)
from bench.harness import Row, show, show_json
from bench.job_libraries import LIBRARIES


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument(
        "what",
        nargs="?",
        choices=[
            "all",
            "log",
            "outbox",
            "queue",
            "jobs",
            "timed",
            "ick",
            "timeline",
            "api",
            "resp",
            "scrape",
            "calls",
            "spark",
            "scale",
        ],
        default="all",
    )
    parser.add_argument("--rounds", type=int, default=9, help="interleaved rounds per row")
    parser.add_argument("--long", type=int, default=10_000_000, help="messages of the long stream")
    parser.add_argument("--backlog", type=int, default=1_000_000, help="rows of the long backlog")
    parser.add_argument("--dirty", type=int, default=1_000_000, help="members of the large Ick")
    parser.add_argument("--waiting", type=int, default=1_000_000, help="messages of a full queue")
    parser.add_argument("--fragments", type=int, default=1_000_000, help="pending ranges")
    parser.add_argument("--groups", type=int, default=10_000, help="groups of a stream")
    parser.add_argument("--rows", type=int, default=10_000_000, help="messages that Spark reads")
    parser.add_argument("--grown", type=int, default=20_000_000, help="messages of its long read")
    parser.add_argument("--only", default="", help="rows of Spark whose name has this text")
    parser.add_argument("--tails", type=int, default=1000, help="idle tails over HTTP")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a run over HTTP")
    libraries = ",".join(LIBRARIES)
    parser.add_argument("--libraries", default=libraries, help="that workers are compared with")
    parser.add_argument("--readers", type=int, default=2000, help="blocked readers of RESP")
    parser.add_argument("--objects", type=int, default=10_000, help="streams that are scraped")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--messages", type=int, default=100_000_000, help="messages of scale")
    options = parser.parse_args()
    if options.what == "scale":
        return scale.run(options.messages)
    every: list[Row] = []
    for title, rows in measured(options):
        every += rows
        if not options.json:
            show(title, rows)
    if options.json:
        show_json(every)
    return 0 if all(row.verdict != "BELOW" for row in every) else 1


def measured(options: argparse.Namespace) -> Iterator[tuple[str, list[Row]]]:
    """Measure what is asked for, a table at a time."""
    if options.what in ("all", "log"):
        yield "the log against native streams", log.run(options.rounds, options.long)
    if options.what in ("all", "outbox"):
        rows = outbox.run(options.rounds, options.backlog)
        yield "outbox and consumers against bare SQL", rows
    if options.what in ("all", "queue"):
        rows = queue.run(options.rounds, options.waiting)
        yield "queues against lists", rows
    if options.what in ("all", "jobs"):
        rows = jobs.run(options.rounds, options.libraries.split(","))
        yield "jobs in one worker process against other libraries", rows
    if options.what in ("all", "timed"):
        yield "timed jobs against a hundredth of a core", timed.run(10 * options.seconds)
    if options.what in ("all", "ick"):
        yield "dirty lists against sorted sets", ick.run(options.rounds, options.dirty)
    if options.what in ("all", "timeline"):
        yield "timelines against sorted sets", timeline.run(options.rounds, options.seconds)
    if options.what in ("all", "api"):
        rows = api.run(options.rounds, options.seconds, options.tails)
        yield "a store over HTTP against the library and a bare handler", rows
    if options.what in ("all", "resp"):
        rows = resp.run(options.rounds, options.seconds, options.readers)
        yield "the RESP door against FCALL and XREAD", rows
    if options.what in ("all", "scrape"):
        rows = scrape.run(min(options.rounds, 3), options.seconds, options.objects)
        yield "metrics of many objects", rows
    if options.what in ("all", "calls"):
        sizes = longest_calls.Sizes(
            options.fragments, options.groups, options.waiting, options.dirty // 10
        )
        yield "the longest call of each kind against 5 ms", longest_calls.run(sizes)
    if options.what in ("all", "spark"):
        # Last: it brings a JVM, which the others need not share the machine with.
        from bench import spark

        rows = spark.run(options.rounds, options.rows, options.grown, options.only)
        yield "the log in Spark", rows


if __name__ == "__main__":
    sys.exit(main())
