"""The clients: they ask for rides at a steady pace, and ask again when they got no answer.

A request that got no answer may have been carried out, so it is sent again with the same key. One
in ten is sent a second time although it was answered, as by an impatient thumb: that must change
nothing, and give the same answer.
"""

from __future__ import annotations

import http.client
import itertools
import json
import random
import threading
import time
from typing import Any

from examples.rocket_rides.faults import DOUBLE_POST_SHARE, Fault, Tally
from examples.rocket_rides.model import Sum

CLIENTS = 8
CLIENT = "clients"
FARTHEST_MM = 2_000_000
_TIMEOUT_S = 5.0
_PATIENCE_S = 30.0
# The last rides are due a little before the end, so that all of them fit in when some are slow.
_SHARE_OF_TIME = 0.9


class Unanswered(Exception):
    """A request was sent for a long time and never answered as it should have been."""


class Simulator:
    """Posts up to ``rides`` rides within ``seconds``; several clients at once.

    ``made`` holds each ride that was answered, by its id; ``wrong`` what should not have been.
    """

    def __init__(
        self, port: int, rides: int, seconds: float, *, doubles: bool, seed: int, tally: Tally
    ) -> None:
        self.wanted = rides
        self._seconds = seconds
        self._doubles = doubles
        self._seed = seed
        self._tally = tally
        self._run = random.Random(seed).getrandbits(64)
        self._numbers = itertools.count()
        self._began = 0.0
        self._threads = [
            threading.Thread(target=self._client, args=[Line(port, tally)], daemon=True)
            for _ in range(CLIENTS)
        ]
        self.made: dict[int, int] = {}
        self.wrong: list[str] = []

    @property
    def sum(self) -> Sum:
        made = list(self.made.values())
        return Sum(len(made), sum(made))

    def start(self) -> None:
        self._began = time.monotonic()
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Wait until every ride that was begun is answered."""
        for thread in self._threads:
            thread.join()

    @property
    def running(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def _client(self, line: Line) -> None:
        while self._next_ride(line):
            pass
        line.close()

    def _next_ride(self, line: Line) -> bool:
        number = next(self._numbers)
        due = self._began + number * self._seconds * _SHARE_OF_TIME / self.wanted
        time.sleep(max(0.0, due - time.monotonic()))
        if number >= self.wanted or time.monotonic() > self._began + self._seconds:
            return False
        dice = random.Random(f"{self._seed}/ride/{number}")
        distance_mm = dice.randint(1, FARTHEST_MM)
        key = f"{self._run:x}-{number}"
        try:
            answer = line.post(key, distance_mm)
            self.made[answer["id"]] = answer["distance_mm"]
            if answer["distance_mm"] != distance_mm:
                self.wrong.append(f"{distance_mm} mm were answered as {answer}")
            if self._doubles and dice.random() < DOUBLE_POST_SHARE:
                self._tally.add(Fault.DOUBLE_POST, CLIENT)
                again = line.post(key, distance_mm)
                if again != answer:
                    self.wrong.append(f"a repeat of {answer} was answered as {again}")
        except Unanswered as fault:
            self.wrong.append(str(fault))
            return False
        return True


class Line:
    """One client's connection to the API, made anew whenever it breaks."""

    def __init__(self, port: int, tally: Tally) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
        self._tally = tally

    def close(self) -> None:
        self._connection.close()

    def post(self, key: str, distance_mm: int) -> dict[str, Any]:
        """Ask for a ride until there is an answer; raises Unanswered when there is none."""
        # Written out by hand: as a float it would not be what was meant.
        body = f'{{"distance": {distance_mm // 1000}.{distance_mm % 1000:03}}}'
        headers = {"Content-Type": "application/json", "Idempotency-Key": key}
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                self._connection.request("POST", "/rides", body, headers)
                response = self._connection.getresponse()
                text = response.read()
                if response.status == 201:
                    found: dict[str, Any] = json.loads(text)
                    return found
                why = f"{response.status} {text.decode(errors='replace')}"
                if response.status != 503:
                    raise Unanswered(f"a ride of {distance_mm} mm was refused: {why}")
            except (OSError, http.client.HTTPException) as error:
                why = repr(error)
                self._connection.close()
            if time.monotonic() > deadline:
                raise Unanswered(f"a ride of {distance_mm} mm was not answered: {why}")
            self._tally.add(Fault.LOST_ANSWER, CLIENT)
            time.sleep(0.02)
