"""A client that hangs up while the store is down retries by itself: its tries do not add up."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable
from contextlib import closing

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

import headwater
from tests.support.api import messages_of, serving
from tests.support.servers import Server, free_ports, until

pytestmark = pytest.mark.fault

# Longer than what a server takes for a short fault.
TIMEOUT_S = 1.2


def post(port: int, path: str, body: object, timeout_s: float) -> int:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)) as sent:
        sent.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        return sent.getresponse().status


def test_what_was_not_sent_to_the_store_is_dropped_when_its_client_hangs_up() -> None:
    """The writes of all doors to one stream wait in one batch, and only the dead leave it."""
    (resp_port,) = free_ports(1)
    with (
        Server(fsync="always") as store,
        headwater.connect(store.url) as hw,
        serving(store.url, "--resp", f"127.0.0.1:{resp_port}") as (port, _),
    ):
        hw.topic("t", partitions=1).write("tag", b"0")

        def impatient(*words: str) -> None:
            retry = Retry(NoBackoff(), 1)
            client = redis.Redis(port=resp_port, socket_timeout=TIMEOUT_S, retry=retry)
            with client, pytest.raises(redis.TimeoutError):
                client.execute_command(*words)

        def hasty(path: str, body: object) -> None:
            for _ in range(2):
                with pytest.raises(TimeoutError):
                    post(port, path, body, TIMEOUT_S)

        clients: list[Callable[[], None]] = [
            lambda: impatient("TWRITE", "s", "tag", "dead"),
            lambda: impatient("TWRITE", "s", "PRODUCER", "p", "1", "ENTRIES", "tag", "dead"),
            lambda: impatient("QPUSH", "q", "dead"),
            lambda: hasty(messages_of("s"), {"value": "dead"}),
            lambda: hasty("/v1/queues/q/messages", {"value": "dead"}),
            lambda: hasty("/v1/topics/t/messages", {"tag": "tag", "value": "dead"}),
        ]
        store.kill()
        written: list[int] = []
        patient = threading.Thread(
            target=lambda: written.append(post(port, messages_of("s"), {"value": "alive"}, 60))
        )
        threads = [patient, *(threading.Thread(target=client) for client in clients)]
        for thread in threads:
            thread.start()
        for thread in threads[1:]:
            thread.join()
        with redis.Redis(port=resp_port) as admin:
            until(lambda: len(admin.client_list()) == 1)
        store.restart()
        patient.join()
        assert written == [201]
        assert [message and message.value for message in hw.stream("s").read(1, 99)] == [b"alive"]
        assert hw.queue("q").stats().ready == 0
        assert hw.stream("t/0").info().last == 1
