"""The API: POST /rides makes a ride and stages the record of it, both in one transaction.

    201  the ride is made, or was made before by a request with the same Idempotency-Key
    400  the body is not JSON
    409  the key was used for a ride of another distance
    413  the body is too long
    422  there is no distance, or it is no number, not positive, or too far
    503  the database cannot serve now; send it again, with the same key

Bodies are JSON objects or HTML forms with a `distance` in metres. It is rounded to millimetres
here, once. GET /health says whether the database answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from decimal import ROUND_HALF_UP, Decimal
from typing import Any
from urllib.parse import parse_qsl

import sqlalchemy as sa
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from examples.rocket_rides.model import PILOTS, Ride, RideNumbers, rides
from headwater.outbox import Outbox

FARTHEST_M = 100_000_000
LONGEST_BODY = 10_000
LONGEST_KEY = 200
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)


def _go_on() -> None:
    """Do not delay a transaction."""


def create_app(
    engine: sa.Engine,
    stream: str,
    *,
    before_write: Callable[[], None] = _go_on,
    before_commit: Callable[[], None] = _go_on,
) -> Starlette:
    """Return the application; each transaction calls what may delay it, at these two places."""
    desk = Desk(engine, stream, before_write, before_commit)
    return Starlette(
        routes=[
            Route("/rides", desk.post_ride, methods=["POST"]),
            Route("/health", desk.health),
        ],
        exception_handlers={
            HTTPException: _refuse,
            sa.exc.OperationalError: _cannot_serve,
        },
    )


class Desk:
    """Takes requests for rides."""

    def __init__(
        self,
        engine: sa.Engine,
        stream: str,
        before_write: Callable[[], None],
        before_commit: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._outbox = Outbox(engine)
        self._stream = stream
        self._before_write = before_write
        self._before_commit = before_commit
        self._numbers = RideNumbers()

    async def post_ride(self, request: Request) -> JSONResponse:
        parameters = await _parameters(request)
        distance_mm = millimetres(parameters.get("distance"))
        key = request.headers.get("idempotency-key")
        if key is not None and not 0 < len(key) <= LONGEST_KEY:
            raise HTTPException(422, f"an Idempotency-Key has 1 to {LONGEST_KEY} characters")
        ride = await run_in_threadpool(self._book, distance_mm, key)
        return JSONResponse(
            {
                "message": f"Thank you for flying {metres(ride.distance_mm, 1)} m with us! "
                f"{ride.pilot} is on the way.",
                "id": ride.id,
                "pilot": ride.pilot,
                "distance": float(metres(ride.distance_mm, 1)),
                "distance_mm": ride.distance_mm,
            },
            201,
        )

    async def health(self, _: Request) -> JSONResponse:
        await run_in_threadpool(self._ask_database)
        return JSONResponse({"status": "ok"})

    def _ask_database(self) -> None:
        with self._engine.connect() as conn:
            conn.execute(sa.select(1))

    def _book(self, distance_mm: int, key: str | None) -> Ride:
        """Make a ride, or find the one that was made by the same key."""
        number = self._numbers.next()
        ride = Ride(number, PILOTS[number % len(PILOTS)], distance_mm)
        try:
            self._make(ride, key)
        except sa.exc.IntegrityError:
            with self._engine.connect() as conn:
                found = conn.execute(sa.select(rides).where(rides.c.request_key == key)).first()
            if found is None:
                raise
            if found.distance_mm != distance_mm:
                raise HTTPException(
                    409, "this Idempotency-Key was used for another ride; use a new one for each"
                ) from None
            return Ride(found.id, found.pilot, found.distance_mm)
        return ride

    def _make(self, ride: Ride, key: str | None) -> None:
        """Insert the ride and stage its record: committed together, or neither was ever there."""
        with self._engine.begin() as conn:
            self._before_write()
            conn.execute(
                sa.insert(rides).values(
                    id=ride.id, request_key=key, pilot=ride.pilot, distance_mm=ride.distance_mm
                )
            )
            self._outbox.stage(conn, self._stream, f"ride-{ride.id}", ride)
            self._before_commit()


async def _parameters(request: Request) -> Mapping[str, object]:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > LONGEST_BODY:
            raise HTTPException(413, f"the body is longer than {LONGEST_BODY} bytes")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/x-www-form-urlencoded":
        return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
    try:
        # Numbers stay as they were written: a float would already have lost the distance.
        found: Any = json.loads(body or b"{}", parse_int=str, parse_float=str, parse_constant=str)
    except (ValueError, RecursionError):
        raise HTTPException(400, 'the body is not JSON; send {"distance": 12.5}') from None
    return found if isinstance(found, dict) else {}


def millimetres(given: object) -> int:
    """Read a distance in metres; anything else is refused with 422."""
    if given is None or given == "":
        raise HTTPException(422, "the parameter distance is missing; give metres")
    if not isinstance(given, str) or len(given) > 100 or not _NUMBER.fullmatch(given):
        raise HTTPException(422, "the parameter distance is not a number; give metres")
    distance = Decimal(given)
    if distance > FARTHEST_M:
        raise HTTPException(422, f"nobody flies farther than {FARTHEST_M} m; give metres")
    found = int((max(distance, Decimal(0)) * 1000).to_integral_value(ROUND_HALF_UP))
    if found <= 0:
        raise HTTPException(422, "the parameter distance is not positive; give at least 0.001 m")
    return found


def metres(distance_mm: int, digits: int = 3) -> str:
    """Spell a distance in metres."""
    exact = Decimal(distance_mm).scaleb(-3)
    return str(exact.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))


async def _refuse(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    why = error.detail
    if error.status_code == 404:
        why = f"there is nothing at {request.url.path}; POST to /rides"
    elif error.status_code == 405:
        why = f"{request.method} does nothing at {request.url.path}; POST to /rides"
    return JSONResponse({"error": why}, error.status_code, headers=error.headers)


async def _cannot_serve(_: Request, __: Exception) -> JSONResponse:
    return JSONResponse(
        {"error": "the database cannot serve now; send it again, with the same Idempotency-Key"},
        503,
        headers={"Retry-After": "1"},
    )
