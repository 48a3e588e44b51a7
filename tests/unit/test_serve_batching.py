"""Requests of one moment go into one call, and each gets its own result, whatever happens."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from headwater.errors import StoreError
from headwater.serve.batching import MOST_BYTES, MOST_ITEMS, SIDE_BY_SIDE, Batcher, BatchPart


def told_first(future: asyncio.Future[Any], result: Any, _at: int) -> None:
    future.set_result(result)


def run_batches(
    parts: list[list[int]], bad: dict[int, Exception], size: int = 0
) -> tuple[list[list[int]], list[Any]]:
    """Add all at once; returns the calls that were made, and the result of each part."""
    calls: list[list[int]] = []

    async def serve(items: list[int]) -> int:
        calls.append(items)
        await asyncio.sleep(0)
        for item in items:
            if item in bad:
                raise bad[item]
        return len(calls)

    async def run() -> list[Any]:
        batcher: Batcher[int, int] = Batcher(serve)
        told = [asyncio.get_running_loop().create_future() for _ in parts]
        for items, future in zip(parts, told, strict=True):
            batcher.add(BatchPart(items, partial(told_first, future), size))
        return await asyncio.gather(*told)

    results = asyncio.run(run())
    return calls, results


def test_parts_of_one_moment_are_one_call() -> None:
    assert run_batches([[1], [2, 3], []], {}) == ([[1, 2, 3]], [1, 1, 1])


def test_a_large_request_goes_alone() -> None:
    large = list(range(MOST_ITEMS))
    calls, _ = run_batches([[1], large, [2]], {})
    assert calls == [[1], large, [2]]


def test_a_call_has_no_more_bytes_than_it_may() -> None:
    calls, _ = run_batches([[1], [2], [3]], {}, MOST_BYTES // 2)
    assert calls == [[1, 2], [3]]


def test_what_does_not_fit_waits_until_a_call_ends() -> None:
    large = list(range(MOST_ITEMS))
    calls, told = run_batches([large] * (SIDE_BY_SIDE + 2), {})
    assert len(calls) == len(told) == SIDE_BY_SIDE + 2


def test_what_arrives_during_a_call_goes_together_and_does_not_wait_for_a_slow_one() -> None:
    calls: list[list[int]] = []

    async def run() -> None:
        loop, begun, slow = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

        async def serve(items: list[int]) -> None:
            calls.append(items)
            if 1 in items:
                begun.set()
                await slow.wait()

        batcher: Batcher[int, None] = Batcher(serve)
        told = [loop.create_future() for _ in range(3)]
        batcher.add(BatchPart([1], partial(told_first, told[0])))
        await begun.wait()
        for number in (1, 2):
            batcher.add(BatchPart([number + 1], partial(told_first, told[number])))
            await asyncio.sleep(0)
        await asyncio.gather(*told[1:])
        assert not told[0].done()
        slow.set()
        await told[0]

    asyncio.run(asyncio.wait_for(run(), 60))
    assert calls == [[1], [2, 3]]


def test_each_request_of_a_call_that_fails_is_retried_alone() -> None:
    fault = StoreError("away")
    calls, told = run_batches([[1], [2], [3]], {2: fault})
    assert calls == [[1, 2, 3], [1], [2], [3]]
    assert [result is fault for result in told] == [False, True, False]


def test_an_error_that_nobody_foresaw_is_a_result_too() -> None:
    bug = ZeroDivisionError()
    assert run_batches([[1]], {1: bug})[1] == [bug]


def test_a_part_that_cannot_take_its_result_is_given_the_error_and_the_others_their_results() -> (
    None
):
    told: list[Any] = []

    async def run() -> None:
        all_told = asyncio.get_running_loop().create_future()

        async def serve(items: list[int]) -> int:
            return len(items)

        def broken(result: Any, _at: int) -> None:
            told.append(result)
            if isinstance(result, int):
                raise ZeroDivisionError

        batcher: Batcher[int, int] = Batcher(serve)
        batcher.add(BatchPart([1], broken))
        batcher.add(BatchPart([2], partial(told_first, all_told)))
        assert await all_told == 2

    asyncio.run(asyncio.wait_for(run(), 60))
    assert told[0] == 2
    assert isinstance(told[1], ZeroDivisionError)
