"""The clock of a store for tests, which can be moved forward.

Deadlines, delays, retries, expiry, leases, retention by age and the times of messages are decided
in the server, by our functions. The first move loads these with another source of time: that of the
server, and what it was moved by. They are otherwise the same text. Keys that the server itself
expires, such as those of deduplication, are moved with it.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from typing import Any, Final

from headwater.errors import InvalidInput
from headwater.kernel.inputs import Duration, check_ms
from headwater.store.library import format_of_ours, library, name_in_server

AHEAD: Final = "headwater:testing:ahead-ms"
_TIME: Final = "redis.call('TIME')"
_MOVED_TIME: Final = f"""(function()
  local now, ahead = redis.call('TIME'), redis.call('GET', '{AHEAD}') or 0
  return {{ now[1] + math.floor(ahead / 1000), now[2] + ahead % 1000 * 1000 }}
end)()"""

_BLOCKED: Final = re.compile(rb"^id=(\d+) .*? flags=\w*b", re.MULTILINE)

# Moves the clock, and with it what the server expires by a clock of its own; one step.
_ADVANCE: Final = """
local ms, cursor = tonumber(ARGV[1]), '0'
repeat
  local page = redis.call('SCAN', cursor, 'COUNT', 1000)
  cursor = page[1]
  for _, key in ipairs(page[2]) do
    local left = redis.call('PTTL', key)
    if left > ms then
      redis.call('PEXPIRE', key, left - ms)
    elseif left >= 0 then
      redis.call('DEL', key)
    end
  end
until cursor == '0'
return redis.call('INCRBY', KEYS[1], ms)
"""


class StoreClock:
    """The time of a store; it runs as any clock does, and can be moved forward.

    Blocked readers look again after each move. What is counted in this process stays with its own
    clock: ``block_ms``, and how long a call waits for a store that is down.
    """

    def __init__(self, command: Callable[..., Any]) -> None:
        self._command = command
        self._ahead_ms = 0
        self._loaded = False

    @property
    def ahead(self) -> dt.timedelta:
        """How far the clock was moved in all."""
        return dt.timedelta(milliseconds=self._ahead_ms)

    def now(self) -> dt.datetime:
        """Return the time of the store, in UTC."""
        seconds, microseconds = self._command("TIME")
        epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
        return epoch + dt.timedelta(seconds=seconds, microseconds=microseconds) + self.ahead

    def advance(self, by: Duration) -> None:
        """Move the clock forward, by milliseconds or a timedelta.

        All that is due by then is due at once, as if the process had been asleep for that long.
        """
        ms = check_ms(by, "by")
        if not self._loaded:
            self._load(lambda source: source.replace(_TIME, _MOVED_TIME))
            self._loaded = True
        self._ahead_ms = int(self._command("EVAL", _ADVANCE, 1, AHEAD, ms))
        for client in _BLOCKED.findall(self._command("CLIENT", "LIST", "TYPE", "NORMAL")):
            self._command("CLIENT", "UNBLOCK", client)

    def move_to(self, moment: dt.datetime) -> None:
        """Move the clock forward to a moment; raises InvalidInput for one that is over."""
        if moment.tzinfo is None:
            raise InvalidInput(f"{moment!r} has no time zone; use one with tzinfo=timezone.utc")
        by = moment - self.now()
        if by < dt.timedelta(0):
            raise InvalidInput(
                f"{moment} is in the past, and a clock cannot be moved back; start with another "
                "store"
            )
        self.advance(by)

    def restore(self) -> None:
        """Load the functions again as every other store has them, for the next user of the server.

        The clock itself is a key, which goes with all others.
        """
        if self._loaded:
            self._load(lambda source: source)
            self._loaded = False

    def _load(self, change: Callable[[str], str]) -> None:
        found = self._command("FCALL", name_in_server("hw_version"), 0)
        source = library(format_of_ours(found.decode())).source
        self._command("FUNCTION", "LOAD", "REPLACE", change(source))
