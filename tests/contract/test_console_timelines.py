"""The console shows a farm, where copies of a key differ, and filters the audit."""

from __future__ import annotations

import html
import re
import secrets

import headwater
from headwater.serve.console.service import Console
from headwater.timeline import Farm
from tests.support.api import ApiClient, ApiServer
from tests.support.farms import Replica
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
    assert page.count("serves</td>") == 2
    assert "2 members" in page
    assert "1 differ" in page
    assert re.search(r"lost</code>.*?write to cluster 2", page, re.DOTALL)
    assert "nothing" in page


def test_the_audit_is_filtered_by_who_what_and_object(stores: Stores) -> None:
    url = stores.url("plain")
    with headwater.connect(url) as hw, ApiServer(url, front=Console) as api:
        name = f"audited-{secrets.token_hex(4)}"
        hw.queue(name).push(b"a")
        client = api.client()
        client.ask("PUT", f"/v1/queues/{name}/state", {"paused": True})
        page = shown(client, f"/console/audit?path={name}&what=state&who=everybody&outcome=done")
        none = shown(client, f"/console/audit?path={name}&outcome=failed")
        client.close()
    assert page.count(f"/v1/queues/{name}/state</code>") == 1
    assert "No note that was looked at matches" in none
