"""Consumers that give messages up: handlers that can be fixed, kills at a step, notes in SQL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from tests.support.consumers import writes

SKIPS: dict[str, Any] = {"on_error": "skip", "attempts": 1, "backoff_ms": 0}


class Killed(Exception):
    """The process ends here."""


class Fixable:
    """A handler that fails on some offsets until they are taken out; it notes what it was given."""

    def __init__(self, *places: int) -> None:
        self.places = set(places)
        self.given: list[Any] = []

    def __call__(self, conn: sa.Connection, messages: list[Any]) -> None:
        writes("c")(conn, messages)
        self.given += messages
        if self.places & {message.offset for message in messages}:
            raise ValueError("cannot handle it")


def die_at(step: str, times: int = 1) -> Callable[[str], None]:
    seen: list[str] = []

    def die(at: str) -> None:
        seen.append(at)
        if at == step and seen.count(step) == times:
            raise Killed

    return die


def noted(engine: sa.Engine, name: str) -> list[int]:
    """Return which messages count as given up."""
    asked = sa.text("SELECT message_offset FROM headwater_given_up WHERE stream = :s ORDER BY 1")
    with engine.begin() as conn:
        return list(conn.execute(asked, {"s": name}).scalars())
