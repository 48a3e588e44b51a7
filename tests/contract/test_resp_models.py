"""Streams and groups through the RESP door obey the same models as those of the library."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

import headwater
from tests.contract.test_group_model import GroupMachine
from tests.contract.test_stream_model import StreamMachine
from tests.support.examples import MODEL_SETTINGS, patient
from tests.support.resp import RespServer
from tests.support.resp_driver import through_door
from tests.support.stores import Stores

# The models themselves run elsewhere; here it is the door that is tried.
SHORT = settings(MODEL_SETTINGS, max_examples=3, stateful_step_count=25)
TRIED = MODEL_SETTINGS if "HEADWATER_EXAMPLES" in os.environ else SHORT


@pytest.fixture
def client(door: RespServer, stores: Stores) -> Iterator[Any]:
    with (
        headwater.connect(stores.url("plain")) as direct,
        door.redis(single_connection_client=True) as client,
    ):
        yield through_door(direct, client)


@patient
def test_a_stream_is_a_dict_of_offsets(client: Any) -> None:
    machine = type("DoorStreamMachine", (StreamMachine,), {"client": client})
    run_state_machine_as_test(machine, settings=TRIED)


@patient
def test_a_group_is_a_position_and_a_dict_of_pending(client: Any) -> None:
    machine = type("DoorGroupMachine", (GroupMachine,), {"client": client})
    run_state_machine_as_test(machine, settings=TRIED)
