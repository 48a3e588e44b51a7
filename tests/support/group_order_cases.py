"""States of a group that keeps order, in which something is done to it while calls fail."""

from __future__ import annotations

from tests.support.group_cases import FAR, MESSAGES, Deed, GroupCase, started


def ordered(prepare: Deed) -> Deed:
    """Prepare the same in a group that keeps order; all messages have one tag."""

    def in_order(case: GroupCase) -> None:
        case.options = {**case.options, "ordered": True}
        prepare(case)

    return in_order


def one_has_the_first(case: GroupCase) -> None:
    """Two messages are with a member, which got them without a note."""
    started(case)
    case.read(2)


def read_on(case: GroupCase) -> None:
    """Read as the member that has the first two, and keeps their order by itself."""
    group = case.group
    group.keep_order(lambda: [1, 2])
    group.read(2, ack_ms=FAR)


def one_has_the_tag(case: GroupCase) -> None:
    """Two messages are with a member, and the others of their tag wait behind them."""
    started(case)
    case.read(2)
    case.read(2)


def ended_before_its_turn(case: GroupCase) -> None:
    """A message between two others is done: it links them."""
    one_has_the_tag(case)
    case.group.ack(2, 4)
    case.over |= {2, 4}


def with_letters(case: GroupCase) -> None:
    case.options = {**case.options, "dead_letters": True}
    one_has_the_tag(case)


def has_stopped(case: GroupCase) -> None:
    """A call noted messages, and stopped before it could move on."""
    started(case)
    case.stream.write("t", b"more")
    case.read(1)
    # Somebody else notes the tags.
    case.read(1)
    at = MESSAGES + 2
    case.stream.write("t", b"most")
    tag = case.raw("HKEYS", f"{case.group_key}:keys")[0]
    case.raw("ZADD", f"{case.group_key}:lanes", 0, tag + b"%016d" % at)


def has_many_ranges(case: GroupCase) -> None:
    """More ranges are pending than one look shows."""
    started(case)
    for n in range(200):
        case.stream.write(f"tag-{n % 90}", b"")
    last = MESSAGES + 200
    case.group.read(last, ack_ms=FAR)
    done = [*range(2, MESSAGES + 1), *range(MESSAGES + 2, last - 20, 2)]
    case.group.ack(done)
    case.over |= set(done)
    # Behind the last of them.
    case.stream.write("tag-19", b"")


def all_is_done(case: GroupCase) -> None:
    """Nothing is pending."""
    started(case)
    case.read(3)
    case.group.ack((1, 3))
    case.over |= {1, 2, 3}


def one_waits_in_order(case: GroupCase) -> None:
    started(case)
    case.read(MESSAGES)
    case.wait("w1", wait_ms=5000)
