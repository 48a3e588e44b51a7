"""Whether a store can be used now, as all that is watched reports it."""

from __future__ import annotations

import asyncio
from typing import Final

from headwater.aio_client import AsyncHeadwater
from headwater.errors import HeadwaterError
from headwater.serve.api.audit import AUDIT

# What is not ready by then is not ready.
READY_S: Final = 2.0


async def store_missing(hw: AsyncHeadwater) -> str | None:
    """Return why a store cannot be used, or None when it answers within two seconds."""
    try:
        async with asyncio.timeout(READY_S):
            await hw.stream(AUDIT).info()
    except (HeadwaterError, TimeoutError) as error:
        return f"the store does not answer: {str(error) or 'it is too slow'}"
    return None
