"""Wishes of one moment go into one call, and each is told its own result, whatever happens."""

from __future__ import annotations

import asyncio
from typing import Any

from headwater.errors import StoreError
from headwater.serve.timeline.batching import MOST_ITEMS, SIDE_BY_SIDE, Gathering, Wish


def gather(wishes: list[list[int]], bad: dict[int, Exception]) -> tuple[list[list[int]], list[Any]]:
    """Wish all at once; gives the calls that were made, and what each was told."""
    calls: list[list[int]] = []

    async def serve(items: list[int]) -> int:
        calls.append(items)
        await asyncio.sleep(0)
        for item in items:
            if item in bad:
                raise bad[item]
        return len(calls)

    async def run() -> list[Any]:
        gathering: Gathering[int, int] = Gathering(serve)
        told = [asyncio.get_running_loop().create_future() for _ in wishes]
        for items, future in zip(wishes, told, strict=True):
            gathering.add(Wish(items, future.set_result))
        return await asyncio.gather(*told)

    results = asyncio.run(run())
    return calls, results


def test_wishes_of_one_moment_are_one_call() -> None:
    assert gather([[1], [2, 3], []], {}) == ([[1, 2, 3]], [1, 1, 1])


def test_a_large_wish_goes_alone() -> None:
    large = list(range(MOST_ITEMS))
    calls, _ = gather([[1], large, [2]], {})
    assert calls == [[1], large, [2]]


def test_what_does_not_fit_waits_until_a_call_ends() -> None:
    large = list(range(MOST_ITEMS))
    calls, told = gather([large] * (SIDE_BY_SIDE + 2), {})
    assert len(calls) == len(told) == SIDE_BY_SIDE + 2


def test_what_comes_during_a_call_goes_together_and_does_not_wait_for_a_slow_one() -> None:
    calls: list[list[int]] = []

    async def run() -> None:
        loop, begun, slow = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

        async def serve(items: list[int]) -> None:
            calls.append(items)
            if 1 in items:
                begun.set()
                await slow.wait()

        gathering: Gathering[int, None] = Gathering(serve)
        told = [loop.create_future() for _ in range(3)]
        gathering.add(Wish([1], told[0].set_result))
        await begun.wait()
        for number in (1, 2):
            gathering.add(Wish([number + 1], told[number].set_result))
            await asyncio.sleep(0)
        await asyncio.gather(*told[1:])
        assert not told[0].done()
        slow.set()
        await told[0]

    asyncio.run(asyncio.wait_for(run(), 20))
    assert calls == [[1], [2, 3]]


def test_of_a_call_that_fails_each_is_tried_alone() -> None:
    fault = StoreError("away")
    calls, told = gather([[1], [2], [3]], {2: fault})
    assert calls == [[1, 2, 3], [1], [2], [3]]
    assert [result is fault for result in told] == [False, True, False]


def test_whoever_waits_is_told_of_faults_that_nobody_foresaw() -> None:
    bug = ZeroDivisionError()
    assert gather([[1]], {1: bug})[1] == [bug]
