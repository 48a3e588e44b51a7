"""What the log accepts, and the sizes it works in; everything here is checked before sending."""

from __future__ import annotations

import datetime as dt
import math
from typing import Final

from headwater.errors import InvalidInput

MAX_NAME_BYTES: Final = 200
MAX_TAG_BYTES: Final = 4096
MAX_VALUE_BYTES: Final = 16 * 1024 * 1024
MAX_BATCH_MESSAGES: Final = 100_000
MAX_BATCH_BYTES: Final = 64 * 1024 * 1024
MAX_READ: Final = 1_000_000
MAX_OFFSET: Final = 2**53 - 1
MAX_MS: Final = 10 * 365 * 24 * 3600 * 1000
MAX_PARTITIONS: Final = 1024

# Chosen by measurement; see docs/decisions/0002-arrow-nodes.md.
NODE_MESSAGES: Final = 1000
NODE_BYTES: Final = 1024 * 1024
PLAIN_MESSAGES: Final = 8
REPLY_BYTES: Final = 4 * 1024 * 1024


def check_name(name: str, what: str) -> str:
    """Accept a name of 1 to 200 bytes without control characters, white space and braces."""
    if not isinstance(name, str):
        raise InvalidInput(f"the name of a {what} must be a str, not {type(name).__name__}")
    if not name or len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        raise InvalidInput(
            f"the name of a {what} must have 1 to {MAX_NAME_BYTES} bytes, "
            f"not {len(name.encode('utf-8', 'surrogatepass'))}; choose another"
        )
    for character in name:
        if character in "{}" or character.isspace() or not character.isprintable():
            raise InvalidInput(
                f"the name of a {what} must not contain {character!r}; use letters, digits, "
                "and signs other than braces and white space"
            )
    return name


def check_offset(offset: int, what: str = "offset") -> int:
    """Accept an offset: offsets count from 1."""
    return _check_int(offset, what, 1, MAX_OFFSET)


def check_count(count: int, what: str = "count", most: int = MAX_READ) -> int:
    """Accept a count from 0 on."""
    return _check_int(count, what, 0, most)


def check_ms(value: int, what: str, least: int = 0) -> int:
    """Accept a span of time in milliseconds."""
    return _check_int(value, what, least, MAX_MS)


def check_block(block_ms: float | None) -> float:
    """Turn a blocking time into milliseconds: None and 0 do not wait, infinity waits for ever."""
    if block_ms is None:
        return 0
    if isinstance(block_ms, bool) or not isinstance(block_ms, int | float) or block_ms < 0:
        raise InvalidInput(f"block_ms must be 0 or more milliseconds, not {block_ms!r}")
    if math.isnan(block_ms):
        raise InvalidInput("block_ms must be a number of milliseconds, not NaN")
    return block_ms


def to_ms(time: int | dt.datetime) -> int:
    """Turn a point in time into milliseconds since 1970; a datetime must know its zone."""
    if isinstance(time, dt.datetime):
        if time.tzinfo is None:
            raise InvalidInput(
                f"{time!r} has no time zone; use datetime.now(timezone.utc) or the like"
            )
        return math.floor(time.timestamp() * 1000)
    return _check_int(time, "time_ms", 0, MAX_OFFSET)


def _check_int(value: int, what: str, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(f"{what} must be an int, not {value!r}")
    if not least <= value <= most:
        raise InvalidInput(f"{what} must be from {least} to {most}, not {value}")
    return value
