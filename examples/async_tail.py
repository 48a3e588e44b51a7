"""Follow the end of a stream with asyncio while others write to it.

python examples/async_tail.py

Uses $HEADWATER_URL, or a private server with its data under .headwater/ in this directory.
"""

from __future__ import annotations

import asyncio
import secrets

from headwater import aio

WRITERS, EACH = 3, 5


async def follow(stream: aio.AsyncStream, count: int) -> None:
    """Print each message as it comes. The reader keeps its own position: an offset."""
    offset = 1
    while offset <= count:
        for message in await stream.read(offset, 100, block_ms=10_000):
            if message is None:
                print("evicted before it was read")
            else:
                print(message.offset, message.tag, message.value.decode())
            offset += 1


async def write(stream: aio.AsyncStream, writer: int) -> None:
    for number in range(EACH):
        await stream.write(f"writer-{writer}", f"message {number}")


async def main() -> None:
    async with aio.connect() as hw:
        stream = hw.stream(f"tail-{secrets.token_hex(4)}")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(follow(stream, WRITERS * EACH))
            for writer in range(WRITERS):
                tasks.create_task(write(stream, writer))
        await stream.delete()


if __name__ == "__main__":
    asyncio.run(main())
