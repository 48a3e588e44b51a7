"""What the models of groups that look at tags share: which messages members have, and how they end.

A machine of its own adds how messages are read, and what must be true of a read.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from headwater import Headwater
from headwater.kernel.failures import Failure
from tests.support.groups import FAR

if TYPE_CHECKING:
    from headwater import Group

MEMBERS = st.integers(0, 2)
PICKS = st.lists(st.integers(0, 10**6), min_size=1, max_size=6)


class TaggedGroupMachine(RuleBasedStateMachine):
    """A group of three members; ``open`` messages are not done, ``held`` ones are with members.

    ``resting`` ones are redelivered much later.
    """

    client: ClassVar[Headwater]
    members: list[Group]

    def __init__(self) -> None:
        super().__init__()
        self.stream = self.client.stream(f"tagged-{secrets.token_hex(6)}")
        self.tags: dict[int, str] = {}
        self.open: set[int] = set()
        self.held: set[int] = set()
        self.resting: set[int] = set()

    def open_members(self, *, ordered: bool) -> None:
        """Open the group for each of its members."""
        self.members = [
            self.stream.group("g", member=f"m{i}", ordered=ordered, dead_letters=True)
            for i in range(3)
        ]

    def write_tagged(self, names: list[str]) -> None:
        """Write a message for each tag."""
        offsets = self.stream.write_many([(name, b"v") for name in names])
        self.tags |= dict(zip(offsets, names, strict=True))
        self.open |= set(offsets)

    def some(self, among: set[int], picks: list[int]) -> list[int]:
        """Return the offsets that picks choose, in order; none of an empty set."""
        ordered = sorted(among)
        return sorted({ordered[pick % len(ordered)] for pick in picks}) if ordered else []

    def assert_no_keys(self, *parts: str) -> None:
        """Check that the group has none of these keys."""
        for part in parts:
            key = f"hw:s:{{{self.stream.name}}}:g:1:g:{part}"
            assert self.client.store.command("EXISTS", key)[0] == 0, f"{part} is left"

    @rule(picks=PICKS, later=st.booleans(), release=st.booleans())
    def nack_or_release(self, picks: list[int], later: bool, release: bool) -> None:
        back = self.some(self.held, picks)
        if release:
            assert self.members[0].release(back) == len(back)
        else:
            assert self.members[0].nack(back, delay_ms=FAR if later else 0) == len(back)
            self.resting |= set(back) if later else set()
        self.held -= set(back)

    @rule(picks=PICKS, later=st.booleans())
    def fail(self, picks: list[int], later: bool) -> None:
        failed = self.some(self.held, picks)
        delay_ms = FAR if later else 0
        assert self.members[1].fail(*(Failure(o, "no", delay_ms) for o in failed)) == len(failed)
        self.resting |= set(failed) if later else set()
        self.held -= set(failed)

    @rule()
    def wake(self) -> None:
        assert self.members[0].nack(self.resting) == len(self.resting)
        self.resting.clear()
