"""A topic against a model of it: a list per partition, and what is next and pending in each."""

from __future__ import annotations

import secrets
from collections import Counter
from typing import Any, ClassVar, Literal
from zlib import crc32

import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from headwater import Headwater, TopicMessage
from headwater.log.handles import Start
from tests.support.examples import FORMS, KINDS, MODEL_SETTINGS, everywhere, meant, patient, span_of
from tests.support.groups import FAR
from tests.support.watch import let_pass

PARTITIONS = 3
SIZES = st.sampled_from([1, 5, 30, 400])
TAGS = st.sampled_from([1, 4, 60])

Row = tuple[str, bytes, dict[str, bytes]]


class TopicMachine(RuleBasedStateMachine):
    client: ClassVar[Headwater]

    def __init__(self) -> None:
        super().__init__()
        self.name = f"model-{secrets.token_hex(6)}"
        self.topic = self.client.topic(self.name, partitions=PARTITIONS)
        self.group = self.topic.group("g", dead_letters=True)
        self.rows: list[list[Row]] = [[] for _ in range(PARTITIONS)]
        self.first = [1] * PARTITIONS
        self.next = [1] * PARTITIONS
        self.pending: dict[tuple[int, int], int] = {}
        self.due: set[tuple[int, int]] = set()
        self.seen: dict[tuple[int, int], TopicMessage] = {}
        self.dead: Counter[tuple[int, int]] = Counter()
        self.answers: dict[tuple[str, int], tuple[list[Row], dict[int, range]]] = {}
        self.count = 0
        self.group.read(0)

    def teardown(self) -> None:
        for stream in self.client.streams():
            if stream.startswith(f"{self.name}/") and stream.endswith(".dead"):
                self.client.stream(stream).delete()
        self.topic.delete()

    def make(self, size: int, tags: int) -> list[Row]:
        """Make rows; in every other batch, two of three have headers."""
        self.count += 1
        return [
            (
                f"t{i % tags}",
                b"%d.%d" % (self.count, i),
                {"n": b"%d" % i} if self.count % 2 and i % 3 < 2 else {},
            )
            for i in range(size)
        ]

    def place(self, rows: list[Row]) -> dict[int, range]:
        """Enter rows, each in the partition of its tag; returns the offsets they must get."""
        offsets: dict[int, range] = {}
        for row in rows:
            tag = row[0]
            place = crc32(tag.encode()) % PARTITIONS
            self.rows[place].append(row)
            end = len(self.rows[place])
            offsets[place] = range(offsets[place].start if place in offsets else end, end + 1)
        return offsets

    @initialize(sizes=st.lists(SIZES, min_size=1, max_size=3), count=st.integers(0, 40))
    def begin_with_some(self, sizes: list[int], count: int) -> None:
        """Hypothesis leaves out some rules in every run; an empty topic proves little."""
        for size in sizes:
            self.produce("p", size, 60)
        self.read(count, FAR, int)

    @rule(tags=TAGS)
    def write(self, tags: int) -> None:
        (row,) = self.make(1, tags)
        tag, value, headers = row
        placed = self.topic.write(tag, value, headers=headers)
        assert {placed.partition: range(placed.offset, placed.offset + 1)} == self.place([row])

    @rule(size=SIZES, tags=TAGS, arrow=st.booleans())
    def write_many(self, size: int, tags: int, arrow: bool) -> None:
        rows = self.make(size, tags)
        if arrow:
            maps = pa.array([list(h.items()) for _, _, h in rows], pa.map_("string", "binary"))
            tags_and_values = {"tag": [t for t, *_ in rows], "value": [v for _, v, _ in rows]}
            table = pa.table(tags_and_values | {"headers": maps})
            assert self.topic.append(table) == self.place(rows)
        else:
            assert self.topic.write_many(rows) == self.place(rows)

    @rule(producer=st.sampled_from("pq"), size=SIZES, tags=TAGS)
    def produce(self, producer: str, size: int, tags: int) -> None:
        rows = self.make(size, tags)
        sequence = self.count
        answer = self.topic.write_many(rows, producer=producer, sequence=sequence)
        assert answer == self.place(rows)
        self.answers[producer, sequence] = (rows, answer)

    @rule(choice=st.floats(0, 1))
    def repeat(self, choice: float) -> None:
        if self.answers:
            chosen = sorted(self.answers)[round(choice * (len(self.answers) - 1))]
            rows, answer = self.answers[chosen]
            again = self.topic.write_many(rows, producer=chosen[0], sequence=chosen[1])
            assert again == answer

    @rule(partition=st.integers(0, PARTITIONS - 1), choice=st.floats(0, 1))
    def evict_what_is_done(self, partition: int, choice: float) -> None:
        done = min((o for p, o in self.pending if p == partition), default=self.next[partition])
        limit = round(choice * (done - 1))
        gone = max(0, limit - self.first[partition] + 1)
        assert self.topic.partition(partition).evict(limit) == gone
        self.first[partition] += gone

    @rule(partition=st.integers(0, PARTITIONS - 1))
    def seal(self, partition: int) -> None:
        self.topic.partition(partition).seal()

    @rule(
        count=st.sampled_from([0, 1, 7, 100, 10_000]),
        ack_ms=st.sampled_from([None, FAR, FAR]),
        kind=KINDS,
    )
    def read(self, count: int, ack_ms: int | None, kind: type) -> None:
        terms: Any = {"ack_ms": span_of(ack_ms, kind)}
        got = self.group.read(count, **terms)
        new = sum(len(self.rows[p]) - self.next[p] + 1 for p in range(PARTITIONS))
        assert len(got) == min(count, len(self.due) + new)
        for message in got:
            self.check(message)
            self.seen[message.partition, message.offset] = message
            key = (message.partition, message.offset)
            if key in self.due:
                self.due.remove(key)
            else:
                assert message.offset == self.next[message.partition]
                self.next[message.partition] += 1
            if ack_ms is None:
                self.pending.pop(key, None)
            else:
                self.pending[key] = message.attempt

    def check(self, message: TopicMessage) -> None:
        row = self.rows[message.partition][message.offset - 1]
        assert (message.tag, message.value, dict(message.headers)) == row
        assert message.attempt == self.pending.get((message.partition, message.offset), 0) + 1

    def some_pending(self, choice: float, share: float) -> list[tuple[int, int]]:
        keys = sorted(self.pending)
        start = round(choice * len(keys))
        return keys[start : start + 1 + round(share * len(keys))]

    def meant(self, keys: list[tuple[int, int]], form: str) -> list[Any]:
        """Return messages as they were read, as pairs, or as offsets or ranges by partition."""
        if form == "messages":
            return [self.seen.get(key, key) for key in keys]
        if form == "pairs":
            return keys
        places = {place: [at for p, at in keys if p == place] for place, _ in keys}
        spans = {place: [(at, at) for at in some] for place, some in places.items()}
        return [{place: meant(some, form, {}) for place, some in spans.items()}]

    @rule(choice=st.floats(0, 1), share=st.floats(0, 1), form=FORMS)
    def ack(self, choice: float, share: float, form: str) -> None:
        keys = self.some_pending(choice, share)
        assert self.group.ack(*self.meant(keys, form), *keys) == len(keys)
        for key in keys:
            del self.pending[key]
            self.due.discard(key)

    @rule(
        choice=st.floats(0, 1),
        share=st.floats(0, 1),
        delay_ms=st.sampled_from([0, FAR]),
        form=FORMS,
        kind=KINDS,
    )
    def nack(self, choice: float, share: float, delay_ms: int, form: str, kind: type) -> None:
        keys = self.some_pending(choice, share)
        delay = span_of(delay_ms, kind)
        assert self.group.nack(*self.meant(keys, form), delay_ms=delay) == len(keys)
        self.due = self.due - set(keys) if delay_ms else self.due | set(keys)

    @rule(choice=st.floats(0, 1), share=st.floats(0, 1), form=FORMS, kind=KINDS)
    def extend(self, choice: float, share: float, form: str, kind: type) -> None:
        keys = self.some_pending(choice, share)
        terms: Any = {"ack_ms": span_of(FAR, kind)}
        assert self.group.extend(*self.meant(keys, form), **terms) == len(keys)
        self.due -= set(keys)

    @rule(
        places=st.dictionaries(
            st.integers(0, PARTITIONS - 1),
            st.floats(0, 1) | st.sampled_from(["first", "last"]),
            max_size=PARTITIONS,
        )
    )
    def seek(self, places: dict[int, float | Literal["first", "last"]]) -> None:
        asked: dict[int, Start] = {}
        goals: dict[int, int] = {}
        for place, at in places.items():
            first, end = self.first[place], len(self.rows[place]) + 1
            if at == "first" or at == "last":
                asked[place], goals[place] = at, first if at == "first" else end
            else:
                asked[place] = goals[place] = first + round(at * (end - first))
        assert self.group.seek(asked) == goals
        for place, goal in goals.items():
            self.next[place] = goal
        self.pending = {key: n for key, n in self.pending.items() if key[0] not in goals}
        self.due = {key for key in self.due if key[0] not in goals}

    @rule(count=st.sampled_from([1, 7, 100]))
    def give_up(self, count: int) -> None:
        """Let new messages expire: they become dead letters, after their one attempt."""
        if self.due:
            return
        taken = self.group.read(count, ack_ms=FAR, expire_ms=1)
        let_pass(self.client, 1)
        assert self.group.bury() == len(taken)
        for message in taken:
            assert message.offset == self.next[message.partition]
            self.next[message.partition] += 1
            self.dead[message.partition, message.offset] += 1

    def letters(self) -> Counter[tuple[int, int]]:
        return Counter((letter.partition, letter.origin) for letter in self.group.dead(10_000))

    @rule(count=st.sampled_from([1, 7, 1000]))
    def redrive(self, count: int) -> None:
        before = self.letters()
        done = self.group.redrive(count)
        back = before - self.letters()
        assert {p: r.redriven for p, r in done.items()} == {
            p: sum(n for (place, _), n in back.items() if place == p) for p in range(PARTITIONS)
        }
        self.dead -= back
        for key in back:
            # What a seek made new again is delivered by itself.
            if key[1] < self.next[key[0]]:
                self.pending[key] = 0
                self.due.add(key)

    @rule(count=st.sampled_from([1, 7, 1000]), named=st.booleans())
    def discard(self, count: int, named: bool) -> None:
        before = self.letters()
        some = self.group.dead(count) if named else None
        done = self.group.discard(some, count=count)
        gone = before - self.letters()
        assert done == sum(gone.values()) == min(count, sum(before.values()))
        if some is not None:
            assert gone == Counter((letter.partition, letter.origin) for letter in some)
        self.dead -= gone

    @rule()
    def remove(self) -> None:
        assert (self.group.remove(), self.group.remove()) == (True, False)
        self.group.read(0)
        self.next = list(self.first)
        self.pending, self.due, self.dead = {}, set(), Counter()

    @rule()
    def scan(self) -> None:
        found: list[list[Row]] = [[] for _ in range(PARTITIONS)]
        for batch in self.topic.scan(headers=True):
            for row in batch.to_pylist():
                entry = (row["tag"], row["value"], dict(row["headers"]))
                found[row["partition"]].append(entry)
        assert found == [self.rows[p][self.first[p] - 1 :] for p in range(PARTITIONS)]

    @invariant()
    def info_tells_the_truth(self) -> None:
        infos = self.topic.info()
        assert [i.last for i in infos] == [len(rows) for rows in self.rows]
        assert [i.first for i in infos] == self.first
        groups = self.group.info()
        assert [g.next for g in groups] == self.next
        for place, group in enumerate(groups):
            assert group.pending == sum(p == place for p, _ in self.pending)
            assert group.dead == sum(n for (p, _), n in self.dead.items() if p == place)
            assert group.lag == len(self.rows[place]) - self.next[place] + 1


@patient
@everywhere
def test_a_topic_is_a_list_per_partition(client: Headwater) -> None:
    TopicMachine.client = client
    run_state_machine_as_test(TopicMachine, settings=MODEL_SETTINGS)
