"""Objects of every kind obey the models of the library through the RESP door, too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

import headwater
from tests.contract.test_channel_model import ChannelMachine
from tests.contract.test_group_model import GroupMachine
from tests.contract.test_ick_model import IckMachine
from tests.contract.test_queue_model import QueueMachine
from tests.contract.test_stream_model import StreamMachine
from tests.contract.test_topic_model import TopicMachine
from tests.support.examples import MODEL_SETTINGS, patient
from tests.support.resp import RespServer
from tests.support.resp_client import through_door
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
@pytest.mark.parametrize(
    "machine",
    [StreamMachine, GroupMachine, TopicMachine, QueueMachine, IckMachine, ChannelMachine],
    ids=lambda one: one.__name__,
)
def test_an_object_is_its_model(client: Any, machine: type[RuleBasedStateMachine]) -> None:
    driven = type(f"Door{machine.__name__}", (machine,), {"client": client})
    run_state_machine_as_test(driven, settings=TRIED)
