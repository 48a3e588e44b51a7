"""The console shows a farm, where copies of a key differ, and filters the audit."""

from __future__ import annotations

import asyncio
import html
import re
import secrets

import headwater
from headwater.serve.console.service import Console
from headwater.timeline import AsyncFarm, Farm
from headwater.timeline.records import Repaired
from headwater.timeline.resharding import Resharder
from headwater.timeline.walker import Walked, Walker, WalkNote, WalkNotes, WalkProgress, read_notes
from tests.support.api import ApiClient, ApiServer
from tests.support.commands import run
from tests.support.farms import Replica
from tests.support.resharding import reshard
from tests.support.stores import Stores


def shown(client: ApiClient, path: str) -> str:
    found = client.get(path)
    assert found.status == 200, found.body
    return html.unescape(found.body.decode())


def test_copies_of_a_key_stand_side_by_side_with_the_repair(
    stores: Stores, three: list[Replica]
) -> None:
    one, two = three[0].url, three[1].url
    key = f"copies-{secrets.token_hex(4)}"
    with Farm.open(one) as half:
        half.insert([(key, 1.0, "both"), (key, 2.0, "lost")])
    with Farm.open(two) as half:
        half.insert([(key, 1.0, "both")])
    with ApiServer(stores.url("plain"), front=Console, farm=f"{one};{two}") as api:
        client = api.client()
        page = shown(client, f"/console/timelines?key={key}")
        client.close()
    assert page.count("up</td>") == 2
    assert "2 members" in page
    assert "1 differ" in page
    assert re.search(r"lost</code>.*?write to cluster 2", page, re.DOTALL)
    assert "nothing" in page


def test_a_walk_is_seen_from_elsewhere_while_it_runs_and_after_it(
    stores: Stores, three: list[Replica]
) -> None:
    one, two = three[0].url, three[1].url
    mark = secrets.token_hex(4)
    with Farm.open(f"{one};{two}") as farm, Farm.open(one) as half:
        farm.insert([(f"{mark}-{n}", 1.0, "both") for n in range(60)])
        half.insert([(f"{mark}-1", 2.0, "lost"), (f"{mark}-2", 2.0, "lost")])
    seen: list[list[WalkNote]] = []

    async def walk(instances: str) -> None:
        async with AsyncFarm.open(instances) as farm, AsyncFarm.open(instances) as other:
            stop = asyncio.Event()

            def tell(_: WalkProgress) -> None:
                stop.set()

            stopped = Walker(farm, tell=tell)
            assert await stopped.walk(stop) is None
            await WalkNotes(farm.clusters, "walk", "ann-1").note(10, 100, Repaired(keys=5))
            seen.append(await read_notes(other.clusters))
            assert await Walker(farm, rate=100_000).walk() is not None
            seen.append(await read_notes(other.clusters))

    asyncio.run(walk(f"{one};{two}"))
    running, ended = seen
    assert [(note.kind, note.state) for note in running] == [
        ("walk", "running"),
        ("walk", "stopped"),
    ]
    assert (running[0].who, running[0].passed, running[0].total) == ("ann-1", 10, 100)
    assert running[0].left_s is not None
    (last,) = ended
    assert (last.state, last.left_s) == ("done", None)
    assert running[1].repaired.differing + last.repaired.differing == 2
    with ApiServer(stores.url("plain"), front=Console, farm=f"{one};{two}") as api:
        client = api.client()
        page = shown(client, "/console/timelines?sample=50")
        body = client.get("/v1/timelines").body
        client.close()
    assert "All copies of this one agree" in page
    assert re.search(rf">walk</td>.*>done</td>.*>{last.repaired.keys}</td>", page)
    assert (body["phase"], body["walks"][0]["state"]) == ("settled", "done")
    listed = run(None, "timeline", "walks", "--instances", f"{one};{two}", "--json")
    assert (listed.row["kind"], listed.row["who"]) == ("walk", last.who)


def test_a_walk_goes_on_where_it_cannot_be_noted(three: list[Replica]) -> None:
    async def walk() -> Walked | None:
        async with AsyncFarm.open(three[2].url) as farm:
            for kind in ("now", "last"):
                # What an older or newer release might keep there is passed over.
                await (
                    farm.clusters[0]
                    .pool.instances[0]
                    .command("SET", f"hw:{{timelines}}:walk:{kind}", "{}")
                )
            assert await read_notes(farm.clusters) == []
            return await Walker(farm).walk()

    assert asyncio.run(walk()) is not None


def test_the_audit_is_filtered_by_who_what_and_object(stores: Stores) -> None:
    url = stores.url("plain")
    with headwater.connect(url) as hw, ApiServer(url, front=Console) as api:
        name = f"audited-{secrets.token_hex(4)}"
        hw.queue(name).push(b"a")
        client = api.client()
        client.post(f"/v1/queues/{name}/pause", None)
        page = shown(client, f"/console/audit?path={name}&what=pause&who=everybody&outcome=done")
        none = shown(client, f"/console/audit?path={name}&outcome=failed")
        client.close()
    assert page.count(f"/v1/queues/{name}/pause</code>") == 1
    assert "No entry checked so far matches" in none


def test_a_reshard_is_watched_from_its_beginning_to_its_end(
    stores: Stores, three: list[Replica]
) -> None:
    old, new, third = (replica.url for replica in three)
    mark = secrets.token_hex(4)
    with Farm.open(old) as farm:
        farm.insert([(f"{mark}-{n}", 1.0, "m") for n in range(50)])
    pages: list[str] = []
    with ApiServer(stores.url("plain"), front=Console, farm=old) as api:
        client = api.client()

        async def move(resharder: Resharder) -> None:
            await resharder.run()

        def look(_: WalkProgress) -> None:
            if not pages:
                pages.append(shown(client, "/console/timelines"))

        reshard(old, f"{new};{third}", move, tell=look)
        pages.append(shown(client, "/console/timelines"))
        client.close()
    during, after = pages
    assert "The farm moves from" in during
    assert "copying" in during
    assert re.search(r"reshard</td>.*?running", during, re.DOTALL)
    assert "The farm moves from" not in after
    assert "settled" in after
    assert (old in after, new in after, third in after) == (False, True, True)
    assert re.search(r"reshard</td>.*?done", after, re.DOTALL)
