"""Timelines over HTTP and RESP show the result of the merge rule over all operations."""

from __future__ import annotations

import base64
import os
import secrets
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.timeline import State
from headwater.timeline.records import merge
from tests.contract.test_timeline_model import MEMBERS, SCORES, Operation, in_order
from tests.support.api import ApiClient, ApiServer
from tests.support.examples import MODEL_SETTINGS, patient
from tests.support.farms import one_each, replicas
from tests.support.resp import RespServer
from tests.support.servers import Server
from tests.support.stores import Stores

# The merge rule itself is tested elsewhere; here it is HTTP and RESP.
SHORT = settings(MODEL_SETTINGS, max_examples=15)
TRIED = MODEL_SETTINGS if "HEADWATER_EXAMPLES" in os.environ else SHORT
OPERATIONS = st.lists(
    st.builds(Operation, MEMBERS, st.builds(State, SCORES, st.booleans())), min_size=1, max_size=14
)
Shown = list[tuple[bytes, float]]


class Timelines(Protocol):
    """What a door offers of timelines."""

    def apply(self, key: str, operation: Operation) -> None:
        """Insert or delete a member."""

    def select(self, key: str, limit: int, after: tuple[bytes, float] | None = None) -> Shown:
        """Return members and scores, the newest first, behind one of them."""


class OverHttp(NamedTuple):
    client: ApiClient

    def apply(self, key: str, operation: Operation) -> None:
        member, state = operation
        record = {
            "key": key,
            "score": state.score,
            "member": base64.b64encode(member).decode(),
            "member_encoding": "base64",
        }
        verb = "delete" if state.deleted else "insert"
        assert self.client.post("/v1/timelines", {verb: [record]}).status == 200

    def select(self, key: str, limit: int, after: tuple[bytes, float] | None = None) -> Shown:
        path = f"/v1/timelines/{key}?limit={limit}"
        if after is not None:
            # Whoever pages over HTTP goes on by the cursor of the last record.
            records = self.client.get(f"/v1/timelines/{key}?limit=100").body["records"]
            (cursor,) = (one["cursor"] for one in records if _record(one) == after)
            path += f"&start={cursor}"
        found = self.client.get(path).body
        assert found["failures"] == []
        return [_record(one) for one in found["records"]]


def _record(view: dict[str, str]) -> tuple[bytes, float]:
    text = view["member"]
    member = base64.b64decode(text) if view.get("member_encoding") else text.encode()
    return member, float(view["score"])


class ByResp(NamedTuple):
    door: RespServer

    def apply(self, key: str, operation: Operation) -> None:
        member, state = operation
        command = "TLDELETE" if state.deleted else "TLINSERT"
        with self.door.redis(single_connection_client=True) as client:
            client.execute_command(command, key, repr(state.score), member)

    def select(self, key: str, limit: int, after: tuple[bytes, float] | None = None) -> Shown:
        words = [] if after is None else ["START", repr(after[1]), after[0]]
        with self.door.redis(single_connection_client=True) as client:
            flat = client.execute_command("TLSELECT", key, "LIMIT", limit, *words)
        return [(member, float(score)) for member, score in zip(flat[::2], flat[1::2], strict=True)]


@pytest.fixture(scope="module", params=["http", "resp"])
def timelines(request: pytest.FixtureRequest, stores: Stores) -> Iterator[Timelines]:
    url = stores.url("plain")
    with Server() as server:
        farm = one_each(replicas(server, 2))
        if request.param == "http":
            with ApiServer(url, farm=farm) as api:
                yield OverHttp(api.client())
        else:
            with RespServer(url, farm=farm) as door:
                yield ByResp(door)


@patient
def test_any_operations_in_any_order_are_shown_as_the_law_says(timelines: Timelines) -> None:
    @TRIED
    @given(OPERATIONS, st.integers(1, 4))
    def obeys(operations: list[Operation], limit: int) -> None:
        key = f"model-{secrets.token_hex(6)}"
        for operation in operations:
            timelines.apply(key, operation)
        states = merge({one.member: one.state} for one in operations)
        expected = [(one.member, one.score) for one in in_order(key.encode(), states)]
        assert timelines.select(key, 100) == expected
        pages: Shown = []
        while page := timelines.select(key, limit, pages[-1] if pages else None):
            pages += page
        assert pages == expected, "pages line up"

    obeys()
