"""What tests of channels share."""

from __future__ import annotations

from typing import Any

from headwater import ChannelStats, Headwater, IckChannel

LONG = 600_000


def other(client: Headwater, name: str, **options: Any) -> IckChannel:
    """Another consumer of the same channel."""
    return client.ick_channel(name, **options)


def drain(channel: IckChannel, n: int = 100) -> list[str | bytes]:
    """Reserve and commit until there is nothing."""
    taken: list[str | bytes] = []
    while batch := channel.reserve(n):
        taken += batch.members
        assert channel.commit(batch) == len(batch)
    return taken


def facts(channel: IckChannel) -> ChannelStats:
    found = channel.stats()
    assert found is not None
    return found


def counts(channel: IckChannel) -> tuple[int, int, int]:
    found = facts(channel)
    return found.ready, found.later, found.reserved


def members(count: int) -> dict[str, float]:
    return {f"m{i}": float(i) for i in range(count)}
