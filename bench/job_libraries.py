"""Jobs in one worker process of other libraries: ``python -m bench.job_libraries NAME …``.

Fills a queue and works it off with the library's own worker in this process, as quickly as its
documentation shows: by threads or tasks where there are handlers that wait. It needs nothing but
the library, so that it runs in an environment of its own.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import redis

from bench.job_tally import Tally

PAYLOAD = "x" * 100
tally = Tally(0)


def empty(payload: str) -> None:  # noqa: ARG001
    """Do nothing, and be counted."""
    tally()


def sync(payload: str) -> None:  # noqa: ARG001
    """Wait for a millisecond, and be counted."""
    time.sleep(0.001)
    tally()


async def async_(payload: str) -> None:  # noqa: ARG001
    """Wait for a millisecond in a task, and be counted."""
    await asyncio.sleep(0.001)
    tally()


def rq_jobs(path: str, count: int, job: Callable[[str], Any], threads: int) -> None:  # noqa: ARG001
    from rq import Queue, SimpleWorker

    connection = redis.Redis(unix_socket_path=path)
    queue = Queue("jobs", connection=connection)
    queue.enqueue_many([Queue.prepare_data(job, (PAYLOAD,)) for _ in range(count)])
    # One at a time: it has no threads. Without a process for each job, which is slower still.
    SimpleWorker([queue], connection=connection).work(burst=True, logging_level="ERROR")


def dramatiq_jobs(path: str, count: int, job: Callable[[str], Any], threads: int) -> None:
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker
    from dramatiq.middleware.asyncio import AsyncIO

    broker: Any = RedisBroker(url=f"unix://{path}")  # type: ignore[no-untyped-call]
    if job is async_:
        broker.add_middleware(AsyncIO())
    dramatiq.set_broker(broker)
    actor = dramatiq.actor(broker=broker)(job)
    for _ in range(count):
        actor.send(PAYLOAD)
    # Its default, with which it does most that wait for nothing.
    worker = dramatiq.Worker(broker, worker_threads=8 if threads == 1 else threads)
    worker.start()
    worker.join()
    time.sleep(60)


def huey_jobs(path: str, count: int, job: Callable[[str], Any], threads: int) -> None:
    from huey import RedisHuey

    pool = redis.ConnectionPool(connection_class=redis.UnixDomainSocketConnection, path=path)
    huey = RedisHuey("jobs", connection_pool=pool, results=False)
    task = huey.task()(job)
    for _ in range(count):
        task(PAYLOAD)
    huey.create_consumer(workers=threads, periodic=False).run()


def celery_jobs(path: str, count: int, job: Callable[[str], Any], threads: int) -> None:
    from celery import Celery

    app = Celery("jobs", broker=f"redis+socket://{path}")
    app.conf.task_ignore_result = True
    app.conf.worker_hijack_root_logger = False
    task = app.task(name="job")(job)
    for _ in range(count):
        task.delay(PAYLOAD)
    pool = ["--pool=solo"] if threads == 1 else ["--pool=threads", f"--concurrency={threads}"]
    words = ["worker", *pool, "--loglevel=ERROR", "--without-gossip", "--without-mingle"]
    app.worker_main(["--quiet", *words, "--without-heartbeat"])


def arq_jobs(path: str, count: int, job: Callable[[str], Any], threads: int) -> None:
    from arq.connections import RedisSettings, create_pool
    from arq.worker import Worker, func

    async def work(_: Any, payload: str) -> None:
        if job is async_:
            await job(payload)
        else:
            job(payload)

    settings = RedisSettings(unix_socket_path=path)

    async def main() -> None:
        pool = await create_pool(settings)
        for _ in range(count):
            await pool.enqueue_job("work", PAYLOAD)
        worker = Worker(
            [func(work, name="work", keep_result=0)],
            redis_settings=settings,
            max_jobs=max(threads, 32),
            poll_delay=0.001,
            handle_signals=False,
        )
        await worker.async_run()

    asyncio.run(main())


def taskiq_jobs(path: str, count: int, job: Callable[[str], Any], threads: int) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from taskiq.receiver import Receiver
    from taskiq_redis import ListQueueBroker

    async def main() -> None:
        broker = ListQueueBroker(f"unix://{path}")
        task = broker.register_task(job, task_name="job")
        await broker.startup()
        for _ in range(count):
            await task.kiq(PAYLOAD)
        broker.is_worker_process = True
        most = max(threads, 32)
        receiver = Receiver(broker, ThreadPoolExecutor(most), max_async_tasks=most)
        await receiver.listen(asyncio.Event())

    asyncio.run(main())


def faststream_jobs(path: str, count: int, job: Callable[[str], Any], threads: int) -> None:
    from faststream import FastStream
    from faststream.redis import RedisBroker

    broker = RedisBroker(f"unix://{path}", logger=None)
    broker.subscriber(list="jobs", max_workers=max(threads, 1))(job)

    async def main() -> None:
        await broker.connect()
        for _ in range(count):
            await broker.publish(PAYLOAD, list="jobs")
        await FastStream(broker, logger=None).run()

    asyncio.run(main())


LIBRARIES: dict[str, Callable[[str, int, Callable[[str], Any], int], None]] = {
    "rq": rq_jobs,
    "dramatiq": dramatiq_jobs,
    "huey": huey_jobs,
    "celery": celery_jobs,
    "arq": arq_jobs,
    "taskiq": taskiq_jobs,
    "faststream": faststream_jobs,
}


if __name__ == "__main__":
    name, place, jobs, kind, concurrency = sys.argv[1:]
    # The libraries find the job by the name of its module, which is not the one that was started.
    home: Any = import_module("bench.job_libraries")
    home.tally = Tally(int(jobs))
    handlers = {"empty": home.empty, "sync": home.sync, "async": home.async_}
    home.LIBRARIES[name](place, int(jobs), handlers[kind], int(concurrency))
