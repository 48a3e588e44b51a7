"""Operations of several calls that end between any two of them: whoever comes next finishes."""

from __future__ import annotations

import os
import random

import pyarrow as pa
import pytest

import headwater
from headwater.log import dead_letters, keys, retention, writing
from headwater.log.handles import GroupHandle
from headwater.log.replies import NodesReply
from headwater.store.call import Call
from headwater.store.store import Store
from tests.support.stepping import Make, Stepper, handle_of, interrupt_everywhere, take_turns
from tests.support.watch import let_pass

pytestmark = [
    pytest.mark.fault,
    pytest.mark.parametrize("store_url", ["plain"], indirect=True),
    pytest.mark.damages,
]
LONG = int(os.environ.get("HEADWATER_LONG") or 1)


def expired_group(hw: headwater.Headwater, name: str, messages: int) -> headwater.Group:
    """A group all of whose messages have expired, in several ranges."""
    stream = hw.stream(name)
    stream.write_many([(f"t{i}", b"%d" % i) for i in range(1, messages + 1)])
    group = stream.group("g", dead_letters=True)
    taken: list[headwater.Message] = []
    while len(taken) < messages:
        taken += group.read(4, ack_ms=10_000, expire_ms=1)
    let_pass(hw, 2)
    return group


def check_letters(hw: headwater.Headwater, group: headwater.Group, name: str, count: int) -> None:
    letters = group.dead(1000)
    assert [letter.origin for letter in letters] == list(range(1, count + 1))
    assert [letter.value for letter in letters] == [b"%d" % i for i in range(1, count + 1)]
    dead = hw.stream(f"{name}.g.dead")
    assert [m and m.value for m in dead.read(1, 1000)] == [b"%d" % i for i in range(1, count + 1)]
    facts = group.info()
    assert (facts.pending, facts.dead, facts.expired) == (0, count, count)


def test_a_burial_that_stops_anywhere_is_finished_by_another(
    hw: headwater.Headwater, store: Store, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "BATCH", 5)

    def prepare(case: int) -> Make:
        expired_group(hw, f"{name}-{case}", 18)
        return lambda: dead_letters.give_up(GroupHandle(handle_of(f"{name}-{case}"), "g", "other"))

    for case, make in enumerate(interrupt_everywhere(store, prepare)):
        hw.store.run(make())
        check_letters(hw, hw.stream(f"{name}-{case}").group("g"), f"{name}-{case}", 18)


def test_a_burial_that_a_seek_overtakes_takes_nothing_from_those_who_read_again(
    hw: headwater.Headwater, store: Store, name: str
) -> None:
    def prepare(case: int) -> Make:
        expired_group(hw, f"{name}-{case}", 5)
        return lambda: dead_letters.give_up(GroupHandle(handle_of(f"{name}-{case}"), "g", "other"))

    for case, make in enumerate(interrupt_everywhere(store, prepare)):
        group = hw.stream(f"{name}-{case}").group("g")
        group.seek(1)
        assert len(group.read(10, ack_ms=600_000)) == 5
        hw.store.run(make())
        assert group.info().pending == 5
        assert group.ack((1, 5)) == 5


@pytest.mark.parametrize("seed", range(6 * LONG))
def test_burials_at_once_bury_each_letter_once(
    seed: int, hw: headwater.Headwater, store: Store, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "BATCH", 5)
    group = expired_group(hw, name, 23)
    others = [GroupHandle(handle_of(name), "g", f"m{place}") for place in range(3)]
    take_turns(
        [Stepper(store, dead_letters.give_up(other)) for other in others], random.Random(seed)
    )
    check_letters(hw, group, name, 23)


