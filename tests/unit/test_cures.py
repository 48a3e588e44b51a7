"""What an error says one should do is what helps, in the words of who reads it."""

from __future__ import annotations

from typing import Any

import pytest

import headwater.aio
from headwater import Group, Queue, TopicGroup
from headwater.aio import AsyncGroup, AsyncQueue, AsyncTopicGroup
from headwater.errors import DatabaseUnreachable, InvalidInput, NotCreated
from headwater.log.handles import batch_of_entries
from headwater.spark.engine.options import SourceOptions


@pytest.mark.parametrize(
    ("entries", "cure"),
    [
        ({"a": b"v"}, "use dict.items"),
        (["ab", "cd"], "write one message as"),
        (("a", b"v"), "write one message as"),
    ],
)
def test_what_is_no_list_of_pairs_is_refused_with_the_form_that_fits(
    entries: Any, cure: str
) -> None:
    with pytest.raises(InvalidInput, match=cure):
        batch_of_entries(entries, carry=False)


def test_a_connection_that_was_not_awaited_says_so() -> None:
    connecting: Any = headwater.aio.connect("redis://nowhere")
    with pytest.raises(AttributeError, match=r"write `hw = await .*'stream'"):
        connecting.stream("a")
    with pytest.raises(TypeError, match=r"`async with headwater\.aio\.connect"), connecting:
        pass


@pytest.mark.parametrize(
    "kind", [Group, TopicGroup, Queue, AsyncGroup, AsyncTopicGroup, AsyncQueue]
)
def test_an_option_that_no_worker_takes_is_refused_where_it_is_written(kind: Any) -> None:
    with pytest.raises(TypeError, match="'concurency'; did you mean 'concurrency'"):
        kind.worker(None, concurency=8)


def test_a_source_calls_the_store_its_url() -> None:
    with pytest.raises(InvalidInput, match="unknown option 'store'; did you mean 'url'"):
        SourceOptions({"store": "embedded:"}, ["stream", "url"])


def test_a_database_is_said_to_run_only_if_it_is_a_server() -> None:
    assert "check that it runs" in str(DatabaseUnreachable("postgresql://h/db", "gone"))
    assert "you may write to it" in str(DatabaseUnreachable("sqlite:///app.db", "unable to open"))
    assert "other program" in str(DatabaseUnreachable("sqlite:///app.db", "database is locked"))


def test_missing_tables_are_made_by_a_call_or_by_a_command() -> None:
    said = str(NotCreated("headwater_outbox"))
    assert "create_all()" in said
    assert "`headwater outbox create --db URL`" in said
