"""What the crossed model of a group knows: what became of each message, and what may be delivered.

Nothing here knows how a group is built. What the promises leave open is *vague*: the message may be
delivered, be given up or end at any time; it holds up no other message that must wait, and excuses
any other message that should come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from headwater.kernel.inputs import NO_LIMITS, Limits, Rate

NEVER = 10**16


@dataclass
class Bucket:
    """Between how few and how many tokens a token bucket may have."""

    rate: Rate
    at_ms: int
    least: Fraction = Fraction(0)
    most: Fraction = field(init=False)

    def __post_init__(self) -> None:
        self.most = Fraction(self.rate.burst)

    def pass_time(self, now_ms: int) -> None:
        """Fill it; a clock that was set back may have emptied or filled it, whichever is worse."""
        passed_ms, burst = now_ms - self.at_ms, Fraction(self.rate.burst)
        if passed_ms < 0:
            self.least, self.most = Fraction(0), burst
        elif passed_ms > 0:
            # A server counts microseconds of its own while its clock stands, up to one millisecond.
            self.least = min(self.least + self._in(passed_ms - 1), burst)
            self.most = min(self.most + self._in(passed_ms + 1), burst)
        self.at_ms = now_ms

    def _in(self, ms: int) -> Fraction:
        return Fraction(ms * self.rate.messages, self.rate.period_ms)

    def take(self, messages: int) -> None:
        """Deliver messages; fails when there cannot be as many tokens."""
        most = self.most + self._in(1)
        assert messages <= most, f"{messages} delivered where {float(most)} may be"
        self.most = max(self.most - messages, Fraction(0))
        self.least = max(self.least - messages - self._in(1), Fraction(0))


@dataclass
class Known:
    """One message: ``new``, in ``flight``, it ``waits`` for a retry, is ``done`` or ``dead``.

    It is in flight, or waits, until ``until``. ``redriven`` has lost its place in its tag, and
    ``unordered`` was pending before the group kept order. ``uncounted`` was delivered before there
    was a limit per key; ``counted`` waited for a retry when a limit in all was set. ``missed`` was
    evicted before it ended.
    """

    tag: str
    state: str = "new"
    member: int = -1
    until: int = 0
    expire: int = NEVER
    stored: bool = True
    missed: bool = False
    vague: bool = False
    redriven: bool = False
    unordered: bool = False
    uncounted: bool = False
    counted: bool = False

    @property
    def open(self) -> bool:
        return self.state in ("new", "flight", "waits")

    def become(self, state: str) -> None:
        """Begin again, as what was never seen before."""
        self.state, self.member, self.until, self.expire = state, -1, 0, NEVER
        self.missed = self.vague = self.redriven = self.unordered = self.uncounted = (
            self.counted
        ) = False


class CrossedGroup:
    """A group as its promises describe it; ``now_ms`` is the clock of the server."""

    def __init__(self, now_ms: int) -> None:
        # Since when buckets fill: no clock was set back, and no limit changed.
        self.now_ms = self.since_ms = now_ms
        self.messages: dict[int, Known] = {}
        self.first, self.last = 1, 0
        self.begin()

    def begin(self) -> None:
        """Begin as a new group, at the first message that is stored."""
        self.letters: Counter[int] = Counter()
        self.ordered = self.paused = False
        self.limits = NO_LIMITS
        self.buckets: dict[str, Bucket] = {}
        self.most_missed = 0
        self.seek(self.first)

    def seek(self, position: int) -> None:
        for offset, known in self.messages.items():
            known.become("new" if offset >= position else "done")
        self.settle()

    # ── The stream ───────────────────────────────────────────────────────────────────────────

    def write(self, offsets: Iterable[int], tags: Iterable[str]) -> None:
        for offset, tag in zip(offsets, tags, strict=True):
            self.messages[offset] = Known(tag)
            self.last = offset

    def evict(self, first: int) -> None:
        """Note that the stream begins at an offset now."""
        for offset in range(self.first, first):
            known = self.messages[offset]
            self.most_missed += known.open
            # A place that compaction emptied may have been passed over before.
            known.missed = known.open and known.stored
            known.stored = False
        self.first = max(self.first, first)

    def compact(self) -> None:
        """Note that only the last message of each tag is stored."""
        newest = {known.tag: offset for offset, known in self.messages.items()}
        for offset, known in self.messages.items():
            known.stored = known.stored and newest[known.tag] == offset

    # ── Time ─────────────────────────────────────────────────────────────────────────────────

    def set_clock(self, now_ms: int) -> None:
        if now_ms < self.now_ms:
            self.since_ms = now_ms
        self.now_ms = now_ms
        for bucket in self.buckets.values():
            bucket.pass_time(now_ms)
        self.settle()

    def settle(self) -> None:
        """Note what is vague from now on: it has expired, or it is gone and with no member."""
        for offset, known in self.messages.items():
            if known.open and known.state != "new" and known.expire <= self.now_ms:
                known.vague = True
            if known.open and not known.stored and not self.in_flight(offset):
                known.vague = True

    def in_flight(self, offset: int) -> bool:
        known = self.messages[offset]
        return known.state == "flight" and known.until > self.now_ms

    def held(self) -> list[int]:
        """Return what is in flight for certain."""
        return [o for o, known in self.messages.items() if self.in_flight(o) and not known.vague]

    # ── Terms ────────────────────────────────────────────────────────────────────────────────

    def limit(self, limits: Limits) -> None:
        for known in self.messages.values():
            if self.limits.max_in_flight_per_key is None:
                known.uncounted = known.open
            if self.limits.max_in_flight is None:
                known.counted = known.state == "waits"
        self.limits, self.buckets, self.since_ms = limits, {}, self.now_ms

    def keep_order(self) -> None:
        if not self.ordered:
            for known in self.messages.values():
                known.unordered = known.open and known.state != "new"
        self.ordered = True

    def bucket(self, tag: str) -> Bucket | None:
        """Return the bucket of a tag, or with "" that of all; None without such a rate."""
        text = self.limits.rate_per_key if tag else self.limits.rate
        if text is None:
            return None
        if tag not in self.buckets:
            self.buckets[tag] = Bucket(Rate.of(text, "rate"), self.since_ms)
            self.buckets[tag].pass_time(self.now_ms)
        return self.buckets[tag]

    # ── Delivering ───────────────────────────────────────────────────────────────────────────

    def before(self, offset: int) -> list[int]:
        """Return the open messages of the same tag that are before a message."""
        tag = self.messages[offset].tag
        return [o for o, k in self.messages.items() if o < offset and k.open and k.tag == tag]

    def told(self, member: int) -> list[int]:
        """Return what a member has and orders itself: nothing behind what it does not have."""
        mine = {offset for offset in self.held() if self.messages[offset].member == member}
        return [
            offset
            for offset in sorted(mine)
            if not self.messages[offset].tag or mine.issuperset(self.before(offset))
        ]

    def deliver(
        self,
        found: list[int],
        member: int,
        ack_ms: int | None,
        expire_ms: int | None,
        told: list[int],
    ) -> None:
        """Check what one read delivered against the promises, and note it."""
        assert not (found and self.paused), "nothing comes while the group is paused"
        assert len(set(found)) == len(found), "nothing comes twice in one read"
        own = set(told)
        # The place of a message that is gone may cost a token, as long as nobody has met it.
        gone = Counter(k.tag for k in self.messages.values() if k.open and not k.stored)
        gone[""] = gone.total()
        for tag, count in gone.items():
            if bucket := self.bucket(tag):
                bucket.least = max(bucket.least - count, Fraction(0))
        for offset in found:
            assert offset in self.messages, "nothing comes that was not written"
            known = self.messages[offset]
            assert known.stored, "nothing comes that is gone"
            assert known.open, f"nothing comes that is {known.state}"
            assert known.vague or known.until <= self.now_ms, (
                "nothing comes that somebody has, or that waits"
            )
            if self.ordered and known.tag and not (known.redriven or known.unordered):
                wrong = {o for o in self.before(offset) if self._is_ordered(o)} - own
                assert not wrong, f"{offset} comes before {wrong} of its tag"
            own.add(offset)
        for offset in found:
            self._enter(self.messages[offset], member, ack_ms, expire_ms)
        self._check_limits(found, ack_ms)
        self.settle()

    def _is_ordered(self, offset: int) -> bool:
        known = self.messages[offset]
        return not (known.vague or known.redriven or known.unordered)

    def _enter(self, known: Known, member: int, ack_ms: int | None, expire_ms: int | None) -> None:
        known.vague = known.uncounted = known.counted = False
        if ack_ms is None:
            known.become("done")
            return
        if known.expire == NEVER and expire_ms is not None:
            known.expire = self.now_ms + expire_ms
        known.state, known.member = "flight", member
        known.until = min(self.now_ms + ack_ms, known.expire)

    def _check_limits(self, found: list[int], ack_ms: int | None) -> None:
        tags = Counter(self.messages[o].tag for o in found if self.messages[o].tag)
        held, most = self.held(), self.limits.max_in_flight
        if found and ack_ms is not None and most is not None:
            assert len(held) <= most, f"{len(held)} in flight where {most} may be"
        most = self.limits.max_in_flight_per_key
        for tag, count in tags.items():
            of_tag = [
                o for o in held if self.messages[o].tag == tag and not self.messages[o].uncounted
            ]
            if most is not None and ack_ms is not None:
                assert len(of_tag) <= most, f"{len(of_tag)} of a tag in flight where {most} may be"
            if bucket := self.bucket(tag):
                bucket.take(count)
        if found and (bucket := self.bucket("")):
            bucket.take(len(found))

    def missing(self) -> list[int]:
        """Return what should have come to a member that has read until nothing more came."""
        if self.paused or self._is_full(None):
            return []
        # Nobody knows the tag of what is gone from the stream while a member handles it.
        if any(k.open and not k.stored and k.until > self.now_ms for k in self.messages.values()):
            return []
        return [o for o in self.messages if self._should_come(o)]

    def _should_come(self, offset: int) -> bool:
        known = self.messages[offset]
        if not known.open or not known.stored or known.vague or known.until > self.now_ms:
            return False
        if not known.tag:
            return True
        if self.ordered and (self.before(offset) or self._flying(known.tag)):
            return False
        return not self._is_full(known.tag)

    def _flying(self, tag: str | None) -> int:
        """Count what may be in flight, of a tag or in all."""
        return sum(
            known.open
            and (tag is None or known.tag == tag)
            and (known.state == "flight" or (tag is None and known.counted))
            and (known.vague or known.until > self.now_ms)
            for known in self.messages.values()
        )

    def _is_full(self, tag: str | None) -> bool:
        most = self.limits.max_in_flight if tag is None else self.limits.max_in_flight_per_key
        if most is not None and self._flying(tag) >= most:
            return True
        bucket = self.bucket(tag or "")
        return bucket is not None and bucket.least < 1

    # ── Ending ───────────────────────────────────────────────────────────────────────────────

    def bounds(self, offsets: Iterable[int], upto: int) -> tuple[int, int]:
        """Return between how few and how many of some offsets below another are pending."""
        among = [self.messages[o] for o in offsets if o < upto and o in self.messages]
        return sum(k.open and not k.vague for k in among), sum(k.open for k in among)

    def end(self, offsets: Iterable[int], upto: int) -> None:
        for offset in offsets:
            if offset < upto and offset in self.messages and self.messages[offset].open:
                self.messages[offset].become("done")

    def wait(self, offsets: Iterable[int], delay_ms: int) -> None:
        for offset in offsets:
            known = self.messages[offset]
            known.state, known.until = "waits", min(self.now_ms + delay_ms, known.expire)
        self.settle()

    def extend(self, offsets: Iterable[int], ack_ms: int) -> None:
        for offset in offsets:
            known = self.messages[offset]
            known.until = min(self.now_ms + ack_ms, known.expire)
        self.settle()

    def bury(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            self.messages[offset].become("dead")
            self.letters[offset] += 1

    def found_dead(self, letters: Counter[int]) -> None:
        """Compare the dead letters; what expired may have become one meanwhile."""
        for offset, count in (letters - self.letters).items():
            known = self.messages[offset]
            assert count == 1, "a message is buried once"
            assert known.open, f"{offset} is {known.state}, and is not buried"
            assert known.expire < NEVER, f"{offset} never expires"
            assert known.vague, f"{offset} has not expired"
            known.become("dead")
        assert not self.letters - letters, "no letter is lost"
        self.letters = letters

    def redrive(self, offsets: Iterable[int], upto: int) -> None:
        """Note that letters go back to the group, which stands at ``upto``."""
        for offset in offsets:
            del self.letters[offset]
            known = self.messages[offset]
            if offset >= upto:
                continue
            if known.state == "new":
                known.redriven = True
            elif known.open:
                known.vague = known.redriven = True
                known.expire = NEVER
            else:
                known.become("waits")
                known.redriven, known.until = True, self.now_ms
        self.settle()
