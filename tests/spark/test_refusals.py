"""What cannot be meant is refused by every format, in one line, before anything runs."""

from __future__ import annotations

from typing import Any

import pytest

from headwater import InvalidInput
from headwater.spark.engine.columns import parse_ddl
from headwater.spark.icks import IckSource
from headwater.spark.log.source import HeadwaterSource
from headwater.spark.queues import QueueSource
from headwater.spark.timelines import TimelineSource

LOG, QUEUE, ICK, FARM = HeadwaterSource, QueueSource, IckSource, TimelineSource
NAMED: dict[Any, dict[str, str]] = {
    LOG: {"stream": "s"},
    QUEUE: {"queue": "q"},
    ICK: {"channel": "c"},
    FARM: {"instances": "a:1"},
}
ROWS = {
    LOG: "value string",
    QUEUE: "value string",
    ICK: "member string, score double",
    FARM: "key string, score bigint, member string",
}
OPTIONS = [
    (LOG, {}, "add .option('stream', ...)"),
    (LOG, {"stream": "s", "topic": "t"}, "give one of them"),
    (LOG, {"stream": "br{ace}"}, "must not contain"),
    (LOG, {"stream": "s", "partitions": "3"}, "'partitions' is for a topic"),
    (LOG, {"stream": "s", "producer": "p"}, "go together"),
    (LOG, {"stream": "s", "sequence": "-1", "producer": "p"}, "from 0 to"),
    (LOG, {"stream": "s", "strema": "x"}, "did you mean 'stream'?"),
    (QUEUE, {}, "option 'queue' is missing"),
    (QUEUE, {"queue": "a b"}, "must not contain ' '"),
    (QUEUE, {"queue": "q", "stat": "ready"}, "unknown option 'stat'"),
    (QUEUE, {"queue": "q", "producer": "p"}, "go together"),
    (QUEUE, {"queue": "q" * 190}, "too long together"),
    (ICK, {}, "one of the options 'ick' and 'channel'"),
    (ICK, {"ick": "a", "channel": "b"}, "one of the options 'ick' and 'channel'"),
    (ICK, {"ick": "a", "shards": "3"}, "'shards' is for a channel"),
    (ICK, {"channel": "a", "shards": "0"}, "from 1 to 1024, not '0'"),
    (ICK, {"channel": "a b"}, "must not contain ' '"),
    (ICK, {"channel": "a", "shard": "3"}, "did you mean 'shards'"),
    (FARM, {}, "no farm is named"),
    (FARM, {"instances": ";"}, "lacks an instance"),
    (FARM, {"instances": "a:1", "hash": "md5"}, "murmur3"),
    (FARM, {"instances": "a:1", "maxSize": "0"}, "maxSize"),
    (FARM, {"instances": "a:1", "horizon": "x"}, "horizon"),
    (FARM, {"instances": "a:1", "quorum": "7"}, "write_quorum"),
    (FARM, {"instances": "a:1", "instance": "b"}, "unknown option"),
]
COLUMNS = [
    (LOG, {}, "value int", "column 'value' must be binary or string, not int"),
    (LOG, {}, "tag string", "no column 'value' among ['tag']"),
    (LOG, {}, "value string, tag int", "column 'tag' must be string, not int"),
    (LOG, {}, "value string, partition int", "'partition' is for a topic"),
    (LOG, {}, "value string, other int", "column 'other' has no place in the log"),
    (QUEUE, {}, "id string", "no place in a queue, which takes value"),
    (QUEUE, {}, "value double", "'value' must be binary or string, not double"),
    (QUEUE, {}, "priority int", "no column 'value'"),
    (
        *(ICK, {"ick": "a", "channel": ""}, "member string, score double, not_before bigint"),
        "'not_before' has no place in an Ick, which takes member, score",
    ),
    (ICK, {}, "member string", "no column 'score'"),
    (ICK, {}, "member string, score string", "'score' must be double or"),
    (FARM, {}, f"{ROWS[FARM]}, time double", "no place in timelines"),
]


def plan(source: Any, url: str, options: dict[str, str]) -> Any:
    return source(options if source is FARM else {"url": url, **options})


@pytest.mark.parametrize(("source", "options", "words"), OPTIONS)
def test_options_that_cannot_be_meant(
    embedded_url: str,
    monkeypatch: pytest.MonkeyPatch,
    source: Any,
    options: dict[str, str],
    words: str,
) -> None:
    monkeypatch.delenv("HEADWATER_INSTANCES", raising=False)
    given = plan(source, embedded_url, options)
    with pytest.raises(InvalidInput) as caught:
        given.writer(parse_ddl(ROWS[source]), overwrite=False)
    assert words in str(caught.value)
    if source is FARM and "quorum" not in options:
        with pytest.raises(InvalidInput) as caught:
            given.schema()
        assert words in str(caught.value)


@pytest.mark.parametrize(("source", "options", "columns", "words"), COLUMNS)
def test_columns_that_have_no_place(
    embedded_url: str, source: Any, options: dict[str, str], columns: str, words: str
) -> None:
    given = plan(source, embedded_url, NAMED[source] | options)
    with pytest.raises(InvalidInput) as caught:
        given.writer(parse_ddl(columns), overwrite=False)
    assert words in str(caught.value)


@pytest.mark.parametrize("source", NAMED)
def test_nothing_is_overwritten_and_a_read_has_its_own_columns(
    embedded_url: str, source: Any
) -> None:
    given = plan(source, embedded_url, NAMED[source] | {"checkpointLocation": "/c"})
    rows = parse_ddl(ROWS[source])
    for write in (given.writer, given.streamWriter):
        with pytest.raises(InvalidInput, match="only added to"):
            write(rows, overwrite=True)
    with pytest.raises(InvalidInput, match="leave the schema out"):
        given.reader(parse_ddl("tag int"))


@pytest.mark.parametrize("source", [LOG, QUEUE])
def test_a_streaming_query_has_its_own_producer(embedded_url: str, source: Any) -> None:
    given = plan(source, embedded_url, NAMED[source] | {"producer": "p", "sequence": "1"})
    with pytest.raises(InvalidInput, match="means nothing in a streaming query"):
        given.streamWriter(parse_ddl(ROWS[source]), overwrite=False)
