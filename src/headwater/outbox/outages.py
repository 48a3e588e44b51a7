"""Trouble that passes: errors of the database or the store that are waited out.

They are retried for as long as they last, and never count as a handler's failure. An outage is
logged once when it begins and once when it is over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from headwater.errors import StoreError
from headwater.kernel import failures
from headwater.kernel.failures import store_may_recover
from headwater.sql.driver_errors import database_may_recover, was_rolled_back_for_others
from headwater.sql.safe_names import Database, without_secrets

# So many transactions rolled back in a row are an outage after all.
_UNUSUAL = 5


def is_passing(error: BaseException) -> bool:
    """Return whether an error is of the database or the store, and may be gone by the next try."""
    if isinstance(error, StoreError):
        return store_may_recover(error)
    return database_may_recover(error)


class DatabaseOutage(failures.Outage):
    """An outage of a database or a store; what is logged of it shows no secret of the database.

    A single transaction that was rolled back for the sake of another one is not logged.
    """

    def __init__(
        self,
        who: str,
        log: logging.Logger,
        database: Database,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(who, log, clock)
        self._database = database

    def _is_worth_logging(self, error: BaseException, failures: int) -> bool:
        return failures >= _UNUSUAL or not was_rolled_back_for_others(error)

    def _reason(self, error: BaseException) -> str:
        return without_secrets(super()._reason(error), self._database)
