"""No-op jobs in one worker process, by each of several libraries: ``python -m bench.jobs``.

Fills a queue, works it off with the library's own worker in this process, and prints how many jobs
a second it did between the first and the last, each taken, run and acknowledged.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import redis

PAYLOAD = "x" * 100


class Tally:
    """Counts jobs; the last one ends the process, whatever its worker would do next."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.done = 0
        self.began = 0.0

    def __call__(self) -> None:
        if self.done == 0:
            self.began = time.perf_counter()
        self.done += 1
        if self.done == self.count:
            took = time.perf_counter() - self.began
            os.write(1, b"%.1f\n" % ((self.count - 1) / took))
            os._exit(0)


tally = Tally(0)


def job(payload: str) -> None:  # noqa: ARG001
    """Do nothing, and be counted."""
    tally()


def headwater_jobs(path: str, count: int) -> None:
    import headwater

    queue = headwater.connect(f"unix://{path}").queue("jobs")
    for at in range(0, count, 1000):
        queue.push_many([PAYLOAD] * min(1000, count - at))

    @queue.worker(concurrency=1)
    def work(delivery: headwater.Delivery) -> None:
        job(delivery.value.decode())

    work.run()


def rq_jobs(path: str, count: int) -> None:
    from rq import Queue, SimpleWorker

    connection = redis.Redis(unix_socket_path=path)
    queue = Queue("jobs", connection=connection)
    queue.enqueue_many([Queue.prepare_data(job, (PAYLOAD,)) for _ in range(count)])
    # Without a process for each job, which would be fairer to nobody.
    SimpleWorker([queue], connection=connection).work(burst=True, logging_level="ERROR")


def dramatiq_jobs(path: str, count: int) -> None:
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker

    broker: Any = RedisBroker(url=f"unix://{path}")  # type: ignore[no-untyped-call]
    dramatiq.set_broker(broker)
    actor = dramatiq.actor(broker=broker)(job)
    for _ in range(count):
        actor.send(PAYLOAD)
    worker = dramatiq.Worker(broker)
    worker.start()
    worker.join()
    time.sleep(60)


def huey_jobs(path: str, count: int) -> None:
    from huey import RedisHuey

    pool = redis.ConnectionPool(connection_class=redis.UnixDomainSocketConnection, path=path)
    huey = RedisHuey("jobs", connection_pool=pool, results=False)
    task = huey.task()(job)
    for _ in range(count):
        task(PAYLOAD)
    huey.create_consumer(workers=1, periodic=False).run()


def celery_jobs(path: str, count: int) -> None:
    from celery import Celery

    app = Celery("jobs", broker=f"redis+socket://{path}")
    app.conf.task_ignore_result = True
    app.conf.worker_hijack_root_logger = False
    task = app.task(name="job")(job)
    for _ in range(count):
        task.delay(PAYLOAD)
    words = ["worker", "--pool=solo", "--loglevel=ERROR", "--without-gossip", "--without-mingle"]
    app.worker_main(["--quiet", *words, "--without-heartbeat"])


LIBRARIES: dict[str, Callable[[str, int], Any]] = {
    "headwater": headwater_jobs,
    "rq": rq_jobs,
    "dramatiq": dramatiq_jobs,
    "huey": huey_jobs,
    "celery": celery_jobs,
}


if __name__ == "__main__":
    name, place, jobs = sys.argv[1:]
    # The libraries find the job by the name of its module, which is not the one that was started.
    home = import_module("bench.jobs")
    home.tally.count = int(jobs)
    home.LIBRARIES[name](place, int(jobs))
