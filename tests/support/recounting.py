"""What a stream says of itself, counted again from its keys and by plain reads."""

from __future__ import annotations

from headwater import Stream
from headwater.log import node
from headwater.log.keys import index_key, nodes_key, stream_key, tail_key
from headwater.log.replies import IndexedNode
from tests.support.servers import Server


def assert_counts_are_right(server: Server, stream: Stream) -> None:
    """Fail unless all counts of a stream, its index and its nodes agree with what it holds."""
    info, key = stream.info(), stream_key(stream.name)
    messages = [m for m in stream.read(info.first, info.last + 1) if m is not None]
    assert info.length == len(messages)
    assert sum(batch.num_rows for batch in stream.scan()) == len(messages)
    with server.client() as raw:
        facts = {name.decode(): value for name, value in raw.hgetall(key).items()}
        index = raw.zrange(index_key(key), 0, -1, withscores=True)
        nodes = raw.hgetall(nodes_key(key))
        tail = raw.xrevrange(tail_key(key), count=1)
    assert "replacing" not in facts
    assert not tail or int(tail[0][0][2:]) == info.last, "the tail ends where the stream does"
    size = holes = rows = 0
    before = None
    for member, last in index:
        each = IndexedNode.of(member)
        assert before is None or each.base == before + 1, "nodes lie side by side"
        before = int(last)
        blob = nodes.pop(b"%d" % each.base)
        assert len(blob) == each.size
        assert (node.unpack(blob).num_rows if blob else 0) == each.messages
        size, rows = size + each.size, rows + each.messages
        holes += before - each.base + 1 - each.messages
    assert before is None or before == info.sealed
    assert nodes == {}, "every node is in the index"
    assert (int(facts.get("bytes", 0)), int(facts.get("holes", 0))) == (size, holes)
    assert info.nodes == len(index)
