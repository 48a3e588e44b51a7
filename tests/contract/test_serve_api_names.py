"""What a request names in its body needs a right too, and a list has only what a token may read."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import pytest

import headwater
from headwater.kernel.declaring import Scope
from headwater.serve.api.routes import Route
from headwater.serve.api.table import ROUTES
from headwater.serve.tokens import TokenFile, add_token
from tests.support.api import ApiClient, ApiServer
from tests.support.blocking import Loop
from tests.support.farms import one_each, replicas
from tests.support.servers import Server
from tests.support.timed import Clockwork

# Each list: its path, and how the names of what it shows are read out of it.
LISTS: Final[dict[str, tuple[str, Callable[[Any], list[str]]]]] = {
    "list_streams": ("/v1/streams", lambda body: [one["name"] for one in body["streams"]]),
    "list_readers": ("/v1/readers", lambda body: [one["stream"] for one in body["readers"]]),
    "list_topics": ("/v1/topics", lambda body: [one["name"] for one in body["topics"]]),
    "list_queues": ("/v1/queues", lambda body: [one["name"] for one in body["queues"]]),
    "list_channels": ("/v1/channels", lambda body: body["channels"]),
    "list_timed_jobs": ("/v1/timed-jobs", lambda body: [one["name"] for one in body["jobs"]]),
    "list_letter_jobs": (
        "/v1/letters/jobs",
        lambda body: [place["queue"] for one in body["jobs"] for place in one["places"]],
    ),
}
# Requests that name an object in their body, of which mine is one that the token may change.
BODIES: Final[dict[str, Callable[[str], tuple[str, Any]]]] = {
    "start_replay": lambda name: ("/v1/streams/mine/replays", {"into": name}),
    "read_group": lambda name: ("/v1/streams/mine/groups/g/read", {"dead_letters": name}),
    "read_topic_group": lambda name: ("/v1/topics/mine/groups/g/read", {"dead_letters": name}),
    "start_letter_job": lambda name: (
        "/v1/letters/jobs",
        {"action": "discard", "places": [{"queue": "mine"}, {"queue": name}]},
    ),
    "write_timelines": lambda name: (
        "/v1/timelines",
        {
            "insert": [{"key": "mine", "score": 1, "member": "m"}],
            "delete": [{"key": name, "score": 1, "member": "m"}],
        },
    ),
}
# Those of SQL consumers need a database, and are tried with it; a job is stopped by its id.
ELSEWHERE: Final = {"list_consumers", "stop_letter_job"}


class Served(NamedTuple):
    root: ApiClient
    mine: ApiClient


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, loop: Loop) -> Iterator[Served]:
    path = tmp_path_factory.mktemp("tokens") / "tokens.json"
    root = add_token(path, "root", {Scope.ADMIN: ["*"]})
    mine = add_token(path, "mine", {Scope.ADMIN: ["mine*"]})
    with Server() as server:
        farm = one_each(replicas(server, 1))
        with headwater.connect(server.url) as hw:
            for name in ("mine", "yours"):
                hw.stream(name).write("t", b"v")
                hw.stream(name).register_reader("r", 1)
                hw.topic(name, 1).write("t", b"v")
                hw.queue(name).push(b"v")
                hw.ick_channel(name, shards=1).add({"m": 1})
                with contextlib.closing(Clockwork("sync", server.url, loop)) as clockwork:
                    clockwork.runner(name, print, every="1h")()
        with ApiServer(server.url, TokenFile(path), farm=farm) as api:
            yield Served(api.client(root), api.client(mine))


def nameless(route: Route) -> bool:
    return bool(route.scope and not route.parameters and not route.whole_store)


def test_every_route_without_a_name_in_its_path_is_in_this_test() -> None:
    found = {route.operation for route in ROUTES if nameless(route)}
    assert found <= LISTS.keys() | BODIES.keys() | ELSEWHERE
    assert LISTS.keys() | BODIES.keys() | ELSEWHERE <= {route.operation for route in ROUTES}


@pytest.mark.parametrize("operation", LISTS)
def test_a_list_has_only_what_the_token_may_read(served: Served, operation: str) -> None:
    path, names = LISTS[operation]
    if operation == "list_letter_jobs":
        for name in ("mine", "yours"):
            body = {"action": "discard", "places": [{"queue": name}], "delay_ms": 3_600_000}
            assert served.root.post(path, body).status == 202
    seen = {name.split("/")[0] for name in names(served.root.get(path).body)}
    assert seen >= {"mine", "yours"}
    assert {name.split("/")[0] for name in names(served.mine.get(path).body)} == {"mine"}


@pytest.mark.parametrize("operation", BODIES)
def test_what_a_body_names_needs_its_right(served: Served, operation: str) -> None:
    path, body = BODIES[operation]("yours-too")
    refused = served.mine.post(path, body)
    assert (refused.status, "yours-too" in refused.body["detail"]) == (403, True)
    path, body = BODIES[operation](f"mine-{secrets.token_hex(4)}")
    assert served.mine.post(path, body).status < 300


def test_a_job_on_letters_is_stopped_by_those_who_may_change_all_of_it(served: Served) -> None:
    places = [{"queue": "mine"}, {"queue": "yours"}]
    body = {"action": "discard", "places": places, "delay_ms": 3_600_000}
    job = served.root.post("/v1/letters/jobs", body).body["job"]
    # Whoever may not read all of its places does not know that there is such a job.
    assert served.mine.post("/v1/letters/stop", {"job": job}).status == 404
    assert served.root.post("/v1/letters/stop", {"job": job}).status < 300


def test_a_replay_is_shown_to_those_who_may_read_its_target(served: Served) -> None:
    path = "/v1/streams/mine/replays"
    for name in ("mine-shown", "yours-hidden"):
        assert served.root.post(path, {"into": name}).status == 202
    replays = {one["into"]: one["replay"] for one in served.root.get(path).body["replays"]}
    assert replays.keys() >= {"mine-shown", "yours-hidden"}
    seen = {one["into"] for one in served.mine.get(path).body["replays"]}
    assert "mine-shown" in seen
    assert "yours-hidden" not in seen
    assert served.mine.ask("DELETE", f"{path}/{replays['yours-hidden']}").status == 404


def test_what_is_no_number_is_refused(served: Served) -> None:
    for number in ("%C2%B2", "%D9%A3", "9" * 5000):
        assert served.root.get(f"/v1/streams/mine/messages/{number}/trace").status == 400
        assert served.root.get(f"/v1/outbox/rows/{number}").status == 400
    assert served.root.get("/v1/topics/mine/tail", Last_Event_ID="9" * 5000).status == 400
