"""Whatever is sent by the OpenAPI document, or against it, is answered as the document says.

Schemathesis makes requests of the document: such as it allows, and such as it does not. Every
answer has a status, a type and a body that the document names, nothing is a fault of the server,
and what breaks the schema is refused. Half of the requests are about objects that are there.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import pytest
import schemathesis
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

import headwater
from headwater.kernel.declaring import Scope
from headwater.outbox import Consumer, Outbox
from headwater.serve.api.routes import EVENTS, document
from headwater.serve.api.table import ROUTES
from headwater.serve.tokens import Tokens
from tests.support.api import ApiServer
from tests.support.servers import Server
from tests.support.timed import declare_job

LONG = int(os.environ.get("HEADWATER_LONG", "0"))
TRIED = settings(
    max_examples=20 * LONG or 2,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
    derandomize=not LONG,
)
# A message needs a value or data, an offset a partition that is there: no schema says so.
NOT_ASKED = [positive_data_acceptance]
TOKEN = {"Authorization": "Bearer root-token"}
KINDS = ("stream", "topic", "queue", "channel", "timeline", "consumer", "group", "job", "key")
THERE = dict.fromkeys(KINDS, "there")
THERE["reader"] = "consumer:there"
THERE["replay"] = "there"
THERE["offset"] = "1"
THERE["row"] = "1"
# A tail does not end.
ENDLESS = {route.path for route in ROUTES if route.answers == (EVENTS,)}


TOLD = json.loads(document(ROUTES))
# Tokens are tried elsewhere, route by route: here every request has one.
del TOLD["security"]
SCHEMA = schemathesis.openapi.from_dict(TOLD)


class Filled:
    """A server with one object of each kind, which are made again when a request removed them."""

    def __init__(self, hw: headwater.Headwater, engine: sa.Engine, url: str) -> None:
        self._hw = hw
        self._engine = engine
        self.url = url

    def fill(self) -> None:
        hw = self._hw
        hw.stream("there").write("t", b"v")
        group = hw.stream("there").group("there", dead_letters=True)
        group.bury(*group.read(1, ack_ms=60_000))
        hw.topic("there", 2).write("t", b"v")
        hw.topic("there").group("there").read(1, ack_ms=60_000)
        hw.queue("there").push(b"v")
        hw.ick("there").add({"m": 1})
        hw.ick_channel("there").add({"m": 1})
        declare_job(hw, "there")
        # A request may have moved it beyond the end.
        with contextlib.suppress(headwater.PositionLost):
            Consumer("there", "there", self._engine, hw, lambda *_: None).run_once()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    database = f"sqlite:///{tmp_path_factory.mktemp('schema') / 'app.db'}"
    engine = sa.create_engine(database)
    Outbox(engine).create_all()
    with (
        Server() as store,
        Server() as instance,
        headwater.connect(store.url) as hw,
        ApiServer(
            store.url, Tokens([("root-token", Scope.ADMIN)]), farm=instance.url, db=database
        ) as api,
    ):
        yield Filled(hw, engine, f"http://127.0.0.1:{api.port}")
    engine.dispose()


def hurried(fields: Any) -> None:
    """Let a request wait for messages for some milliseconds only, where it waits at all."""
    if isinstance(fields, dict) and "block_ms" in fields:
        with contextlib.suppress(ValueError, TypeError):
            if 0 <= float(fields["block_ms"]) <= 60_000:
                fields["block_ms"] = 5


def ask(filled: Filled, operation: Any, mode: GenerationMode) -> Counter[int]:
    """Send requests to an operation and check the answers; returns the statuses of those."""
    statuses: Counter[int] = Counter()

    @settings(TRIED)
    @given(case=operation.as_strategy(generation_mode=mode), there=st.booleans())
    def check(case: Any, there: bool) -> None:
        # Such a parameter is not sent at all.
        assume(all(value not in (None, [], {}) for value in (case.query or {}).values()))
        hurried(case.query)
        hurried(case.body)
        if there and mode is GenerationMode.POSITIVE:
            case.path_parameters = {name: THERE[name] for name in case.path_parameters or ()}
        answer = case.call(base_url=filled.url, headers=TOKEN, timeout=60)
        statuses[answer.status_code] += 1
        case.validate_response(answer, excluded_checks=NOT_ASKED)

    check()
    return statuses


@pytest.mark.timeout(300 + 1200 * LONG)
def test_every_answer_is_what_the_document_says(filled: Filled) -> None:
    statuses: Counter[int] = Counter()
    for found in SCHEMA.get_all_operations():
        operation = cast("Any", found).ok()
        if operation.path in ENDLESS:
            continue
        filled.fill()
        statuses += ask(filled, operation, GenerationMode.POSITIVE)
        # Where there is nothing but a path, nothing breaks the schema.
        if list(operation.query) or list(operation.body):
            statuses += ask(filled, operation, GenerationMode.NEGATIVE)
    assert sum(statuses.values()) >= 200
    assert all(statuses[status] for status in (200, 201, 400, 404)), statuses
