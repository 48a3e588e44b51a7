"""Objects of every kind over HTTP obey the same models as those of the library."""

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
from tests.support.api import ApiServer
from tests.support.examples import MODEL_SETTINGS, patient
from tests.support.http_client import over_http
from tests.support.stores import Stores

# The models themselves run elsewhere; here it is the API that is tried.
SHORT = settings(MODEL_SETTINGS, max_examples=2, stateful_step_count=20)
TRIED = MODEL_SETTINGS if "HEADWATER_EXAMPLES" in os.environ else SHORT


@pytest.fixture(scope="module")
def client(stores: Stores) -> Iterator[Any]:
    with headwater.connect(stores.url("plain")) as direct, ApiServer(stores.url("plain")) as api:
        yield over_http(direct, api.client())


@patient
@pytest.mark.parametrize(
    "machine",
    [StreamMachine, GroupMachine, TopicMachine, QueueMachine, IckMachine, ChannelMachine],
    ids=lambda one: one.__name__,
)
def test_an_object_is_its_model(client: Any, machine: type[RuleBasedStateMachine]) -> None:
    driven = type(f"Http{machine.__name__}", (machine,), {"client": client})
    run_state_machine_as_test(driven, settings=TRIED)
