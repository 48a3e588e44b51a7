"""What tests of an application need: private stores, a clock that can be moved, faults on demand.

import headwater.testing

with headwater.testing.store() as hw:
    hw.stream("rides").write("ride-1", b"{}")

The pytest plugin, which is loaded automatically, makes a store for each test that asks for ``hw``.
"""

from headwater.testing.clock import StoreClock
from headwater.testing.draining import Drained, DrainedPart, async_drain, drain
from headwater.testing.faults import StoreFaults
from headwater.testing.store import PrivateStore, store

__all__ = [
    "Drained",
    "DrainedPart",
    "PrivateStore",
    "StoreClock",
    "StoreFaults",
    "async_drain",
    "drain",
    "store",
]
