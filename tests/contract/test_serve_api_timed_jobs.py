"""Timed jobs over HTTP: what an operator sees and does, under the name of the token's holder."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import pytest

import headwater
from headwater import DueRun
from headwater.kernel.declaring import Scope
from headwater.serve.tokens import Tokens
from tests.support.api import ApiClient, ApiServer
from tests.support.blocking import Loop
from tests.support.stores import Stores
from tests.support.timed import HOUR_MS, START_MS, Clockwork

HOLDER = "the admin token"
TOKENS = Tokens([("root-token", Scope.ADMIN), ("look-token", Scope.READ)])


@pytest.fixture(scope="module")
def api(stores: Stores) -> Iterator[ApiServer]:
    with ApiServer(stores.url("plain"), TOKENS) as server:
        yield server


@pytest.fixture
def client(api: ApiServer) -> ApiClient:
    return api.client("root-token")


@pytest.fixture
def clockwork(stores: Stores, loop: Loop) -> Iterator[Clockwork]:
    with contextlib.closing(Clockwork("sync", stores.url("plain"), loop)) as made:
        yield made


def test_an_operator_lists_looks_pauses_resumes_and_runs_a_job(
    client: ApiClient, clockwork: Clockwork, name: str
) -> None:
    runs: list[DueRun] = []
    clockwork.now_ms = 2 * START_MS  # later than the clock of the store
    run_due = clockwork.runner(name, runs.append, cron="0 * * * *", missed="all")
    run_due()
    path = f"/v1/timed-jobs/{name}"
    job = client.get(path).body
    assert (job["when"], job["paused"], job["last"]) == ("0 * * * *", False, None)
    assert client.get(f"/v1/timed-jobs?prefix={name}").body == {"jobs": [job], "next": None}
    assert client.post(f"{path}/pause", None).body == {"job": name, "changed": True}
    assert client.post(f"{path}/pause", None).body == {"job": name, "changed": False}
    clockwork.now_ms += 3 * HOUR_MS
    run_due()
    assert runs == []
    assert client.post(f"{path}/run", None).body == {"job": name}
    run_due()
    assert [run.by_hand for run in runs] == [True]
    assert client.post(f"{path}/resume", None).body["changed"]
    clockwork.now_ms += HOUR_MS
    run_due()
    assert {run.by_hand for run in runs[1:]} == {False}
    assert not client.get(path).body["last"]["by_hand"]
    history = client.get(f"{path}/history").body["events"]
    by_hand = [event for event in history if event["what"] in ("paused", "asked", "resumed")]
    assert [event["what"] for event in by_hand] == ["paused", "asked", "resumed"]
    assert {event["by"] for event in by_hand} == {HOLDER}
    assert client.get(f"{path}/history?count=2").body["events"] == history[-2:]
    assert client.ask("DELETE", path).body == {"job": name, "deleted": True}
    for what in ("", "/history"):
        assert client.get(path + what).body["title"] == "UnknownTimedJob"
    assert client.ask("DELETE", path).status == client.post(f"{path}/run", None).status == 404


def test_whoever_may_only_read_changes_no_job_and_every_change_is_in_the_audit(
    api: ApiServer, client: ApiClient, clockwork: Clockwork, name: str, stores: Stores
) -> None:
    clockwork.runner(name, print, every="1h")()
    path = f"/v1/timed-jobs/{name}"
    reader = api.client("look-token")
    assert reader.get(path).status == reader.get(f"{path}/history").status == 200
    assert reader.post(f"{path}/pause", None).status == 403
    assert reader.post(f"{path}/run", None).status == 403
    assert client.post(f"{path}/pause", None).status == 200
    with headwater.connect(stores.url("plain")) as hw:
        audit = hw.stream("hw.audit")
        found = [json.loads(one.value) for one in audit.read(1, 10_000) if one and one.tag == name]
    begun, done = found
    assert (begun["outcome"], done["outcome"]) == ("begun", "done")
    assert (begun["before"]["paused"], done["after"]["paused"]) == (False, True)
