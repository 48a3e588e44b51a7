"""One run from beginning to end: let clients and faults loose, let it drain, compare."""

from __future__ import annotations

import time
from itertools import combinations

import sqlalchemy as sa

from examples.rocket_rides.audit import Account, Audit, Look
from examples.rocket_rides.killer import Killer
from examples.rocket_rides.simulator import Simulator
from examples.rocket_rides.spark import Spark
from examples.rocket_rides.supervisor import Supervisor
from examples.rocket_rides.view import Picture, View
from headwater.errors import HeadwaterError

_LOOK_S = 0.2
_TOLD = 5
_DRAIN_S = 120.0


class Demo:
    """One run of all parts together; ``wrong`` lists at the end what went wrong."""

    def __init__(
        self,
        clients: Simulator,
        supervisor: Supervisor,
        killer: Killer | None,
        audit: Audit,
        view: View,
        spark: Spark | None = None,
    ) -> None:
        self._clients = clients
        self._supervisor = supervisor
        self._killer = killer
        self._audit = audit
        self._view = view
        self._spark = spark
        self._began = time.monotonic()
        self._look = Look()
        self._late: list[str] = []

    @property
    def wrong(self) -> list[str]:
        """What went wrong, in words."""
        return [
            *self._clients.wrong,
            *self._audit.wrong,
            *self._supervisor.strays,
            *self._late,
            *(self._spark.wrong if self._spark else ()),
        ]

    def run(self) -> None:
        """Let clients post rides, wait until all have arrived, then stop every process."""
        if self._spark:
            self._view.note("waiting for Spark, which takes its time to start")
            self._spark.wait()
            self._began = time.monotonic()
        self._clients.start()
        if self._killer:
            self._supervisor.inject(True)
            self._killer.start()
        while self._clients.running:
            self._show("riding")
            time.sleep(_LOOK_S)
        if self._killer:
            self._killer.join()
            self._supervisor.inject(False)
        self._drain()
        self._supervisor.close()
        if self._spark:
            self._spark.stop()

    def conclude(self) -> bool:
        """Show what happened and what everybody has; returns whether all of it was right."""
        self._view.say("")
        self._view.faults()
        self._view.say("")
        accounts = [Account("clients", None, self._clients.sum, None), *self._audit.accounts()]
        self._view.accounts(accounts)
        self._view.say("")
        wrong = list(dict.fromkeys(self.wrong))
        for what in wrong[:_TOLD]:
            self._view.say(f"wrong: {what}", "red")
        if len(wrong) > _TOLD:
            self._view.say(f"wrong: {len(wrong) - _TOLD} more of that", "red")
        self._view.say(
            f"a consumer's total was held against the log {self._audit.comparisons} times; "
            f"{self._audit.overtaken} rides came to the log after one that had been asked for later"
        )
        agreed = all(one.agrees(other) for one, other in combinations(accounts, 2))
        if not agreed:
            self._view.say("the totals do NOT agree", "bold red")
        elif not wrong:
            self._view.say(f"all totals agree at offset {self._look.streamed}", "green")
        return agreed and not wrong

    def _drain(self) -> None:
        deadline = time.monotonic() + _DRAIN_S
        self._show("draining")
        while not (self._look.started and self._look.drained):
            if time.monotonic() > deadline:
                self._late.append(f"after {_DRAIN_S:.0f} s something was still on its way")
                return
            time.sleep(0.02)
            self._show("draining")

    def _show(self, phase: str) -> None:
        try:
            self._look = self._audit.look()
        except (HeadwaterError, sa.exc.OperationalError) as error:
            # It may be down just now.
            self._view.note(f"cannot look: {type(error).__name__}")
        elapsed_s = time.monotonic() - self._began
        answered = self._clients.sum.rides
        self._view.show(
            Picture(
                *(phase, elapsed_s, self._clients.wanted, answered),
                *(self._look, self._audit.comparisons),
            )
        )
