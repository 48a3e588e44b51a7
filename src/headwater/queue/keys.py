"""The keys of a queue, and what it accepts; everything here is checked before sending."""

from __future__ import annotations

from typing import Any, Final

from headwater.errors import InvalidInput
from headwater.kernel.inputs import MAX_EXACT, check_int, check_name

# ── Limits ────────────────────────────────────────────────────────────────────────────────────────
# What a queue accepts, and the sizes it works in; everything here is checked before sending.


MAX_VALUE_BYTES: Final = 16 * 1024 * 1024
# A push is one call, all or none; this many take about 5 ms, in which the server does nothing else.
MAX_PUSH_MESSAGES: Final = 5_000
MAX_DEDUPE_MESSAGES: Final = 1_000
MAX_PUSH_BYTES: Final = 64 * 1024 * 1024
MAX_POP: Final = 100_000
# How many dead letters are named by their number at most; it stands for all.
MAX_LETTERS = 1_000_000_000
MAX_PRIORITY: Final = 100
MAX_ATTEMPTS: Final = 1_000_000
MAX_DEDUPE_BYTES: Final = 1024
# The client repeats a push after a lost answer only if its key is certainly still remembered.
SAFE_DEDUPE_MS: Final = 60_000
DEDUPE_MS: Final = 3_600_000


def check_value(value: Any) -> bytes:
    """Accept a value: any bytes, or a str, which is encoded as UTF-8."""
    if type(value) is not bytes:
        value = _to_bytes(value)
    if len(value) > MAX_VALUE_BYTES:
        raise InvalidInput(
            f"a value may have {MAX_VALUE_BYTES} bytes, not {len(value)}; make it smaller, or push "
            "the name of where it is"
        )
    return bytes(value)


def _to_bytes(value: Any) -> bytes:
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise InvalidInput(f"a value is not valid Unicode ({error.reason})") from None
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise InvalidInput(
        f"a value must be bytes or str, not {type(value).__name__}; "
        'encode it, or open the handle with codec="json"'
    )


def check_count(count: int, what: str = "count", most: int = MAX_POP) -> int:
    """Accept a count from 0 on."""
    return check_int(count, what, 0, most)


def check_priority(priority: int) -> int:
    """Accept a priority; higher ones are delivered first."""
    return check_int(priority, "priority", -MAX_PRIORITY, MAX_PRIORITY)


def check_dedupe(key: Any) -> bytes:
    """Accept a dedupe key: text or bytes, not empty."""
    if not isinstance(key, str | bytes):
        raise InvalidInput(f"a dedupe key must be a str or bytes, not {type(key).__name__}")
    found = key if isinstance(key, bytes) else key.encode("utf-8", "surrogatepass")
    if not 1 <= len(found) <= MAX_DEDUPE_BYTES:
        raise InvalidInput(
            f"a dedupe key must have 1 to {MAX_DEDUPE_BYTES} bytes, not {len(found)}; "
            "use a digest of what is longer"
        )
    return found


def check_source(producer: str | None, sequence: int | None) -> tuple[str, int | str]:
    """Accept producer and sequence, both or neither."""
    if (producer is None) != (sequence is None):
        raise InvalidInput("producer and sequence go together; give both or neither")
    if producer is None or sequence is None:
        return "", ""
    return check_name(producer, "producer"), check_int(sequence, "sequence", 0, MAX_EXACT)


# ── Keys ──────────────────────────────────────────────────────────────────────────────────────────


QUEUES = "hw:{queues}"


def queue_key(name: str) -> str:
    """Return the key of a queue; every other key of it begins with this one."""
    return f"hw:q:{{{check_name(name, 'queue')}}}"


def box_key(queue: str, waiter: str) -> str:
    """Return the key of the list on which one blocked consumer waits."""
    return f"{queue}:box:{waiter}"
