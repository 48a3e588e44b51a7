"""Whether a store can be used now, as all that is watched reports it."""

from __future__ import annotations

import asyncio
from typing import Final

from headwater.aio_client import AsyncHeadwater
from headwater.errors import HeadwaterError
from headwater.log.handles import StreamHandle
from headwater.log.reading import info
from headwater.serve.audit import AUDIT

# What is not ready by then is not ready.
READY_S: Final = 2.0
_PATIENCE_S: Final = 1.0


# Why it is not ready, which may name servers, is for those who may read.
NOT_READY: Final = "this is not ready; send a token to see why"


async def store_missing(hw: AsyncHeadwater) -> str | None:
    """Return why a store cannot be used, or None when it answers within two seconds."""
    look = info(StreamHandle(AUDIT, set()))
    try:
        async with asyncio.timeout(READY_S):
            # A store that refuses is reported as such, not as one that is waited for too long.
            await hw.store.run(look, _PATIENCE_S)
    except (HeadwaterError, TimeoutError) as error:
        return f"the store does not answer: {str(error) or 'it is too slow'}"
    return None
