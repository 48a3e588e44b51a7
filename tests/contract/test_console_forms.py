"""Each action of the console does the same by its button, its command, its curl and its Python."""

from __future__ import annotations

import html
import re
import secrets
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pyarrow as pa
import pytest
import sqlalchemy as sa

from headwater import Headwater, connect
from headwater.kernel.declaring import Scope
from headwater.outbox import Consumer
from headwater.serve.console import letters
from headwater.serve.console.actions.table import ACTIONS
from headwater.serve.console.links import Place
from headwater.serve.console.service import Console
from headwater.serve.tokens import Tokens
from tests.support.api import ApiClient, ApiServer
from tests.support.commands import run
from tests.support.console import send
from tests.support.consumers import create_tables
from tests.support.servers import Server, until

WAYS = ("button", "CLI", "curl", "Python")


class World(NamedTuple):
    """A store with a database and a server of both."""

    hw: Headwater
    engine: sa.Engine
    client: ApiClient
    store: str


class Case(NamedTuple):
    """An action on an object of its own: its form, and what is seen of the object."""

    form: dict[str, str]
    seen: Callable[[], Any]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    url = f"sqlite:///{tmp_path_factory.mktemp('forms') / 'forms.db'}"
    engine = sa.create_engine(url)
    create_tables(engine)
    with (
        Server() as store,
        connect(store.url) as hw,
        ApiServer(store.url, front=Console, db=url) as api,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("HEADWATER_URL", store.url)
        patch.setenv("HEADWATER_DB", url)
        yield World(hw, engine, api.client(), store.url)
    engine.dispose()


@pytest.fixture(autouse=True)
def _begins_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job on dead letters waits for half a minute; what it then does is tested here."""
    monkeypatch.setattr(letters, "GRACE_MS", 0)


def _stream(world: World, count: int = 20) -> str:
    name = f"forms-{secrets.token_hex(4)}"
    world.hw.stream(name).write_many([("t", b"%d" % n) for n in range(count)])
    return name


def _read(world: World, name: str) -> list[Any]:
    found = world.hw.stream(name).read(1, 100)
    return [one and (one.offset, one.tag, one.value, dict(one.headers)) for one in found]


def _group(world: World, do: str, **fields: str) -> Case:
    name = _stream(world)
    group = world.hw.stream(name).group("mail", dead_letters=True)
    held = group.read(10, ack_ms=600_000)
    group.ack(held[:4])
    group.bury(held[4], held[5], error="broken")

    def seen() -> Any:
        if "mail" not in world.hw.stream(name).info().groups:
            return None
        info = group.info()
        return info.next, info.pending, info.paused, info.dead, info.due

    return Case({"do": do, "stream": name, "group": "mail", **fields}, seen)


def _of_stream(world: World, do: str, **fields: str) -> Case:
    name = _stream(world)

    def seen() -> Any:
        info = world.hw.stream(name).info()
        return info.first, info.last, info.exists, info.retention, _read(world, name)

    return Case({"do": do, "stream": name, **fields}, seen)


def _of_queue(world: World, do: str, state: str = "", **fields: str) -> Case:
    queue = world.hw.queue(f"forms-{secrets.token_hex(4)}")
    queue.push_many([b"a", b"b", b"c"])
    queue.push(b"later", delay_ms=3_600_000)
    queue.bury(*queue.pop(1, ack_ms=600_000), error="broken")
    queue.pop(1, ack_ms=600_000)
    if state:
        fields["place"] = queue.peek(1, state=state)[0].place  # type: ignore[arg-type]

    def seen() -> Any:
        stats = queue.stats()
        counts = (stats.ready, stats.delayed, stats.unacked, stats.dead, stats.paused)
        ready = [(one.value, one.attempt) for one in queue.peek(100)]
        return counts, ready

    return Case({"do": do, "queue": queue.name, **fields}, seen)


def _of_letters(world: World, action: str, which: str) -> Case:
    """Dead letters of a group and a queue that have the same name."""
    name = _stream(world)
    group = world.hw.stream(name).group("mail", dead_letters=True)
    group.bury(*group.read(10, ack_ms=600_000)[:3], error="broken")
    queue = world.hw.queue(name)
    queue.push_many([b"a", b"b"])
    queue.bury(*queue.pop(2, ack_ms=600_000), error="broken")
    form = {"do": "letters", "action": action}
    if which == "some":
        one = queue.dead(1)[0]
        ticked = (Place(name, "mail", 0).key + "#1", Place(name, "", 0).key + f"#{one.id}")
        form |= {"which": "some", "l1": ticked[0], "l2": ticked[1]}
    else:
        form |= {"which": "all", "error": "broken"}

    def seen() -> Any:
        stats = queue.stats()
        return group.info().dead, group.info().pending, stats.dead, stats.ready

    return Case(form, seen)


def _of_job(world: World) -> Case:
    """A redrive that has not begun."""
    name = _stream(world)
    group = world.hw.stream(name).group("mail", dead_letters=True)
    group.bury(*group.read(3, ack_ms=600_000), error="broken")
    place = {"stream": name, "group": "mail"}
    body = {"action": "redrive", "places": [place], "delay_ms": 3_600_000}
    job = world.client.post("/v1/letters/jobs", body).body["job"]
    return Case({"do": "letters-stop", "job": job}, lambda: _state_of(world, job))


def _of_replay(world: World) -> Case:
    """A replay that takes an hour."""
    name = f"forms-{secrets.token_hex(4)}"
    columns = {"tag": ["t", "t"], "value": [b"1", b"2"], "time": [1_000_000, 4_600_000]}
    world.hw.stream(name).append(pa.record_batch(columns))
    path = f"/v1/streams/{name}/replays"
    job = world.client.post(path, {"into": f"{name}-copy", "speed": 1}).body["replay"]
    form = {"do": "replay-stop", "stream": name, "replay": job}
    return Case(form, lambda: _state_of(world, job))


def _state_of(world: World, job: str) -> str:
    return next(one.state for one in world.hw.jobs() if one.id == job)


def _of_replaying(world: World) -> Case:
    name = _stream(world)
    form = {"do": "replay", "stream": name, "into": f"{name}-copy", "first": "5", "last": "9"}
    return Case(form, lambda: [row and row[2] for row in _read(world, f"{name}-copy")])


def _of_consumer(world: World, do: str, **fields: str) -> Case:
    name = _stream(world)
    consumer = Consumer(
        f"view-{name}", [name], world.engine, world.hw, _refuse, on_error="skip", attempts=1
    )
    while consumer.positions()[name] != 21:
        consumer.run_once()

    def seen() -> Any:
        info = world.hw.stream(name).info()
        return consumer.positions()[name], len(info.readers), len(consumer.dead(100))

    return Case({"do": do, "consumer": f"view-{name}", "stream": name, **fields}, seen)


def _refuse(_conn: Any, messages: list[Any]) -> None:
    if any(message.offset in (3, 5) for message in messages):
        raise ValueError("cannot be shown")


def _of_channel(world: World, do: str, **fields: str) -> Case:
    channel = world.hw.ick_channel(f"forms-{secrets.token_hex(4)}", shards=2)
    channel.add({"a": 1, "b": 2})

    def seen() -> Any:
        stats = world.hw.ick_channel(channel.name).stats()
        return stats and (len(stats.shards), stats.ready)

    return Case({"do": do, "channel": channel.name, **fields}, seen)


def _of_ick(world: World) -> Case:
    key = f"forms-{secrets.token_hex(4)}"
    world.hw.ick(key).add({"a": 1})
    return Case({"do": "delete-ick", "key": key}, lambda: world.hw.ick(key).stats())


CASES: dict[str, Callable[[World], Case]] = {
    "seek": lambda world: _group(world, "seek", to="5"),
    "seek:last": lambda world: _group(world, "seek", to="last"),
    "remove": lambda world: _group(world, "remove"),
    "group-state": lambda world: _group(world, "group-state"),
    "pending:skip": lambda world: _group(world, "pending", action="skip", first="7", last="8"),
    "pending:return": lambda world: _group(world, "pending", action="return", first="7", last="8"),
    "evict": lambda world: _of_stream(world, "evict", up_to="7"),
    "retain": lambda world: _of_stream(world, "retain", max_count="1,000", max_age="7d"),
    "retain:forever": lambda world: _of_stream(world, "retain"),
    "delete-stream": lambda world: _of_stream(world, "delete-stream"),
    "write": lambda world: _of_stream(
        world, "write", tag="it's", value='{"a": "$HOME\\n"}', kind="json", headers="k: v w"
    ),
    "write:bytes": lambda world: _of_stream(world, "write", tag="-x", value="00ff80", kind="hex"),
    "replay": _of_replaying,
    "replay-stop": _of_replay,
    "queue-state": lambda world: _of_queue(world, "queue-state"),
    "purge": lambda world: _of_queue(world, "purge"),
    "push": lambda world: _of_queue(world, "push", value="it's $HOME", priority="3"),
    "promote": lambda world: _of_queue(world, "promote", "delayed"),
    "release": lambda world: _of_queue(world, "release", "unacked"),
    "letters:redrive": lambda world: _of_letters(world, "redrive", "some"),
    "letters:discard": lambda world: _of_letters(world, "discard", "some"),
    "letters:redrive everywhere": lambda world: _of_letters(world, "redrive", "all"),
    "letters:discard everywhere": lambda world: _of_letters(world, "discard", "all"),
    "letters-stop": _of_job,
    "consumer-seek": lambda world: _of_consumer(world, "consumer-seek", to="5"),
    "consumer-forget": lambda world: _of_consumer(world, "consumer-forget"),
    "consumer-remove": lambda world: _of_consumer(world, "consumer-remove"),
    "consumer-discard": lambda world: _of_consumer(world, "consumer-discard"),
    "reshard": lambda world: _of_channel(world, "reshard", shards="3"),
    "delete-channel": lambda world: _of_channel(world, "delete-channel"),
    "delete-ick": _of_ick,
}


def test_every_action_is_among_the_cases() -> None:
    assert {case.partition(":")[0] for case in CASES} == set(ACTIONS)


@pytest.mark.parametrize("case", CASES)
def test_an_action_does_the_same_however_it_is_asked_for(world: World, case: str) -> None:
    make = CASES[case]
    before, after = {}, {}
    for way in WAYS:
        if way == "curl" and shutil.which("curl") is None:
            continue
        form, seen = make(world)
        before[way] = seen()
        others = {one.id for one in world.hw.jobs()} - {form.get("job"), form.get("replay")}
        if way == "button":
            done = send(world.client, "/console/act", **form)
            assert done.status == 303, done.body
        else:
            _paste(world, way, _shown(world.client, form, way))
        until(lambda others=others: _jobs_are_over(world.hw, others))  # type: ignore[misc]
        after[way] = seen()
    changes = case != "retain:forever"
    for way, found in after.items():
        assert found == after["button"], way
        assert (found != before[way]) == changes, way


def _jobs_are_over(hw: Headwater, others: set[str]) -> bool:
    return all(one.over for one in hw.jobs() if one.id not in others)


def _shown(client: ApiClient, form: dict[str, str], way: str) -> str:
    """Return what the page of an action shows to copy."""
    page = client.get("/console/act?" + urlencode(form))
    assert page.status == 200, page.body
    found = re.search(rf"<dt>{way}</dt>.*?<code>(.*?)</code>", page.body.decode(), re.DOTALL)
    assert found is not None
    return html.unescape(found[1])


def _paste(world: World, way: str, text: str) -> None:
    """Do what somebody does who copies a form."""
    if way == "Python":
        exec(compile(text, "<pasted>", "exec"), {})
    elif way == "CLI":
        for command in text.split(" && "):
            program, *words = shlex.split(command)
            assert program == "headwater"
            done = run(world.store, *words)
            assert done.code == 0, (text, done)
    else:
        _curl(text)


def _curl(text: str) -> None:
    done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True)
    assert '"status":4' not in done.stdout, (text, done.stdout)


def test_curl_sends_a_token_where_a_server_asks_for_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = Tokens([("secret", Scope.ADMIN)])
    with ApiServer(world.store, tokens, front=Console) as api:
        form, seen = _of_stream(world, "evict", up_to="7")
        shown = _shown(api.client("secret"), form, "curl")
        assert "secret" not in shown
        monkeypatch.setenv("HEADWATER_TOKEN", "secret")
        _curl(shown)
        assert seen()[0] == 8
