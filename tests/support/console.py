"""A store with something on every page of the console, all of it written by a hostile producer."""

from __future__ import annotations

import json
import secrets
import time
from typing import Any, Protocol
from urllib.parse import urlencode

import msgspec
import sqlalchemy as sa

from headwater import Headwater
from headwater.outbox import Consumer
from headwater.serve.api.jobs import ReplayNote, ReplayView
from headwater.serve.http.messages import path_part
from headwater.serve.jobs.engine import JobNote
from headwater.serve.jobs.letters import LetterJobView, LetterNote, LetterPlace, MatchingBody
from headwater.spark.queries.notes import NotedQuery, note
from headwater.store.presence import NewJob, begin_job
from headwater.timed.runner import TimedRunner
from headwater.views.record import View
from tests.support.api import Answer, ApiClient

# Wherever this is not escaped, in a text or in an attribute, a page has an image that no template
# makes, and runs its code. A name has no white space.
EVIL = """"'><script>alert(1)</script><img/src="x"/onerror=alert(1)>&amp;"""

# The key of an Ick, of which a store keeps no list.
ICK = "console-ick"

# What somebody types into the form of an action, by its name and the field's.
TYPED: dict[str, dict[str, str]] = {
    "evict": {"up_to": "150"},
    "seek": {"to": "1,000"},
    "consumer-seek": {"to": "1,000"},
    "reshard": {"shards": "3"},
    "replay": {"into": "console-replayed"},
}


class Filled:
    """A stream with a group that has everything a ruler shows, a queue with dead letters, a job.

    With a database, a SQL consumer that gave a message up. ``names`` has what a page's path is made
    of, by the word between its braces. With ``name``, all of them have that name.
    """

    def __init__(
        self, hw: Headwater, engine: sa.Engine | None = None, name: str | None = None
    ) -> None:
        mark = secrets.token_hex(4)
        self.stream = hw.stream(name or f"console-{mark}{EVIL}")
        self.stream.write_many([(f"tag{EVIL}", json.dumps({"n": EVIL}).encode())] * 3000)
        self.stream.write_many([("tail", b"3")] * 2)
        self.stream.write("tail", EVIL.encode(), headers={f"key{EVIL}": EVIL.encode()})
        self.stream.evict(100)
        self.group = self.stream.group(name or "mail", member=f"amy{EVIL}", dead_letters=True)
        held = self.group.read(1000, ack_ms=60_000)
        self.group.ack(held[:400], held[600:])
        self.group.bury(held[500], error=ValueError(EVIL))
        self.stream.register_reader(f"spark{EVIL}", 2000)
        self.queue = hw.queue(name or f"console-{mark}")
        self.queue.push_many([EVIL.encode(), b"\x00\xff", b"plain"])
        taken = self.queue.pop(1, ack_ms=60_000)
        self.queue.bury(*taken, error=RuntimeError(EVIL))
        self.queue.push(f"later{EVIL}".encode(), delay_ms=3_600_000)
        self.queue.push(b"held", priority=9)
        self.queue.pop(1, ack_ms=600_000)
        place = LetterPlace(queue=self.queue.name)
        waiting = LetterJobView(
            job=mark,
            state="waiting",
            action="discard",
            who=f"ops{EVIL}",
            places=[place],
            matching=MatchingBody(tag=EVIL, error=EVIL),
            rate_per_s=5,
            begins_ms=int(time.time() * 1000) + 600_000,
            total=1,
        )
        _has_job(hw, mark, "letters", waiting, LetterNote(state="waiting"))
        self.channel = hw.ick_channel(
            name or f"search-{mark}{EVIL}", shards=2, consumer=f"bob{EVIL}"
        )
        self.channel.add({EVIL: 1, "plain": 2})
        self.channel.reserve(1)
        hw.ick(ICK).add({EVIL: 1})
        self.consumer = name or f"view-{mark}{EVIL}"
        if engine is not None:
            _consume(self, hw, engine)
        query = NotedQuery(name=EVIL, epoch=1, next={self.stream.name: 2500}, checkpoint=EVIL)
        hw.store.run(note(f"query-{mark}", "write", self.stream.name, query))
        hw.store.run(note(f"query-{mark}", "read", self.stream.name, query))
        running = ReplayView(
            replay=f"replay-{mark}",
            state="running",
            who=f"ops{EVIL}",
            source=self.stream.name,
            into=f"copy{EVIL}",
            group=f"group{EVIL}",
            first=1,
            last=10,
            next=5,
            written=4,
            missed=0,
            speed=1.0,
            producer=f"replay{EVIL}",
        )
        going = ReplayNote(first=1, last=10, next=5, written=4)
        _has_job(hw, f"replay-{mark}", "replay", running, going)
        topic = hw.topic(name or f"topic-{mark}{EVIL}", 2)
        topic.write_many([(EVIL, EVIL.encode())] * 10)
        topic.group(f"group{EVIL}").read(1)
        self.job = name or f"tidy-{mark}"
        runner = TimedRunner(hw)
        runner.every("5m", name=self.job)(_fail)
        runner.run_due()
        self.names = {
            "stream": self.stream.name,
            "group": self.group.name,
            "queue": self.queue.name,
            "consumer": self.consumer,
            "channel": self.channel.name,
            "job": self.job,
            "topic": topic.name,
            "offset": "551",
            "row": "1",
        }


def _has_job(hw: Headwater, job: str, kind: str, shown: View, note: JobNote) -> None:
    """Note a job that a process has for longer than any test takes."""
    new = NewJob(job, kind, shown.to_json(), b"", msgspec.json.encode(note))
    hw.store.run(begin_job(new, "somebody", 3_600_000))


def _consume(filled: Filled, hw: Headwater, engine: sa.Engine) -> None:
    """Let a SQL consumer of the stream give a message up."""
    stream = filled.stream.name
    consumer = Consumer(
        filled.consumer,
        [stream],
        engine,
        hw,
        _refuse,
        start=3000,
        batch=1,
        on_error="skip",
        attempts=1,
    )
    while (consumer.positions()[stream] or 0) <= 3000:
        consumer.run_once()


def _refuse(_conn: Any, _messages: list[Any]) -> None:
    raise ValueError(EVIL)


def _fail() -> None:
    raise RuntimeError(EVIL)


class Named(Protocol):
    """Something with the names that paths are made of."""

    names: dict[str, str]


def path_of(page: str, filled: Named) -> str:
    """Return the address of a page of the table, about the objects of a filled store."""
    words = [
        path_part(filled.names[word.strip("{}")]) if word.startswith("{") else word
        for word in page.split("/")
    ]
    return "/console" + "/".join(words)


def send(client: ApiClient, path: str, origin: str = "", **form: Any) -> Answer:
    """Send a form as a browser does."""
    media = "application/x-www-form-urlencoded"
    headers = {"Origin": origin} if origin else {}
    return client.ask("POST", path, urlencode(form).encode(), media=media, headers=headers)