@pytest.fixture
def small_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes of ten messages, so that a few messages fill several."""
    for module in (keys, writing, retention):
        monkeypatch.setattr(module, "NODE_MESSAGES", 10)
    monkeypatch.setattr(writing, "_FIT_MESSAGES", 5)


class Model:
    """What was written, and what may be gone of it."""

    def __init__(self) -> None:
        self.written: dict[int, tuple[str, bytes]] = {}
        self.evicted = 0
        self.compacted = False
        self.markers_go = False

    def check(self, stream: headwater.Stream) -> None:
        """Hold the stream against the model."""
        facts = stream.info()
        last = len(self.written)
        assert (facts.first, facts.last) == (self.evicted + 1, last)
        found = stream.read(1, last + 10)
        assert len(found) == last
        assert found[: self.evicted] == [None] * self.evicted
        newest = {tag: offset for offset, (tag, _) in sorted(self.written.items())}
        there = {m.offset for m in found if m is not None}
        for offset, message in enumerate(found, 1):
            tag, value = self.written[offset]
            if message is not None:
                assert (message.offset, message.tag, message.value) == (offset, tag, value)
            elif offset > self.evicted:
                assert self.compacted, f"{offset} is lost"
                marker = not value and self.markers_go
                assert offset != newest[tag] or marker, f"the last of {tag} is lost"
        for tag, offset in newest.items():
            gone_marker = offset > self.evicted and offset not in there
            if gone_marker:
                old = [o for o in there if self.written[o][0] == tag]
                assert not old, f"{tag} was deleted, and is back at {old}"
        assert facts.length == len(there)
        scanned = [offset for batch in stream.scan() for offset in batch["offset"].to_pylist()]
        assert scanned == sorted(there)


def write(model: Model, stream: headwater.Stream, count: int) -> None:
    """Write so many messages, in batches of every form; every eighth marks its tag as deleted."""
    while count:
        size = min(count, 1 + len(model.written) % 13)
        begin = len(model.written) + 1
        entries = []
        for offset in range(begin, begin + size):
            # Half of the tags come once. The others are written three times, then deleted, and
            # come back forty messages later.
            tag = f"once-{offset}" if offset % 2 else f"often-{offset // 8 % 5}"
            entries.append((tag, b"" if offset % 8 == 6 else b"%d" % offset))
        offsets = stream.write_many(entries)
        model.written.update(zip(offsets, entries, strict=True))
        count -= size


def filled(hw: headwater.Headwater, name: str, count: int = 75) -> tuple[Model, headwater.Stream]:
    model, stream = Model(), hw.stream(name)
    write(model, stream, count)
    return model, stream


@pytest.mark.usefixtures("small_nodes")
def test_sealing_that_stops_anywhere_loses_nothing(
    hw: headwater.Headwater, store: Store, name: str
) -> None:
    cases: list[tuple[Model, headwater.Stream]] = []

    def prepare(case: int) -> Make:
        cases.append(filled(hw, f"{name}-{case}"))
        return lambda: writing.seal(handle_of(f"{name}-{case}").key, everything=True)

    for make in interrupt_everywhere(store, prepare):
        model, stream = cases[-1]
        model.check(stream)
        write(model, stream, 9)
        hw.store.run(make())
        model.check(stream)
        assert stream.info().sealed == stream.info().last


@pytest.mark.usefixtures("small_nodes")
@pytest.mark.parametrize("marker_ms", [10_000_000, 0])
def test_compaction_that_stops_anywhere_loses_nothing_and_brings_nothing_back(
    marker_ms: int, hw: headwater.Headwater, store: Store, name: str
) -> None:
    cases: list[tuple[Model, headwater.Stream]] = []

    def prepare(case: int) -> Make:
        model, stream = filled(hw, f"{name}-{case}")
        model.compacted, model.markers_go = True, not marker_ms
        cases.append((model, stream))
        return lambda: retention.compact(handle_of(f"{name}-{case}"), marker_ms)

    for make in interrupt_everywhere(store, prepare):
        model, stream = cases[-1]
        model.check(stream)
        hw.store.run(make())
        model.check(stream)
        kept = [m for m in stream.read(1, 100) if m is not None]
        assert len({message.tag for message in kept}) == len(kept), "one message of a tag"
        assert bool([m for m in kept if not m.value]) == bool(marker_ms)


@pytest.mark.usefixtures("small_nodes")
def test_compaction_leaves_a_stream_alone_that_was_created_again_meanwhile(
    hw: headwater.Headwater, store: Store, name: str
) -> None:
    """The tags that it has seen are those of the stream before."""

    def prepare(case: int) -> Make:
        filled(hw, f"{name}-{case}")
        return lambda: retention.compact(handle_of(f"{name}-{case}"), 0)

    over, case = False, 0
    while not over:
        case += 1
        stepper = Stepper(store, prepare(case)())
        while stepper.calls < case and not over:
            over = stepper.step()
        stream = hw.stream(f"{name}-{case}")
        tags = [message.tag for message in stream.read(1, 100) if message is not None]
        stream.delete()
        stream.write_many([(tag, b"new") for tag in tags])
        stream.seal()
        stepper.run()
        left = [message.tag for message in stream.read(1, 100) if message is not None]
        # Asked early, it compacts the new stream, which is what it is for.
        assert left == tags or len(left) == len(set(tags)) == len(set(left))
    assert case > 5


@pytest.mark.usefixtures("small_nodes")
def test_a_marker_stays_when_something_older_of_its_tag_was_left_to_others(
    hw: headwater.Headwater, store: Store, name: str
) -> None:
    """Somebody replaces the oldest node, with what is in it, at any moment."""
    times = {"time": list(range(1000, 1010))}
    over, case = False, 0
    while not over:
        case += 1
        stream, key = hw.stream(f"{name}-{case}"), handle_of(f"{name}-{case}").key
        for tags, value in ((["a", *"bcdefghij"], b"v"), (["k"] * 10, b"v"), (["a"] * 10, b"")):
            stream.append(pa.table({"tag": tags, "value": [value] * 10, **times}))
        stream.seal()
        stepper = Stepper(store, retention.compact(handle_of(stream.name), 0))
        while stepper.calls < case and not over:
            over = stepper.step()
        found = NodesReply.of(hw.store.ask(Call("hw_stream_nodes", key, (10, 1), read_only=True)))
        base, last, *_, version = found.nodes[0]
        rows = hw.store.run(retention.rows_of(handle_of(stream.name), base, last))
        words = retention.node_words(rows, base, last)
        replaced = (found.created, base, *words, base, last, version)
        assert hw.store.ask(Call("hw_stream_replace", key, replaced))
        stepper.run()
        kept = [(message.tag, message.value) for message in stream.read(1, 40) if message]
        assert ("a", b"v") not in kept or ("a", b"") in kept
    assert case > 5


@pytest.mark.usefixtures("small_nodes")
def test_a_part_of_a_log_is_rewritten_without_its_neighbours(
    hw: headwater.Headwater, name: str
) -> None:
    model, stream = filled(hw, name, 80)
    run = hw.store.run
    rule = run(retention.survey(handle_of(name), 10_000_000))
    written = [message.offset for message in stream.read(1, 100) if message is not None]

    def nothing(batch: pa.RecordBatch) -> pa.BooleanArray:
        return pa.array([False] * batch.num_rows)

    found = hw.store.ask(Call("hw_stream_nodes", handle_of(name).key, (80, 64), read_only=True))
    base, last, *_ = sorted(NodesReply.of(found).nodes)[3]
    done = run(retention.rewrite(handle_of(name), rule, nothing, base, last))
    assert done == (last - base + 1, False)
    left = [message.offset for message in stream.read(1, 100) if message is not None]
    assert left == [offset for offset in written if not base <= offset <= last]
    # A border within a node: somebody has merged nodes since the parts were cut.
    assert run(retention.rewrite(handle_of(name), rule, nothing, 3, base - 1)).lost_race
    assert stream.read(1, 2) != [None, None]
    assert model.written


@pytest.mark.usefixtures("small_nodes")
@pytest.mark.parametrize("limit", [44, 47, 70])
def test_eviction_that_stops_anywhere_is_finished_by_the_next(
    limit: int, hw: headwater.Headwater, store: Store, name: str
) -> None:
    cases: list[tuple[Model, headwater.Stream]] = []

    def prepare(case: int) -> Make:
        model, stream = filled(hw, f"{name}-{case}", 90)
        stream.compact()  # a node with holes can only be cut by rewriting it
        model.compacted = True
        cases.append((model, stream))
        return lambda: retention.evict(handle_of(f"{name}-{case}"), limit)

    for make in interrupt_everywhere(store, prepare):
        model, stream = cases[-1]
        model.evicted = stream.info().first - 1
        assert model.evicted <= limit
        model.check(stream)
        hw.store.run(make())
        model.evicted = limit
        model.check(stream)


@pytest.mark.usefixtures("small_nodes")
@pytest.mark.parametrize("seed", range(12 * LONG))
def test_upkeep_that_takes_turns_with_writers_and_readers(
    seed: int, hw: headwater.Headwater, store: Store, name: str
) -> None:
    chance = random.Random(seed)
    model, stream = filled(hw, name, 60)
    model.compacted = True
    model.markers_go = chance.random() < 0.5
    marker_ms = 0 if model.markers_go else 10_000_000
    group = stream.group("g")
    group.read(0)
    stream.retain(max_count=1000)
    seen: list[int] = []
    for _ in range(4):
        limit = chance.randrange(1, len(model.written))
        upkeep: list[Make] = [
            lambda: writing.seal(handle_of(name).key, everything=True),
            lambda: writing.seal(handle_of(name).key, everything=False),
            lambda: retention.compact(handle_of(name), marker_ms),
            lambda: retention.keep(handle_of(name)),
            lambda limit=limit: retention.evict(handle_of(name), limit),  # type: ignore[misc]
        ]
        chosen = chance.sample(upkeep, 3)
        if upkeep[4] in chosen:
            model.evicted = max(model.evicted, limit)
        steppers = [Stepper(store, make()) for make in chosen]
        while steppers:
            stepper = chance.choice(steppers)
            if stepper.step():
                steppers.remove(stepper)
            if chance.random() < 0.3:
                write(model, stream, chance.randrange(1, 15))
            if chance.random() < 0.3:
                seen += [message.offset for message in group.read(7)]
        model.check(stream)
    while messages := group.read(50):
        seen += [message.offset for message in messages]
    assert seen == sorted(set(seen))
    there = [m.offset for m in stream.read(1, len(model.written)) if m is not None]
    assert set(there) <= set(seen), "what is there now was there when the group came by"
